package why

import (
	"context"
	"fmt"
	"net/netip"

	"cleat/internal/columns"
	"cleat/link"
	"cleat/network/named"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is how the source's kernel sends packets to a target.
type route struct {
	err     error // there is none
	link    string
	index   int
	source  netip.Addr
	gateway netip.Addr   // zero: the target is on the link
	prefix  netip.Prefix // of the route that matches
	mtu     int          // bytes, of the link
	local   bool         // the target is an address of the source itself
	special string       // "blackhole" and so on, for a route that discards
}

// next returns the address that the source asks its neighbours for.
func (r *route) next(to netip.Addr) netip.Addr {
	if r.gateway.IsValid() {
		return r.gateway
	}
	return to
}

// routes asks the source's kernel for its routes to the targets.
func (v *investigation) routes(context.Context) {
	h, err := link.Handle(v.from.ns)
	if err != nil {
		for _, t := range v.targets {
			t.route.err = err
		}
		return
	}
	defer h.Close()
	for _, t := range v.targets {
		t.route = routeTo(h, t.addr)
	}
}

func routeTo(h *netlink.Handle, to netip.Addr) route {
	found, err := h.RouteGet(to.AsSlice())
	if err == nil && len(found) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return discarding(h, to, err)
	}
	f := found[0]
	r := route{index: f.LinkIndex, local: f.Type == unix.RTN_LOCAL, prefix: netip.PrefixFrom(to, to.BitLen())}
	r.source, _ = addrOf(f.Src)
	r.gateway, _ = addrOf(f.Gw)
	if l, err := h.LinkByIndex(f.LinkIndex); err == nil {
		r.link, r.mtu = l.Attrs().Name, l.Attrs().MTU
	}
	if match, err := h.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true}); err == nil && len(match) > 0 {
		r.prefix = prefixOf(match[0], to)
	}
	return r
}

// prefixOf returns the destination of a route to an address.
func prefixOf(r netlink.Route, to netip.Addr) netip.Prefix {
	if r.Dst == nil {
		return netip.PrefixFrom(to, 0).Masked()
	}
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(to, bits).Masked()
}

// discards are the types of routes that discard packets, as ip-route(8) calls them.
var discards = map[int]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

// discarding returns the route that discards packets to an address, if one does. err is what
// the kernel says without one.
func discarding(h *netlink.Handle, to netip.Addr, err error) route {
	r := route{err: err}
	family := netlink.FAMILY_V4
	if to.Is6() {
		family = netlink.FAMILY_V6
	}
	all, listErr := link.Dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if listErr != nil {
		return r
	}
	for _, one := range all {
		if discards[one.Type] == "" || one.Dst == nil || !one.Dst.Contains(to.AsSlice()) {
			continue
		}
		if p := prefixOf(one, to); !r.prefix.IsValid() || p.Bits() > r.prefix.Bits() {
			r.prefix, r.special = p, discards[one.Type]
		}
	}
	return r
}

// checkRoute checks that the source sends packets to a target by its link to the right network.
// It returns the route in words; "" if it is wrong.
func (v *investigation) checkRoute(t *target) string {
	e, n := v.linkTo(t)
	if f := v.routeFault(t, e, n); f != nil {
		f.about, f.explains = t, failure
		v.bad(checkKernel, *f)
		return ""
	}
	switch r := t.route; {
	case r.err != nil:
		return ""
	case r.local:
		return fmt.Sprintf("%s is an address of %s itself", t.addr, v.from.label)
	case r.gateway.IsValid():
		return fmt.Sprintf("route to %s by %s via %s", t.addr, r.link, r.gateway)
	default:
		return fmt.Sprintf("route to %s by %s", t.addr, r.link)
	}
}

// linkTo returns the endpoint of the source through which it should send packets to a target,
// and the endpoint's network; nil if that is not known, because the target is outside.
func (v *investigation) linkTo(t *target) (*named.Endpoint, *named.Network) {
	if t.at == nil || t.at != v.host && t.endpoint == nil {
		return nil, nil
	}
	return v.sourceNetwork(t)
}

// sourceNetwork returns the endpoint of the source from which packets to a target should come,
// and its network; nil if there is none.
func (v *investigation) sourceNetwork(t *target) (*named.Endpoint, *named.Network) {
	e, _ := v.source(t)
	if e == nil {
		return nil, nil
	}
	return e, v.network(e.Network)
}

