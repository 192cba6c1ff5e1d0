package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Port makes the other end of a pair a port of a bridge on the host, and brings
// it up.
type Port struct {
	Link   string `json:"link"`
	Bridge string `json:"bridge,omitempty"` // "": of none
	VLAN   int    `json:"vlan,omitempty"`   // the one that it is in, without tags; 0: the bridge's default
}

func (s Port) String() string {
	switch {
	case s.Bridge == "":
		return fmt.Sprintf("bring %s up on the host", s.Link)
	case s.VLAN != 0:
		return fmt.Sprintf("make %s a port of %s in VLAN %d", s.Link, s.Bridge, s.VLAN)
	}
	return fmt.Sprintf("make %s a port of %s", s.Link, s.Bridge)
}

// foretell counts the ports of the bridge.
func (s Port) foretell(r *run) error {
	if s.Bridge == "" {
		return nil
	}
	br, err := r.host.find(s.Bridge)
	if err != nil || br == nil {
		return err
	}
	all, err := r.host.LinkList()
	if err != nil {
		return fmt.Errorf("list links of %s: %w", r.host.ns, err)
	}
	ports := 0
	for _, l := range all {
		if l.Attrs().MasterIndex == br.Attrs().Index {
			ports++
		}
	}
	if ports >= bridgePorts {
		return ErrBridgeFull
	}
	return nil
}

func (s Port) do(r *run) error {
	l := byIndex(r.peerLink)
	if s.Bridge != "" {
		br, err := r.host.LinkByName(s.Bridge)
		if err != nil {
			return fmt.Errorf("find bridge %q: %w", s.Bridge, err)
		}
		if err := r.host.LinkSetMasterByIndex(l, br.Attrs().Index); err != nil {
			return portError(err)
		}
	}
	if s.VLAN != 0 {
		if err := s.vlan(r); err != nil {
			return err
		}
	}
	return r.host.LinkSetUp(l)
}

// vlan takes the port out of the bridge's default VLAN and into ours.
func (s Port) vlan(r *run) error {
	p, err := link.Find(r.host.ns, s.Link)
	if err != nil {
		return err
	}
	before, err := p.VLANs()
	if err != nil {
		return err
	}
	for _, v := range before {
		if err := p.DeleteVLAN(v.ID); err != nil {
			return err
		}
	}
	return p.AddVLAN(link.PortVLAN{ID: s.VLAN, PVID: true, Untagged: true})
}

// bridgePorts is the most that a bridge can have (BR_PORT_BITS, net/bridge/br_private.h).
const bridgePorts = 1<<10 - 1

// ErrBridgeFull says that a bridge has all the ports that the kernel allows.
var ErrBridgeFull = fmt.Errorf("the bridge is full: Linux has %d ports a bridge", bridgePorts)

// portError explains why a bridge takes no port: br_add_if says EXFULL when the
// numbers are used up.
func portError(err error) error {
	if errors.Is(err, unix.EXFULL) {
		return fmt.Errorf("%w: %w", ErrBridgeFull, err)
	}
	return err
}

// SetLink changes what a device brought with it; it is restored when that goes
// home.
type SetLink struct {
	Link string   `json:"link"`
	MTU  int      `json:"mtu,omitempty"` // bytes
	MAC  link.MAC `json:"mac,omitzero"`
}

func (s SetLink) String() string {
	text := "set " + s.Link
	if s.MTU != 0 {
		text += fmt.Sprintf(" mtu %d", s.MTU)
	}
	if s.MAC != (link.MAC{}) {
		text += " address " + s.MAC.String()
	}
	return text
}

func (s SetLink) do(r *run) error {
	if s.MTU != 0 {
		if err := r.cont.LinkSetMTU(byIndex(r.link), s.MTU); err != nil {
			return fmt.Errorf("mtu: %w", err)
		}
	}
	if s.MAC != (link.MAC{}) {
		if err := r.cont.LinkSetHardwareAddr(byIndex(r.link), s.MAC[:]); err != nil {
			return fmt.Errorf("address: %w", err)
		}
	}
	return nil
}

// Up brings the link in the container up.
type Up struct {
	Link string `json:"link"`
}

func (s Up) String() string { return fmt.Sprintf("bring %s up", s.Link) }

func (s Up) foretell(r *run) error {
	if w := r.att.Spec; w.Kind != "macvlan" || w.MAC == (link.MAC{}) || r.ethernetHolder() == "" {
		return nil
	}
	return r.ethernetTaken()
}

