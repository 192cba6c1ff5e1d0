package link

import (
	"errors"
	"fmt"

	"cleat/netns"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// genl is a generic netlink socket in one namespace, for one family.
type genl struct {
	conn   *genetlink.Conn
	family genetlink.Family
}

// dialGenl opens a socket for the family. Looking up the family makes the kernel
// load its module. A family that the kernel does not have is fs.ErrNotExist.
func dialGenl(ns *netns.NS, family string) (*genl, error) {
	c, err := openIn(ns, "generic netlink", func() (*genetlink.Conn, error) { return genetlink.Dial(nil) })
	if err != nil {
		return nil, err
	}
	_ = c.SetOption(netlink.ExtendedAcknowledge, true) // optional, as in dial
	f, err := c.GetFamily(family)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find netlink family %q: %w", family, err), c.Close())
	}
	return &genl{c, f}, nil
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
