package announce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"cleat/link"
	"cleat/network/segment"
	"cleat/packet"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Address announces addresses to the neighbours on a link's segment, as soon as the link
// carries packets (segment.WaitReady). It waits for the end of the kernel's duplicate address
// detection for an IPv6 address; if that has found a duplicate, the error is a *Conflict. On a
// link without ARP Address does nothing. The error wraps segment.ErrDown if the link is down.
// An error about one address does not keep the others from being announced.
func Address(ctx context.Context, l segment.Link, addrs ...netip.Addr) error {
	info, err := segment.WaitReady(ctx, l)
	if err != nil || info.NoARPReason != "" || len(addrs) == 0 {
		return err
	}
	a := announcer{at: l, info: info}
	defer a.close()
	if err := a.announce(ctx, addrs); err != nil {
		return fmt.Errorf("announce addresses of %s: %w", info.Name, err)
	}
	return nil
}

// announcer announces addresses of one link. It opens a packet socket when it has to announce
// an address that the kernel doesn't.
type announcer struct {
	at     segment.Link
	info   segment.Info
	v4, v6 *segment.Socket
}

func (a *announcer) close() {
	for _, s := range []*segment.Socket{a.v4, a.v6} {
		if s != nil {
			s.Close()
		}
	}
}

// announce announces all addresses, those under duplicate address detection last.
func (a *announcer) announce(ctx context.Context, addrs []netip.Addr) error {
	var errs []error
	var v4, later []netip.Addr
	for _, addr := range addrs {
		addr = addr.Unmap()
		s, err := dadStateOf(a.at, addr)
		switch {
		case err != nil:
			errs = append(errs, err)
		case addr.Is4() && s.exists:
			v4 = append(v4, addr)
		case s.tentative || s.failed:
			later = append(later, addr)
		default:
			errs = append(errs, a.send(addr))
		}
	}
	if len(v4) > 0 && (!a.canReassignMAC() || link.AnnounceARP(a.at.NS, a.at.Index) != nil) {
		for _, addr := range v4 {
			errs = append(errs, a.send(addr))
		}
	}
	for _, addr := range later {
		switch s, err := waitForDAD(ctx, a.at, addr); {
		case err != nil:
			errs = append(errs, err)
		case s.failed:
			errs = append(errs, &Conflict{Addr: addr})
		default:
			errs = append(errs, a.send(addr))
		}
	}
	return errors.Join(errs...)
}

// canReassignMAC reports whether assigning the link the Ethernet address that it already has,
// which makes the kernel announce all its IPv4 addresses, has no other effect: there is no
// hardware behind the link, and no other link's address changes.
func (a *announcer) canReassignMAC() bool {
	switch a.info.Kind {
	case "veth", "netkit", "macvlan", "macvtap", "vlan", "vxlan", "geneve", "openvswitch":
		return true
	}
	return false
}

func (a *announcer) send(addr netip.Addr) error {
	if addr.Is4() {
		s, err := openOnce(&a.v4, a.at, unix.ETH_P_ARP)
		if err != nil {
			return err
		}
		return s.Send(segment.Broadcast(), arpAnnouncement(a.info.MAC, addr))
	}
	router, err := forwards(a.at, a.info.Name)
	if err != nil {
		return err
	}
	m, allNodes := ndAnnouncement(a.info.MAC, addr, router), netip.IPv6LinkLocalAllNodes()
	if sendICMP(a.at, addr, allNodes, m[packet.IPBytes(addr):]) == nil {
		return nil
	}
	s, err := openOnce(&a.v6, a.at, unix.ETH_P_IPV6)
	if err != nil {
		return err
	}
	return s.Send(groupMAC(allNodes), m)
}

// openOnce returns *s, which it opens if it is nil. The socket receives nothing.
func openOnce(s **segment.Socket, l segment.Link, etherType uint16) (_ *segment.Socket, err error) {
	if *s == nil {
		*s, err = segment.Open(l, etherType, []bpf.Instruction{bpf.RetConstant{Val: 0}})
	}
	return *s, err
}

// forwards reports whether the namespace is an IPv6 router on a link. Neighbours remove a
// default route through it when an advertisement lacks the router flag (RFC 4861 section
// 7.2.5).
func forwards(l segment.Link, name string) (on bool, err error) {
	err = l.NS.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/forwarding")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		on = strings.TrimSpace(string(b)) != "0"
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read IPv6 forwarding of %s: %w", name, err)
	}
	return on, nil
}

// Conflict is the error for an address that another machine on the segment has.
type Conflict struct {
	Addr   netip.Addr
	MAC    link.MAC // of its owner; zero: unknown, because the kernel found the conflict
	Parent string   // name of the link's parent device, if that has the address
}

func (c *Conflict) Error() string {
	switch {
	case c.Parent != "":
		return fmt.Sprintf("%s is in use by %s, the link's parent", c.Addr, c.Parent)
	case c.MAC != (link.MAC{}):
		return fmt.Sprintf("%s is in use by %s", c.Addr, c.MAC)
	}
	return fmt.Sprintf("%s is in use by another machine", c.Addr)
}
