package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shim plans a macvlan device of the host through which host and container reach each other.
func (p *planner) shim(parent string) error {
	name := shimOf(parent)
	p.add(UseShim{Parent: parent, Name: name})
	for _, ip := range p.spec.Addresses {
		if ip.Addr().IsLinkLocalUnicast() {
			continue // its users name the link
		}
		from, err := p.host.addressOn(parent, func(own netip.Prefix) bool { return ip.Contains(own.Addr()) })
		if err != nil {
			return err
		}
		switch {
		case !from.IsValid():
			p.note("the host has no address in %s, so its packets to %s have another of its addresses as source", ip.Masked(), ip.Addr())
		case from.Is6():
			p.add(ShimAddress{Shim: name, Addr: from})
		}
		p.add(ShimRoute{Shim: name, To: ip.Addr(), From: from})
	}
	return nil
}

// shimOf returns the name of the host's shim on a parent.
func shimOf(parent string) string { return DeviceName("shim-" + parent) }

// UseShim makes the attachment a user of a macvlan device of the host on the same parent. The
// parent itself exchanges no packets with the macvlan devices on it.
type UseShim struct {
	Parent string `json:"parent"`
	Name   string `json:"name"`
}

func (s UseShim) String() string {
	return fmt.Sprintf("use macvlan %s on %s for the host (created if absent)", s.Name, s.Parent)
}

func (s UseShim) do(r *run) error { return r.use(s) }

// key tells shims by their names: versions of cleat whose names for shims on parents with long
// names were others leave shims that still have users.
func (s UseShim) key() string { return "shim " + strings.TrimPrefix(s.Name, "shim-") }

func (s UseShim) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil && l.Type() == "macvlan", err
}

func (s UseShim) create(r *run, record func(Undo) error) error {
	m := undoLink{NS: r.host.ref, Name: s.Name, MAC: randomMAC(unicast), Type: "macvlan"}
	l, err := r.host.createLink(record, m, false, func(name string) (*link.Link, error) {
		spec := link.MacvlanSpec{Attrs: link.Attrs{Name: name, MAC: m.MAC}, Parent: s.Parent, Mode: link.MacvlanBridge}
		return link.Create(r.host.ns, spec, link.Target{})
	})
	if err != nil {
		return err
	}
	// Where the host has no address in the container's network, it sends from the shim's
	// link-local one. That is made of random bits, so it can be used without a check for
	// duplicates.
	if err := r.host.setIPv6(s.Name, "accept_dad", "0"); err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// ShimAddress adds an IPv6 address of the host to the shim, where the containers ask for it.
// Unlike with ARP, a link answers only for its own addresses (ndisc_recv_ns,
// net/ipv6/ndisc.c).
type ShimAddress struct {
	Shim string     `json:"shim"`
	Addr netip.Addr `json:"address"`
}

func (s ShimAddress) String() string {
	return fmt.Sprintf("add the host's address %s to %s", s.Addr, s.Shim)
}

func (s ShimAddress) do(r *run) error { return r.use(s) }

func (s ShimAddress) key() string { return "shim address " + s.Shim + " " + s.Addr.String() }

func (s ShimAddress) exists(r *run) (bool, error) {
	a, err := r.host.addressOn(s.Shim, func(own netip.Prefix) bool { return own.Addr() == s.Addr })
	return a.IsValid(), err
}

func (s ShimAddress) create(r *run, record func(Undo) error) error {
	l, err := r.host.mustFind(s.Shim)
	if err != nil {
		return err
	}
	own := netip.PrefixFrom(s.Addr, s.Addr.BitLen())
	if err := record(Undo{Address: &undoAddress{NS: r.host.ref, Index: l.Attrs().Index, Prefix: own}}); err != nil {
		return err
	}
	return r.host.addAddr(l.Attrs().Index, own)
}

// ShimRoute routes the host's packets for a container through the shim or, of kind netkit,
// through the other end of the pair.
type ShimRoute struct {
	Shim string     `json:"shim"` // a device of the host
	To   netip.Addr `json:"to"`
	From netip.Addr `json:"from,omitzero"` // preferred source address; zero: the kernel's choice
	// Leased means that To is a leased address. The route is not recorded, because it is
	// removed with the lease.
	Leased bool `json:"leased,omitempty"`
}

func (s ShimRoute) String() string {
	if !s.From.IsValid() {
		return fmt.Sprintf("route %s through %s on the host", s.To, s.Shim)
	}
	return fmt.Sprintf("route %s through %s on the host, from %s", s.To, s.Shim, s.From)
}

func (s ShimRoute) do(r *run) error {
	l, err := r.host.mustFind(s.Shim)
	if err != nil {
		return err
	}
	t := s.routeRecord(l.Attrs().Index)
	if !s.Leased {
		if err := r.record(Undo{Route: &undoRoute{NS: r.host.ref, Route: t}}); err != nil {
			return err
		}
	}
	err = r.host.withIPv6(s.Shim, func() error { return r.host.RouteAdd(t.netlink()) })
	if errors.Is(err, unix.EEXIST) {
		return &TakenError{Resource: "route", Name: t.To.String(), Owner: "an existing route of the host"}
	}
	return err
}

func (s ShimRoute) exists(host *namespace) (bool, error) {
	l, err := host.find(s.Shim)
	if l == nil {
		return false, err
	}
	t := s.routeRecord(l.Attrs().Index)
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return host.RouteListFiltered(familyOf(s.To), t.netlink(), netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list routes of %q: %w", s.Shim, err)
	}
	return len(all) > 0, nil
}

// routeRecord returns the route through the shim with this index.
func (s ShimRoute) routeRecord(shim int) routeRecord {
	return routeRecord{To: netip.PrefixFrom(s.To, s.To.BitLen()), From: s.From, Index: shim, Scope: unix.RT_SCOPE_LINK,
		Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC}
}
