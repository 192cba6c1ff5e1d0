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

	"golang.org/x/sys/unix"
)

// Address tells everyone on a link's segment that the addresses are here. The first time
// is as soon as the link carries packets (segment.Ready); Address returns when it has told them as often as r says, or when ctx has
// ended, with its error. An IPv6 address that the kernel still looks for duplicates of is
// announced when that is over; one that it found somebody else to have is a *Conflict. On
// a link without ARP there is nobody to tell, and no error. The error wraps
// segment.ErrDown where the link is down. What can be announced is, whatever becomes of
// the rest.
func Address(ctx context.Context, l segment.Link, r Repeat, addrs ...netip.Prefix) error {
	f, err := segment.Ready(ctx, l)
	if err != nil || f.NoARP != "" || len(addrs) == 0 {
		return err
	}
	a := announcer{at: l, facts: f}
	defer a.close()
	r = r.orOnce()
	for i := range r.Times {
		if i > 0 {
			if err := pause(ctx, r.Every); err != nil {
				return err
			}
		}
		if err := a.tell(ctx, addrs); err != nil {
			return fmt.Errorf("announce addresses of %s: %w", f.Name, err)
		}
	}
	return nil
}

// announcer has the packet sockets through which addresses of one link are announced
// that the kernel can't be asked to announce; each is opened when it is needed.
type announcer struct {
	at     segment.Link
	facts  segment.Facts
	v4, v6 *segment.Socket
}

func (a *announcer) close() {
	for _, s := range []*segment.Socket{a.v4, a.v6} {
		if s != nil {
			s.Close()
		}
	}
}

// tell announces all addresses once: those first that need not be waited for.
func (a *announcer) tell(ctx context.Context, addrs []netip.Prefix) error {
	var errs []error
	var v4, later []netip.Addr
	for _, p := range addrs {
		addr := p.Addr().Unmap()
		s, err := stateOf(a.at, addr)
		switch {
		case err != nil:
			errs = append(errs, err)
		case addr.Is4() && s.there:
			v4 = append(v4, addr)
		case s.tentative || s.failed:
			later = append(later, addr)
		default:
			errs = append(errs, a.send(addr))
		}
	}
	errs = append(errs, a.sendAll4(v4))
	for _, addr := range later {
		switch s, err := settled(ctx, a.at, addr); {
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

// sendAll4 announces IPv4 addresses of the link: the kernel does so for all of them.
func (a *announcer) sendAll4(addrs []netip.Addr) error {
	if len(addrs) == 0 || a.soft() && link.AnnounceARP(a.at.NS, a.at.Index) == nil {
		return nil
	}
	var errs []error
	for _, addr := range addrs {
		errs = append(errs, a.send(addr))
	}
	return errors.Join(errs...)
}

// soft tells whether giving the link the Ethernet address that it has is nothing that
// anybody could notice: no hardware is behind it, and no other link's address is changed.
func (a *announcer) soft() bool {
	switch a.facts.Kind {
	case "veth", "netkit", "macvlan", "macvtap", "vlan", "vxlan", "geneve", "openvswitch":
		return true
	}
	return false
}

// send announces one address.
func (a *announcer) send(addr netip.Addr) error {
	if addr.Is4() {
		s, err := opened(&a.v4, a.at, unix.ETH_P_ARP)
		if err != nil {
			return err
		}
		return s.Send(segment.Broadcast(), arpAnnouncement(a.facts.MAC, addr))
	}
	router, err := forwards(a.at, a.facts.Name)
	if err != nil {
		return err
	}
	m := ndAnnouncement(a.facts.MAC, addr, router)
	if sendICMP(a.at, addr, allNodes(), m[packet.IPBytes(addr):]) == nil {
		return nil
	}
	s, err := opened(&a.v6, a.at, unix.ETH_P_IPV6)
	if err != nil {
		return err
	}
	return s.Send(groupMAC(allNodes()), m)
}

// opened is *s, opened if it is not yet. What comes in is not for it.
func opened(s **segment.Socket, l segment.Link, etherType uint16) (*segment.Socket, error) {
	if *s != nil {
		return *s, nil
	}
	var err error
	*s, err = segment.Open(l, etherType, dropAll())
	return *s, err
}

// forwards tells whether the namespace is a router for IPv6 on a link: its neighbours
// forget a default route through it when an advertisement says otherwise (RFC 4861
// section 7.2.5).
func forwards(l segment.Link, name string) (bool, error) {
	var on bool
	err := l.NS.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/forwarding")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		on = strings.TrimSpace(string(b)) != "0"
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read whether %s forwards IPv6: %w", name, err)
	}
	return on, nil
}

// Conflict says that somebody else on the segment has an address. It is an error.
type Conflict struct {
	Addr netip.Addr
	MAC  link.MAC // whose; zero: the kernel knows, but does not say
	// Parent is the name of the device below if it is that which has the address.
	Parent string
}

// Error says who has the address.
func (c *Conflict) Error() string {
	switch {
	case c.Parent != "":
		return fmt.Sprintf("%s is in use by %s, the device below", c.Addr, c.Parent)
	case c.MAC != (link.MAC{}):
		return fmt.Sprintf("%s is in use by %s", c.Addr, c.MAC)
	}
	return fmt.Sprintf("%s is in use by another machine", c.Addr)
}
