package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (p *planner) gateway(g netip.Addr) error {
	add := AddRoute{Link: p.spec.Name, Route: Route{To: defaultPrefix(familyOf(g)), Via: g, Metric: p.spec.RouteMetric}, MTU: p.gatewayMTU(g)}
	if p.spec.RouteMetric != 0 {
		p.add(add)
		return nil
	}
	steps, note, err := p.cont.defaultRouteSteps(add)
	p.add(steps...)
	if note != "" {
		p.note("%s", note)
	}
	return err
}

// defaultRouteSteps returns the steps that add a default route and remove the one that it
// replaces, if there is one. The note says so.
func (n *namespace) defaultRouteSteps(add AddRoute) (steps []Step, note string, err error) {
	old, err := n.defaultRoute(familyOf(add.Route.To.Addr()))
	if old == nil {
		return []Step{add}, "", err
	}
	via := "without a gateway"
	if old.Via.IsValid() {
		via = "via " + old.Via.String()
	}
	note = fmt.Sprintf("the container's default route (%s) is replaced until the link is detached", via)
	return []Step{TakeRoute{Family: ipVersion(old.To.Addr()), Via: via, route: *old}, add}, note, nil
}

// AddRoute adds a route through the link to the container.
type AddRoute struct {
	Link  string `json:"link"`
	Route Route  `json:"route"`
	// OnLink makes the kernel accept a gateway that is in none of the link's networks.
	OnLink bool `json:"on_link,omitempty"`
	MTU    int  `json:"mtu,omitempty"` // in bytes; 0: the link's
}

func (s AddRoute) String() string {
	if s.Route.Type != RouteUnicast || s.Route.AnyLink {
		return fmt.Sprintf("route %s", s.Route)
	}
	return fmt.Sprintf("route %s through %s", s.Route, s.Link)
}

// routeRecord returns the route through the link with this index.
func (s AddRoute) routeRecord(index int) routeRecord {
	t := routeRecord{To: s.Route.To, Via: s.Route.Via, Index: index, MTU: s.MTU, Metric: s.Route.Metric}
	switch {
	case s.Route.Type != RouteUnicast:
		t.Type, t.Index = routeTypes[s.Route.Type], 0
	case s.Route.AnyLink:
		t.Index = 0
	case !s.Route.Via.IsValid():
		t.Scope = unix.RT_SCOPE_LINK
	}
	if s.OnLink {
		t.Flags = unix.RTNH_F_ONLINK
	}
	return t
}

// routeTypes are the kernel's numbers of Route.Type.
var routeTypes = map[string]int{RouteBlackhole: unix.RTN_BLACKHOLE, RouteUnreachable: unix.RTN_UNREACHABLE, RouteProhibit: unix.RTN_PROHIBIT}

// check looks for a route with the metric that the kernel will choose: 0, or 1024 for IPv6. It
// ignores default routes, because they are replaced.
func (s AddRoute) check(r *run) error {
	t := s.routeRecord(0)
	if t.To.Bits() == 0 {
		return nil
	}
	family, metric := familyOf(t.To.Addr()), 0
	if family == unix.AF_INET6 {
		metric = 1024
	}
	metric = cmp.Or(t.Metric, metric)
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return r.cont.RouteListFiltered(family, t.netlink(), netlink.RT_FILTER_DST)
	})
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", r.cont.ns, err)
	}
	if !slices.ContainsFunc(all, func(old netlink.Route) bool { return old.Priority == metric }) {
		return nil
	}
	return s.taken()
}

func (s AddRoute) taken() error {
	return &TakenError{Resource: "route", Name: s.Route.To.String(), Owner: "an existing route of the container"}
}

func (s AddRoute) do(r *run) error {
	t := s.routeRecord(r.linkIndex)
	// The route goes with the link, but the one that it replaces is restored before that.
	if err := r.record(Undo{Route: &undoRoute{NS: r.cont.ref, Route: t}}); err != nil {
		return err
	}
	err := r.cont.RouteAdd(t.netlink())
	if errors.Is(err, unix.EEXIST) {
		return s.taken()
	}
	if errors.Is(err, unix.ENETUNREACH) {
		return fmt.Errorf("the gateway is in none of the link's networks: %w", err)
	}
	return err
}

// TakeRoute removes a default route of the container, which the new one replaces.
type TakeRoute struct {
	Family int    `json:"family"` // 4 or 6
	Via    string `json:"via"`    // as in the plan

	route routeRecord
}

func (s TakeRoute) String() string {
	return fmt.Sprintf("remove the container's default route %s", s.Via)
}

func (s TakeRoute) do(r *run) error {
	if err := r.record(Undo{RouteRemoval: &undoRouteRemoval{NS: r.cont.ref, Route: s.route}}); err != nil {
		return err
	}
	return r.cont.RouteDel(s.route.netlink())
}

