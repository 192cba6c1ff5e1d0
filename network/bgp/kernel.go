package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Protocol marks the routes of this package (rtm_protocol, include/uapi/linux/rtnetlink.h). RTPROT_BGP would not do:
// a routing daemon of the host may have it, and the routes of both would be taken for each other's.
const Protocol = 0xc2

// Metric is that of the routes. The kernel replaces a route of any protocol that has the same prefix and metric, so
// it is one that nobody chooses by accident. Routes by VXLAN (package span) have larger metrics, so a route of BGP
// comes before them.
const Metric = 179

// Kernel is the Sink that writes routes into the main table of a network namespace.
type Kernel struct{ NS *netns.NS }

// hop is a next hop as the kernel has it: an address on a link.
type hop struct {
	addr   netip.Addr
	device int
}

// entry is a route as the kernel has it.
type entry struct {
	to     netip.Prefix
	hops   []hop // sorted
	source netip.Addr
}

func (e entry) equal(o entry) bool {
	return e.to == o.to && e.source == o.source && slices.Equal(e.hops, o.hops)
}

// Sync implements Sink. One route that can't be written keeps no other from being so.
func (k *Kernel) Sync(routes []Route, keep func(Route) bool) (changed []string, err error) {
	h, err := link.Handle(k.NS)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s := &syncer{h: h, keep: keep, found: map[netip.Addr][]hop{}}
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		errs = append(errs, s.family(family, routes))
	}
	return s.changed, errors.Join(errs...)
}

// Remove removes all routes.
func (k *Kernel) Remove() error {
	_, err := k.Sync(nil, nil)
	return err
}

// Prefixes returns the prefixes that routes in the kernel lead to.
func (k *Kernel) Prefixes() (all []netip.Prefix, err error) {
	h, err := link.Handle(k.NS)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := list(h, family)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Protocol == Protocol {
				all = append(all, parse(r, family).to)
			}
		}
	}
	return all, nil
}

// list returns the routes of the main table.
func list(h *netlink.Handle, family int) ([]netlink.Route, error) {
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // the kernel lacks the family
	}
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return all, nil
}

// syncer compares and changes.
type syncer struct {
	h       *netlink.Handle
	keep    func(Route) bool
	found   map[netip.Addr][]hop // next hops that were looked up
	changed []string
}

// family makes the routes of an address family.
func (s *syncer) family(family int, routes []Route) error {
	have, err := list(s.h, family)
	if err != nil {
		return err
	}
	links := map[netip.Prefix]bool{} // prefixes on links of this host
	for _, r := range have {
		if r.Protocol == unix.RTPROT_KERNEL {
			links[parse(r, family).to] = true
		}
	}
	wanted := map[netip.Prefix]entry{}
	var errs []error
	for _, r := range routes {
		if r.Prefix.Addr().Is4() != (family == unix.AF_INET) || links[r.Prefix] {
			continue
		}
		if e := s.resolve(r); len(e.hops) > 0 {
			wanted[e.to] = e
		} else {
			errs = append(errs, fmt.Errorf("no way to %s, the next hop to %s", r.Hops[0], r.Prefix))
		}
	}
	for _, r := range have {
		if r.Protocol != Protocol {
			continue
		}
		old := parse(r, family)
		want, ok := wanted[old.to]
		switch {
		case ok && r.Priority == Metric && want.equal(old):
			delete(wanted, old.to)
		case ok && r.Priority == Metric: // replaced below
		case s.keep != nil && s.keep(old.route()):
		default:
			s.changed = append(s.changed, fmt.Sprintf("route to %s removed", old.to))
			if err := s.h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove route to %s: %w", old.to, err))
			}
		}
	}
	for _, e := range wanted {
		if err := s.h.RouteReplace(e.netlink(family)); err != nil {
			errs = append(errs, fmt.Errorf("set route to %s: %w", e.to, err))
			continue
		}
		s.changed = append(s.changed, fmt.Sprintf("route to %s", e.to))
	}
	slices.Sort(s.changed)
	const most = 5 // of errors: one cause often has many
	if errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(errs) > most {
		errs = append(errs[:most], fmt.Errorf("and %d more", len(errs)-most))
	}
	return errors.Join(errs...)
}

