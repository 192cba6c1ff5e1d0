package attach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gateway is a default route, in the place of one that is there.
func (p *planner) gateway(g netip.Addr) error {
	family := familyOf(g)
	old, err := defaultRoute(p.cont, family)
	if err != nil {
		return err
	}
	if old != nil {
		via := viaText(old)
		p.add(TakeRoute{Family: map[int]int{unix.AF_INET: 4, unix.AF_INET6: 6}[family], Via: via, route: *old})
		p.note("the container has a default route already (%s): it goes, and comes back when this is detached", via)
	}
	p.add(AddRoute{Link: p.spec.Name, Route: Route{To: defaultPrefix(family), Via: g}})
	return nil
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
func (s AddRoute) record(index int) routeRecord {
	t := routeRecord{To: s.Route.To, Via: s.Route.Via, Index: index}
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
func (s AddRoute) check(r *run) error {
	t := s.record(0)
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
	t := s.record(r.linkIndex)
	// It goes with the link, but what it took the place of comes back before that.
	if err := r.record(Undo{Route: &undoRoute{NS: r.cont.ref, Route: t}}); err != nil {
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

	route routeRecord
}

func (s TakeRoute) String() string {
	return fmt.Sprintf("take the container's default route %s away", s.Via)
}

func (s TakeRoute) do(r *run) error {
	if err := r.record(Undo{RouteRemoval: &undoRouteRemoval{NS: r.cont.ref, Route: s.route}}); err != nil {
		return err
	}
	return r.cont.RouteDel(s.route.netlink())
}

// defaultRoute is the container's default route that one of ours would collide
// with: of the main table, metric 0 (1024 of IPv6's); nil if there is none.
func defaultRoute(s *namespace, family int) (*routeRecord, error) {
	all, err := s.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: nil}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", s.ns, err)
	}
	for _, r := range all {
		t, ok := recordRoute(r, family)
		if !ok || t.To.Bits() != 0 {
			continue
		}
		if family == unix.AF_INET && t.Metric == 0 || family == unix.AF_INET6 && t.Metric <= 1024 {
			return &t, nil
		}
	}
	return nil, nil
}

func viaText(r *routeRecord) string {
	if r.Via.IsValid() {
		return "via " + r.Via.String()
	}
	return "without gateway"
}

// wayTo is the route of a side to an address and the link that it goes by; nil where
// there is none.
func routeTo(s *namespace, to netip.Addr, how *netlink.RouteGetOptions) (*netlink.Route, netlink.Link, error) {
	routes, err := s.RouteGetWithOptions(to.AsSlice(), how)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(routes) == 0 {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look for %s in %s: %w", to, s.ns, err)
	}
	l, err := s.LinkByIndex(routes[0].LinkIndex)
	if isNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look for %s in %s: %w", to, s.ns, err)
	}
	return &routes[0], l, nil
}

// routeText is a route as a journal remembers it.
type routeRecord struct {
	To       netip.Prefix `json:"to"` // a default route is 0.0.0.0/0 or ::/0
	Via      netip.Addr   `json:"via,omitzero"`
	From     netip.Addr   `json:"from,omitzero"` // preferred source
	Index    int          `json:"index"`         // of the device
	Table    int          `json:"table,omitempty"`
	Metric   int          `json:"metric,omitempty"`
	Scope    int          `json:"scope,omitempty"`
	Protocol int          `json:"protocol,omitempty"`
	Type     int          `json:"type,omitempty"`
	Flags    int          `json:"flags,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
}

// rememberRoute takes what we can remember of a route; false: it has more to it.
func recordRoute(r netlink.Route, family int) (routeRecord, bool) {
	if len(r.MultiPath) > 0 || r.NewDst != nil || r.Encap != nil || r.Via != nil {
		return routeRecord{}, false
	}
	t := routeRecord{
		To: defaultPrefix(family), Via: addrOf(r.Gw), From: addrOf(r.Src), Index: r.LinkIndex, Table: r.Table, Metric: r.Priority,
		Scope: int(r.Scope), Protocol: int(r.Protocol), Type: r.Type, Flags: r.Flags & unix.RTNH_F_ONLINK, MTU: r.MTU,
	}
	if r.Dst != nil {
		bits, _ := r.Dst.Mask.Size()
		t.To = netip.PrefixFrom(addrOf(r.Dst.IP), bits)
	}
	return t, t.To.IsValid()
}

func defaultPrefix(family int) netip.Prefix {
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// netlink is the route for the library.
func (t routeRecord) netlink() *netlink.Route {
	r := &netlink.Route{
		LinkIndex: t.Index, Table: t.Table, Priority: t.Metric, Scope: netlink.Scope(t.Scope),
		Protocol: netlink.RouteProtocol(t.Protocol), Type: t.Type, Flags: t.Flags, MTU: t.MTU,
		Dst: &net.IPNet{IP: t.To.Addr().AsSlice(), Mask: net.CIDRMask(t.To.Bits(), t.To.Addr().BitLen())},
	}
	if t.Via.IsValid() {
		r.Gw = t.Via.AsSlice()
	}
	if t.From.IsValid() {
		r.Src = t.From.AsSlice()
	}
	return r
}

// routeMade is a route of ours on a link that was there before.
type undoRoute struct {
	NS    nsRef       `json:"where"`
	Route routeRecord `json:"route"`
}

func (m *undoRoute) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	err = s.RouteDel(m.Route.netlink())
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
		return u.failed(s, fmt.Errorf("remove route %s: %w", m.Route.To, err))
	}
	return nil
}

// routeTaken is a route of somebody else's that had to go for one of ours.
type undoRouteRemoval struct {
	NS    nsRef       `json:"where"`
	Route routeRecord `json:"route"`
}

func (m *undoRouteRemoval) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	err = s.RouteAdd(m.Route.netlink())
	switch {
	case err == nil, errors.Is(err, unix.EEXIST): // it is there, or another in its place
		return nil
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENETUNREACH):
		u.note("the route to %s can't be put back: its link is gone or down", m.Route.To)
		return nil
	}
	return u.failed(s, fmt.Errorf("put route to %s back: %w", m.Route.To, err))
}