// do finds out, too, whether a macvlan's address is another's on the same parent
// (macvlan_open, drivers/net/macvlan.c).
func (s Up) do(r *run) error {
	err := r.cont.LinkSetUp(byIndex(r.link))
	if errors.Is(err, unix.EADDRINUSE) {
		return r.ethernetTaken()
	}
	return err
}

// Address gives the link in the container an address.
type Address struct {
	Link   string       `json:"link"`
	Prefix netip.Prefix `json:"prefix"`
}

func (s Address) String() string { return fmt.Sprintf("give %s the address %s", s.Link, s.Prefix) }

func (s Address) do(r *run) error {
	err := addAddr(r.cont, r.link, s.Prefix)
	if errors.Is(err, unix.EEXIST) {
		return &TakenError{Resource: "address", Name: s.Prefix.Addr().String(), Owner: "another link of the container"}
	}
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("IPv6 is switched off there (net.ipv6.conf.%s.disable_ipv6): %w", s.Link, err)
	}
	return err
}

// AddRoute gives the container a route by the new link.
type AddRoute struct {
	Link  string `json:"link"`
	Route Route  `json:"route"`
	// OnLink has the kernel take the gateway for a neighbour though it is in none of
	// the link's networks.
	OnLink bool `json:"on_link,omitempty"`
}

func (s AddRoute) String() string { return fmt.Sprintf("route %s by %s", s.Route, s.Link) }

// text is the route by the link with this number.
func (s AddRoute) text(index int) routeText {
	t := routeText{To: s.Route.To, Via: s.Route.Via, Index: index}
	if !s.Route.Via.IsValid() {
		t.Scope = unix.RT_SCOPE_LINK
	}
	if s.OnLink {
		t.Flags = unix.RTNH_F_ONLINK
	}
	return t
}

// foretell looks for a route of the same metric: the kernel's choice, 0 or 1024 (IPv6). A
// default route gives way.
func (s AddRoute) foretell(r *run) error {
	t := s.text(0)
	if t.To.Bits() == 0 {
		return nil
	}
	family, metric := familyOf(t.To.Addr()), 0
	if family == unix.AF_INET6 {
		metric = 1024
	}
	all, err := r.cont.RouteListFiltered(family, t.netlink(), netlink.RT_FILTER_DST)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", r.cont.ns, err)
	}
	if !slices.ContainsFunc(all, func(has netlink.Route) bool { return has.Priority == metric }) {
		return nil
	}
	return s.taken()
}

func (s AddRoute) taken() error {
	return &TakenError{Resource: "route", Name: s.Route.To.String(), Owner: "a route that the container has"}
}

func (s AddRoute) do(r *run) error {
	t := s.text(r.link)
	// It goes with the link, but what it took the place of comes back before that.
	if err := r.record(Undo{Route: &routeMade{Where: r.cont.place, Route: t}}); err != nil {
		return err
	}
	err := r.cont.RouteAdd(t.netlink())
	if errors.Is(err, unix.EEXIST) {
		return s.taken()
	}
	if errors.Is(err, unix.ENETUNREACH) {
		return fmt.Errorf("its gateway is on none of the link's networks: %w", err)
	}
	return err
}

// TakeRoute takes a default route of the container's away that is in the place of
// the new one.
type TakeRoute struct {
	Family int    `json:"family"` // 4 or 6
	Via    string `json:"via"`    // as it was when the plan was made

	route routeText
}

func (s TakeRoute) String() string {
	return fmt.Sprintf("take the container's default route %s away", s.Via)
}

func (s TakeRoute) do(r *run) error {
	if err := r.record(Undo{Taken: &routeTaken{Where: r.cont.place, Route: s.route}}); err != nil {
		return err
	}
	return r.cont.RouteDel(s.route.netlink())
}

// defaultRoute is the container's default route that one of ours would collide
// with: of the main table, metric 0 (1024 of IPv6's); nil if there is none.
func defaultRoute(s *side, family int) (*routeText, error) {
	all, err := s.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: nil}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", s.ns, err)
	}
	for _, r := range all {
		t, ok := rememberRoute(r, family)
		if !ok || t.To.Bits() != 0 {
			continue
		}
		if family == unix.AF_INET && t.Metric == 0 || family == unix.AF_INET6 && t.Metric <= 1024 {
			return &t, nil
		}
	}
	return nil, nil
}