// resolve returns a route with next hops on links of this host.
func (s *syncer) resolve(r Route) entry {
	e := entry{to: r.Prefix, source: r.Source}
	for _, a := range r.Hops {
		if _, ok := s.found[a]; !ok {
			s.found[a] = s.lookUp(a)
		}
		for _, h := range s.found[a] {
			switch {
			case slices.Contains(e.hops, h):
			case h.addr.Is4() && r.Prefix.Addr().Is6(): // the kernel has no such routes
			case r.Prefix.Bits() == 0 && h.addr != a.WithZone(""): // a default route must not depend on another one
			default:
				e.hops = append(e.hops, h)
			}
		}
	}
	sortHops(e.hops)
	return e
}

func sortHops(all []hop) {
	slices.SortFunc(all, func(a, b hop) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.device, b.device)) })
}

// lookUp returns the next hops on links by which an address is reached. None: it is this host's own, or it is
// reached by a route of this package, which could lead in a circle.
func (s *syncer) lookUp(a netip.Addr) (hops []hop) {
	if a.Zone() != "" {
		l, err := s.h.LinkByName(a.Zone())
		if err != nil {
			return nil
		}
		return []hop{{a.WithZone(""), l.Attrs().Index}}
	}
	if a.IsLinkLocalUnicast() {
		return nil
	}
	routes, err := s.h.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST || routes[0].Protocol == Protocol {
		return nil
	}
	for _, h := range hopsOf(routes[0]) {
		if !h.addr.IsValid() {
			h.addr = a
		}
		hops = append(hops, h)
	}
	return hops
}

// hopsOf returns the next hops of a route. Those without an address are links.
func hopsOf(r netlink.Route) (hops []hop) {
	one := func(gw net.IP, via netlink.Destination, device int) {
		a, _ := netip.AddrFromSlice(gw)
		if v, ok := via.(*netlink.Via); ok {
			a, _ = netip.AddrFromSlice(v.Addr)
		}
		hops = append(hops, hop{a.Unmap(), device})
	}
	if len(r.MultiPath) == 0 {
		one(r.Gw, r.Via, r.LinkIndex)
	}
	for _, m := range r.MultiPath {
		one(m.Gw, m.Via, m.LinkIndex)
	}
	sortHops(hops)
	return hops
}

func parse(r netlink.Route, family int) entry {
	e := entry{hops: hopsOf(r)}
	e.source, _ = netip.AddrFromSlice(r.Src)
	e.source = e.source.Unmap()
	switch {
	case r.Dst != nil:
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		e.to = netip.PrefixFrom(a.Unmap(), bits)
	case family == unix.AF_INET:
		e.to = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	default:
		e.to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return e
}

// route returns the route with next hops on links.
func (e entry) route() Route {
	r := Route{Prefix: e.to, Source: e.source}
	for _, h := range e.hops {
		r.Hops = append(r.Hops, h.addr)
	}
	return r
}

func (e entry) netlink(family int) *netlink.Route {
	r := &netlink.Route{Family: family, Table: unix.RT_TABLE_MAIN, Protocol: Protocol, Priority: Metric,
		Dst: &net.IPNet{IP: e.to.Addr().AsSlice(), Mask: net.CIDRMask(e.to.Bits(), e.to.Addr().BitLen())}}
	if e.source.IsValid() {
		r.Src = e.source.AsSlice()
	}
	for _, h := range e.hops {
		m := &netlink.NexthopInfo{LinkIndex: h.device}
		if h.addr.Is4() == (family == unix.AF_INET) {
			m.Gw = h.addr.AsSlice()
		} else {
			m.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: h.addr.AsSlice()}
		}
		r.MultiPath = append(r.MultiPath, m)
	}
	if len(r.MultiPath) == 1 {
		m := r.MultiPath[0]
		r.LinkIndex, r.Gw, r.Via, r.MultiPath = m.LinkIndex, m.Gw, m.Via, nil
	}
	return r
}

// Devices returns the devices by which this host reaches addresses, sorted. Packets of containers behind them come in
// there.
func (k *Kernel) Devices(addrs []netip.Addr) (all []string, err error) {
	h, err := link.Handle(k.NS)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s := &syncer{h: h}
	for _, a := range addrs {
		for _, hop := range s.lookUp(a) {
			l, err := h.LinkByIndex(hop.device)
			if err == nil && !slices.Contains(all, l.Attrs().Name) {
				all = append(all, l.Attrs().Name)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}
