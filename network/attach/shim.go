package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shim lets the host and macvlan containers reach each other.
func (p *planner) shim(parent string) error {
	name := shimOf(parent)
	p.add(UseShim{Parent: parent, Name: name})
	for _, ip := range p.spec.Addresses {
		if ip.Addr().IsLinkLocalUnicast() {
			continue // whoever speaks to it says by which link
		}
		from, err := shimSource(p.host, parent, ip)
		if err != nil {
			return err
		}
		switch {
		case !from.IsValid():
			p.note("%s", noSourceNote(ip))
		case from.Is6():
			p.add(ShimAddress{Shim: name, Addr: from})
		}
		p.add(ShimRoute{Shim: name, To: ip.Addr(), From: from})
	}
	return nil
}

// shimOf is what the host's shim beside a parent's macvlan devices is called.
func shimOf(parent string) string { return shorten("shim-" + parent) }

// shimSource is the host's address on the parent in a container's network; zero if there is
// none, or no such parent yet.
func shimSource(host *namespace, parent string, ip netip.Prefix) (netip.Addr, error) {
	l, err := host.find(parent)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find %q: %w", parent, err)
	}
	if l == nil {
		return netip.Addr{}, nil
	}
	return addressIn(host, l, ip)
}

// noSource notes what comes of that.
func noSourceNote(ip netip.Prefix) string {
	return fmt.Sprintf("the host has no address in %s: what it sends to %s comes from another of its addresses", ip.Masked(), ip.Addr())
}

// addressIn is the host's address on a device in a container's network; zero if
// there is none.
func addressIn(s *namespace, l netlink.Link, network netip.Prefix) (netip.Addr, error) {
	all, err := s.AddrList(l, familyOf(network.Addr()))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of %q: %w", l.Attrs().Name, err)
	}
	for _, a := range all {
		if ip := addrOf(a.IP); network.Contains(ip) {
			return ip, nil
		}
	}
	return netip.Addr{}, nil
}

// UseShim has a macvlan device on the host, beside the containers' on the same
// parent: the host itself hears nothing of what they send by way of the parent.
type UseShim struct {
	Parent string `json:"parent"`
	Name   string `json:"name"`
}

func (s UseShim) String() string {
	return fmt.Sprintf("use macvlan %s on the host beside those of %s, made if absent", s.Name, s.Parent)
}

func (s UseShim) do(r *run) error { return r.use(s) }

func (s UseShim) key() string { return "shim " + s.Parent }

func (s UseShim) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil && l.Type() == "macvlan", err
}

func (s UseShim) create(r *run, note func(Undo) error) error {
	m := undoLink{NS: r.host.ref, Name: s.Name, MAC: randomMAC(unicast)}
	if err := note(Undo{Link: &m}); err != nil {
		return err
	}
	spec := link.MacvlanSpec{Attrs: link.Attrs{Name: s.Name, MAC: m.MAC}, Parent: s.Parent, Mode: link.MacvlanBridge}
	l, err := link.Create(r.host.ns, spec, link.Target{})
	if err != nil {
		return err
	}
	// Where the host has no address of the container's network, this one's own is what it sends
	// from, at once: it is made of random bits, and nobody has to be asked about it.
	if err := setIPv6(r.host, s.Name, "accept_dad", "0"); err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// ShimAddress gives the shim an IPv6 address of the host's. Neighbours ask for it
// there, and a link answers for its own alone, other than with ARP
// (ndisc_recv_ns, net/ipv6/ndisc.c).
type ShimAddress struct {
	Shim string     `json:"shim"`
	Addr netip.Addr `json:"address"`
}

func (s ShimAddress) String() string {
	return fmt.Sprintf("have %s answer for the host's %s, too", s.Shim, s.Addr)
}

func (s ShimAddress) do(r *run) error { return r.use(s) }

func (s ShimAddress) key() string { return "shim address " + s.Shim + " " + s.Addr.String() }

func (s ShimAddress) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Shim)
	if err != nil || l == nil {
		return false, err
	}
	from, err := addressIn(r.host, l, netip.PrefixFrom(s.Addr, s.Addr.BitLen()))
	return from.IsValid(), err
}

func (s ShimAddress) create(r *run, note func(Undo) error) error {
	l, err := r.host.LinkByName(s.Shim)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	own := netip.PrefixFrom(s.Addr, s.Addr.BitLen())
	if err := note(Undo{Address: &undoAddress{NS: r.host.ref, Index: l.Attrs().Index, Prefix: own.String()}}); err != nil {
		return err
	}
	return addAddr(r.host, l.Attrs().Index, own)
}

// ShimRoute leads the host's packets for a container by the shim.
type ShimRoute struct {
	Shim string     `json:"shim"`
	To   netip.Addr `json:"to"`
	From netip.Addr `json:"from,omitzero"` // the host's own address on that network; zero: it has none
	// Leased: To is a lease's address, and the lease knows to remove this.
	Leased bool `json:"leased,omitempty"`
}

func (s ShimRoute) String() string {
	if !s.From.IsValid() {
		return fmt.Sprintf("route %s by %s on the host", s.To, s.Shim)
	}
	return fmt.Sprintf("route %s by %s on the host, from %s", s.To, s.Shim, s.From)
}

func (s ShimRoute) do(r *run) error {
	l, err := r.host.LinkByName(s.Shim)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	t := s.record(l.Attrs().Index)
	if !s.Leased {
		if err := r.record(Undo{Route: &undoRoute{NS: r.host.ref, Route: t}}); err != nil {
			return err
		}
	}
	err = r.host.RouteAdd(t.netlink())
	if errors.Is(err, unix.EEXIST) {
		return &TakenError{Resource: "route", Name: t.To.String(), Owner: "a route that the host has"}
	}
	return err
}

// there tells whether the host has the route.
func (s ShimRoute) exists(host *namespace) (bool, error) {
	l, err := host.find(s.Shim)
	if err != nil || l == nil {
		return false, err
	}
	t := s.record(l.Attrs().Index)
	all, err := host.RouteListFiltered(familyOf(s.To), t.netlink(), netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return false, fmt.Errorf("list routes of %q: %w", s.Shim, err)
	}
	return len(all) > 0, nil
}

// text is the route by the shim of this number.
func (s ShimRoute) record(shim int) routeRecord {
	return routeRecord{To: netip.PrefixFrom(s.To, s.To.BitLen()), From: s.From, Index: shim, Scope: unix.RT_SCOPE_LINK,
		Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC}
}
