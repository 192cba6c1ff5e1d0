package link

import (
	"errors"
	"fmt"

	"cleat/netns"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// genlHeaderBytes is the size of struct genlmsghdr (include/uapi/linux/genetlink.h).
const genlHeaderBytes = 4

// genl is a generic netlink socket in one namespace, for one family.
type genl struct {
	conn   *genetlink.Conn
	family genetlink.Family
}

// dialGenl finds the family, which makes the kernel load its module. A family
// that the kernel does not have is fs.ErrNotExist.
func dialGenl(ns *netns.NS, family string) (*genl, error) {
	g := &genl{}
	err := ns.Do(func() error {
		var err error
		g.conn, err = genetlink.Dial(nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open generic netlink in %s: %w", ns, err)
	}
	// Kernels before 4.12 have no extended acknowledgements; errors are then
	// terse, that is all.
	_ = g.conn.SetOption(netlink.ExtendedAcknowledge, true)
	if g.family, err = g.conn.GetFamily(family); err != nil {
		return nil, errors.Join(fmt.Errorf("find netlink family %q: %w", family, err), g.Close())
	}
	return g, nil
}

func (g *genl) Close() error { return g.conn.Close() }

func (g *genl) execute(command uint8, flags netlink.HeaderFlags, attrs ...attribute) ([]genetlink.Message, error) {
	b, err := pack(attrs)
	if err != nil {
		return nil, fmt.Errorf("encode netlink attributes: %w", err)
	}
	return g.conn.Execute(genetlink.Message{Header: genetlink.Header{Command: command, Version: g.family.Version}, Data: b},
		g.family.ID, netlink.Request|flags)
}