// routeFault returns what is wrong with the route to a target; nil if nothing is.
func (v *investigation) routeFault(t *target, e *named.Endpoint, n *named.Network) *finding {
	r := t.route
	switch {
	case r.special != "":
		return &finding{cause: WrongRoute, because: fmt.Sprintf("a route of %s discards packets to %s: %s %s", v.from.label, t.addr, r.special, r.prefix),
			try: v.from.inside(fmt.Sprintf("ip route del %s %s", r.special, r.prefix))}
	case r.err != nil:
		return &finding{cause: NoRoute, because: fmt.Sprintf("%s has no route to %s", v.from.label, t.addr), try: v.addRoute(t, e, n)}
	case e == nil || n == nil || r.local:
		return nil
	}
	near := subnetOf(n, t.addr).IsValid()
	switch detour := r.gateway.IsValid() && n.Driver != named.Routed; {
	case r.link == e.Interface && !(near && detour):
		return nil
	case near:
		return &finding{cause: WrongRoute, because: fmt.Sprintf("%s sends packets to %s %s, not straight to its network %s by %s", v.from.label, t.addr, r.wayText(), n.Name, e.Interface),
			try: v.from.inside("ip route del " + r.command())}
	case n.OnHost():
		return &finding{cause: WrongRoute, because: fmt.Sprintf("%s sends packets to %s %s, not by %s, its link to %s", v.from.label, t.addr, r.wayText(), e.Interface, n.Name),
			try: v.addRoute(t, e, n)}
	}
	return nil
}

// wayText returns which way a route leads.
func (r *route) wayText() string {
	if r.gateway.IsValid() {
		return fmt.Sprintf("by %s via %s", r.link, r.gateway)
	}
	return "by " + r.link
}

// command returns the route as ip-route(8) reads it.
func (r *route) command() string {
	text := r.prefix.String()
	if r.prefix.Bits() == 0 {
		text = "default"
	}
	if r.gateway.IsValid() {
		text += " via " + r.gateway.String()
	}
	return text + " dev " + columns.Word(r.link)
}

// checkWayBack checks, if a probe was not answered, that a container has a route to where the
// packets come from.
func (v *investigation) checkWayBack(t *target) {
	m, source := t.machine(), t.route.source
	e, _ := v.destination(t)
	if t.outcome&lost == 0 || !source.IsValid() || m == nil || m.ns == nil || m.isHost || m == v.from {
		return
	}
	h, err := link.Handle(m.ns)
	if err != nil {
		return
	}
	defer h.Close()
	back := routeTo(h, source)
	if back.err == nil {
		return
	}
	f := finding{cause: NoRoute, about: t, explains: lost, because: fmt.Sprintf("%s has no route back to %s", m.label, source)}
	if back.special != "" {
		f.because = fmt.Sprintf("a route of %s discards packets back to %s: %s %s", m.label, source, back.special, back.prefix)
		f.try = m.inside(fmt.Sprintf("ip route del %s %s", back.special, back.prefix))
	} else if n := v.network(e.Network); n != nil {
		f.try = addRouteIn(m, n, netip.PrefixFrom(source, source.BitLen()))
	}
	v.bad(checkKernel, f)
}

// addRoute returns the command that adds a route to a target through the gateway of one of the
// source's networks; "" if there is no gateway.
func (v *investigation) addRoute(t *target, e *named.Endpoint, n *named.Network) string {
	if e == nil || n == nil {
		return ""
	}
	to := netip.PrefixFrom(t.addr, t.addr.BitLen())
	if t.endpoint != nil {
		if other := v.network(t.endpoint.Network); other != nil && subnetOf(other, t.addr).IsValid() {
			to = subnetOf(other, t.addr)
		}
	}
	return addRouteIn(v.from, n, to)
}

// addRouteIn returns the command that adds a route through the gateway of a network to a
// machine; "" if the network has no gateway.
func addRouteIn(m *machine, n *named.Network, to netip.Prefix) string {
	for _, s := range n.Subnets {
		if n.OnHost() && s.Gateway.Is4() == to.Addr().Is4() {
			return m.inside(fmt.Sprintf("ip route add %s via %s", to, s.Gateway))
		}
	}
	return ""
}
