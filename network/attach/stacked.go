package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// UseVLAN has a VLAN of a device on the host, for links that stand on it.
type UseVLAN struct {
	Parent string `json:"parent"`
	ID     int    `json:"id"`
	Name   string `json:"name"`
}

func (s UseVLAN) String() string {
	return fmt.Sprintf("use VLAN %d of %s as %s, made if absent", s.ID, s.Parent, s.Name)
}

func (s UseVLAN) do(r *run) error { return r.share(s) }
func (s UseVLAN) key() string     { return "vlan " + s.Name }

// there tells also whether what has the name is that VLAN.
func (s UseVLAN) there(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	if err != nil || l == nil {
		return false, err
	}
	parent, err := r.host.LinkByName(s.Parent)
	if err != nil {
		return false, fmt.Errorf("find parent %q: %w", s.Parent, err)
	}
	if v, ok := l.(*netlink.Vlan); !ok || v.VlanId != s.ID || l.Attrs().ParentIndex != parent.Attrs().Index {
		return false, &TakenError{Resource: "link", Name: s.Name, Owner: fmt.Sprintf("a device of the host that is not VLAN %d of %s", s.ID, s.Parent)}
	}
	return true, nil
}

func (s UseVLAN) make(r *run, note func(Undo) error) error {
	if there, err := s.there(r); err != nil || there {
		return err
	}
	temp := tempName()
	if err := note(Undo{Link: &linkMade{Where: r.host.place, Name: temp}}); err != nil {
		return err
	}
	l, err := link.Create(r.host.ns, link.VLANSpec{Attrs: link.Attrs{Name: temp}, Parent: s.Parent, ID: s.ID}, link.Target{})
	if err != nil {
		return err
	}
	if err := note(Undo{Link: &linkMade{Where: r.host.place, Name: s.Name, Index: l.Index(), Type: "vlan"}}); err != nil {
		return err
	}
	if err := r.host.LinkSetName(byIndex(l.Index()), s.Name); err != nil {
		return fmt.Errorf("rename it: %w", err)
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// SameMode keeps the mode of a parent's ipvlan devices: a device that is made with
// another changes that of all.
type SameMode struct {
	Parent string `json:"parent"`
	Mode   string `json:"mode"`
}

func (s SameMode) String() string {
	return fmt.Sprintf("see to it that all ipvlan devices of %s have mode %s", s.Parent, s.Mode)
}

func (s SameMode) do(r *run) error { return r.share(s) }
func (s SameMode) key() string     { return "ipvlan " + s.Parent + " " + s.Mode }

func (s SameMode) there(r *run) (bool, error) {
	for _, mode := range modesOf("ipvlan") {
		other := SameMode{Parent: s.Parent, Mode: mode}
		if mode != s.Mode && sharedReady(r.store.shared(r.sharedKey(other))) {
			return false, &SpecError{Param: "mode", Value: s.Mode, Allowed: []string{mode},
				Reason: fmt.Sprintf("the ipvlan devices of %s have mode %s, and all of a parent have the same", s.Parent, mode)}
		}
	}
	return true, nil
}

func (s SameMode) make(r *run, _ func(Undo) error) error {
	_, err := s.there(r)
	return err
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

func (s UseShim) do(r *run) error { return r.share(s) }
func (s UseShim) key() string     { return "shim " + s.Parent }

func (s UseShim) there(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil && l.Type() == "macvlan", err
}

func (s UseShim) make(r *run, note func(Undo) error) error {
	m := linkMade{Where: r.host.place, Name: s.Name, MAC: randomMAC(unicast)}
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

func (s ShimAddress) do(r *run) error { return r.share(s) }
func (s ShimAddress) key() string     { return "shim address " + s.Shim + " " + s.Addr.String() }

func (s ShimAddress) there(r *run) (bool, error) {
	l, err := r.host.find(s.Shim)
	if err != nil || l == nil {
		return false, err
	}
	from, err := addressIn(r.host, l, netip.PrefixFrom(s.Addr, s.Addr.BitLen()))
	return from.IsValid(), err
}

func (s ShimAddress) make(r *run, note func(Undo) error) error {
	l, err := r.host.LinkByName(s.Shim)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	own := netip.PrefixFrom(s.Addr, s.Addr.BitLen())
	if err := note(Undo{Addr: &addrMade{Where: r.host.place, Index: l.Attrs().Index, Prefix: own.String()}}); err != nil {
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
	t := s.text(l.Attrs().Index)
	if !s.Leased {
		if err := r.record(Undo{Route: &routeMade{Where: r.host.place, Route: t}}); err != nil {
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
func (s ShimRoute) there(host *side) (bool, error) {
	l, err := host.find(s.Shim)
	if err != nil || l == nil {
		return false, err
	}
	t := s.text(l.Attrs().Index)
	all, err := host.RouteListFiltered(familyOf(s.To), t.netlink(), netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return false, fmt.Errorf("list routes of %q: %w", s.Shim, err)
	}
	return len(all) > 0, nil
}

// text is the route by the shim of this number.
func (s ShimRoute) text(shim int) routeText {
	return routeText{To: netip.PrefixFrom(s.To, s.To.BitLen()), From: s.From, Index: shim, Scope: unix.RT_SCOPE_LINK,
		Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC}
}