// defaultRoute returns the default route that a new one would collide with: in the main table,
// with metric 0, or up to 1024 for IPv6; nil if there is none.
func (n *namespace) defaultRoute(family int) (*routeRecord, error) {
	return n.defaultRouteIn(unix.RT_TABLE_MAIN, family)
}

// defaultRouteIn is defaultRoute for a routing table.
func (n *namespace) defaultRouteIn(table, family int) (*routeRecord, error) {
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return n.RouteListFiltered(family, &netlink.Route{Table: table, Dst: nil}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", n.ns, err)
	}
	for _, r := range all {
		t, ok := newRouteRecord(r, family)
		if ok && t.To.Bits() == 0 && (t.Metric == 0 || family == unix.AF_INET6 && t.Metric <= 1024) {
			return &t, nil
		}
	}
	return nil, nil
}

// HasDefaultRoute reports whether a namespace has a default route for an address family, 4 or
// 6.
func HasDefaultRoute(ns *netns.NS, family int) (bool, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return false, err
	}
	defer h.Close()
	af := unix.AF_INET
	if family == 6 {
		af = unix.AF_INET6
	}
	r, err := (&namespace{ns: ns, Handle: h}).defaultRoute(af)
	return r != nil, err
}

// DefaultRouteMetrics returns the metrics of a namespace's default routes for an address family, 4 or 6,
// in the main table.
func DefaultRouteMetrics(ns *netns.NS, family int) (all []int, err error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	af := unix.AF_INET
	if family == 6 {
		af = unix.AF_INET6
	}
	routes, err := link.Dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(af, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: nil}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", ns, err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			all = append(all, r.Priority)
		}
	}
	return all, nil
}

// routeTo returns the route to an address and the link that it uses; nil if there is none.
func (n *namespace) routeTo(to netip.Addr, options *netlink.RouteGetOptions) (*netlink.Route, netlink.Link, error) {
	routes, err := n.RouteGetWithOptions(to.AsSlice(), options)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(routes) == 0 {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find route to %s in %s: %w", to, n.ns, err)
	}
	l, err := n.findIndex(routes[0].LinkIndex)
	if l == nil {
		return nil, nil, err
	}
	return &routes[0], l, nil
}

// routeRecord is a route in a journal.
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

// newRouteRecord returns the record of a route. ok is false if the route has properties that a
// record can't hold.
func newRouteRecord(r netlink.Route, family int) (t routeRecord, ok bool) {
	if len(r.MultiPath) > 0 || r.NewDst != nil || r.Encap != nil || r.Via != nil {
		return routeRecord{}, false
	}
	t = routeRecord{
		To: defaultPrefix(family), Via: addrOf(r.Gw), From: addrOf(r.Src), Index: r.LinkIndex, Table: r.Table, Metric: r.Priority,
		Scope: int(r.Scope), Protocol: int(r.Protocol), Type: r.Type, Flags: r.Flags & unix.RTNH_F_ONLINK, MTU: r.MTU,
	}
	if r.Dst != nil {
		t.To = prefixOf(r.Dst)
	}
	return t, t.To.IsValid()
}

// defaultPrefix returns 0.0.0.0/0 or ::/0.
func defaultPrefix(family int) netip.Prefix {
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// netlink returns the route for the netlink library.
func (t routeRecord) netlink() *netlink.Route {
	r := &netlink.Route{
		LinkIndex: t.Index, Table: t.Table, Priority: t.Metric, Scope: netlink.Scope(t.Scope),
		Protocol: netlink.RouteProtocol(t.Protocol), Type: t.Type, Flags: t.Flags, MTU: t.MTU,
		Dst: ipNet(t.To),
	}
	if t.Via.IsValid() {
		r.Gw = t.Via.AsSlice()
	}
	if t.From.IsValid() {
		r.Src = t.From.AsSlice()
	}
	return r
}

type undoRoute struct {
	NS    nsRef       `json:"where"`
	Route routeRecord `json:"route"`
}

func (m *undoRoute) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	err = n.RouteDel(m.Route.netlink())
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
		return u.failed(n, fmt.Errorf("remove route %s: %w", m.Route.To, err))
	}
	return nil
}

// undoRouteRemoval restores a route that was removed in favour of another.
type undoRouteRemoval undoRoute

func (m *undoRouteRemoval) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	err = n.RouteAdd(m.Route.netlink())
	switch {
	case err == nil, errors.Is(err, unix.EEXIST): // it exists, or another in its place
		return nil
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENETUNREACH):
		u.note("the route to %s can't be restored: its link is gone or down", m.Route.To)
		return nil
	}
	return u.failed(n, fmt.Errorf("restore route to %s: %w", m.Route.To, err))
}
