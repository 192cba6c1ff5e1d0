package span

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is a route as this package makes it.
type route struct {
	to          netip.Prefix
	metric      int
	hop, source netip.Addr
	device      int
	mtu         int // 0: the device's
	unreachable bool
	encap       encap
}

// place is what the kernel replaces a route by.
type place struct {
	to     netip.Prefix
	metric int
}

func (w route) place() place { return place{w.to, w.metric} }

// route returns the route to a block. ok is false if there is none: the host's device is missing, or its key.
func (s *syncer) route(h Host, b Block) (r route, ok bool) {
	r, ok = s.way(h, b)
	byTunnel := s.tunnels[b.Tunnel] != 0 && r.device == s.tunnels[b.Tunnel] // which knows what fits
	if h.MTU > 0 && h.MTU < s.config.MTU && !byTunnel {
		r.mtu = PacketsTo(h.By, h.Address, h.MTU, r.device == s.uplink)
		if r.to.Addr().Is6() {
			r.mtu = max(r.mtu, MinMTU6)
		}
	}
	return r, ok
}

// way is route without the MTU.
func (s *syncer) way(h Host, b Block) (r route, ok bool) {
	r = route{to: b.Prefix.Masked(), metric: blockMetric, source: b.Source, device: s.index}
	if tunnel := s.tunnels[b.Tunnel]; tunnel != 0 && !s.config.Encrypted {
		r.device = tunnel // a point-to-point device has no next hops
		return r, true
	}
	if b.Plain && CanBePlain(b.Prefix, h.Address) && !s.config.Encrypted {
		r.hop, r.device = h.Address, s.uplink
		return r, true
	}
	switch h.By {
	case ByWireGuard:
		slot, ok := s.slot(h)
		if ok {
			r.device = s.slots[slot]
		}
		return r, ok
	case ByGeneve:
		r.device, r.encap = s.gnv, encap{uint64(s.config.VNI), s.config.Local, h.Address}
	}
	switch {
	case b.Prefix.Addr().Is4():
		r.hop = h.nextHop(unix.AF_INET)
	default:
		r.hop = h.nextHop(unix.AF_INET6)
	}
	return r, r.device != 0
}

// wantedRoutes returns the routes of a family.
func (s *syncer) wantedRoutes(family int) map[route]bool {
	wanted := map[route]bool{}
	for _, h := range s.config.Hosts {
		for _, b := range h.Blocks {
			if !isFamily(b.Prefix.Addr(), family) {
				continue
			}
			if r, ok := s.route(h, b); ok {
				wanted[r] = true
			}
		}
	}
	for _, p := range s.config.Unreachable {
		if isFamily(p.Addr(), family) {
			wanted[route{to: p.Masked(), metric: unreachableMetric, unreachable: true}] = true
		}
	}
	return wanted
}

// routes makes the routes of a family.
func (s *syncer) routes(family int) error {
	missing := s.wantedRoutes(family)
	all, err := s.ownRoutes(family)
	if err != nil && !(absent(err) && len(missing) == 0) {
		return err
	}
	around, err := s.encaps(family, all)
	if err != nil {
		return err
	}
	var old []netlink.Route
	for _, r := range all {
		have := parse(r)
		have.encap = around[have.place()]
		if missing[have] {
			delete(missing, have)
		} else {
			old = append(old, r)
		}
	}
	var failed error // the first of perhaps as many as there are routes
	replaced := map[place]bool{}
	for w := range missing {
		replaced[w.place()] = true
		if err := s.h.RouteReplace(w.netlink(family)); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("set route to %s: %w", w.to, err))
			continue
		}
		s.note("route to %s", w.to)
	}
	for _, r := range old {
		have := parse(r)
		if replaced[have.place()] || s.stays(have) {
			continue
		}
		if err := s.h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = cmp.Or(failed, fmt.Errorf("remove route to %s: %w", have.to, err))
			continue
		}
		s.note("route to %s removed", have.to)
	}
	return failed
}

// BlockRoute is the route to a block.
type BlockRoute struct {
	Plain bool
	MTU   int // in bytes; 0: its device's
}

// Blocks returns the blocks that have routes in a namespace.
func Blocks(ns *netns.NS) (map[netip.Prefix]BlockRoute, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s := &syncer{h: h}
	own := map[int]bool{}
	for name, kind := range devices {
		l, err := s.find(name, kind)
		if err != nil && !errors.As(err, new(*ForeignDeviceError)) {
			return nil, err
		}
		if l != nil {
			own[l.Attrs().Index] = true
		}
	}
	blocks := map[netip.Prefix]BlockRoute{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		all, err := s.ownRoutes(family)
		if err != nil && !absent(err) {
			return nil, err
		}
		for _, r := range all {
			if have := parse(r); !have.unreachable {
				blocks[have.to] = BlockRoute{Plain: have.hop.IsValid() && !own[have.device], MTU: have.mtu}
			}
		}
	}
	return blocks, nil
}

// ownRoutes returns the routes of a family that this package has made.
func (s *syncer) ownRoutes(family int) ([]netlink.Route, error) {
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return s.h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return all, nil
}

// parse returns a route of the kernel.
func parse(r netlink.Route) route {
	w := route{metric: r.Priority, mtu: r.MTU}
	if r.Dst != nil {
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		w.to = netip.PrefixFrom(a.Unmap(), bits)
	}
	if r.Type == unix.RTN_UNREACHABLE {
		w.unreachable = true
		return w
	}
	w.hop, _ = netip.AddrFromSlice(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok {
		w.hop, _ = netip.AddrFromSlice(via.Addr)
	}
	w.source, _ = netip.AddrFromSlice(r.Src)
	w.hop, w.source, w.device = w.hop.Unmap(), w.source.Unmap(), r.LinkIndex
	return w
}

func (w route) netlink(family int) *netlink.Route {
	r := &netlink.Route{Family: family, Table: unix.RT_TABLE_MAIN, Protocol: Protocol, Priority: w.metric,
		Dst: &net.IPNet{IP: w.to.Addr().AsSlice(), Mask: net.CIDRMask(w.to.Bits(), w.to.Addr().BitLen())}}
	if w.unreachable {
		r.Type = unix.RTN_UNREACHABLE
		return r
	}
	r.LinkIndex, r.MTU = w.device, w.mtu
	switch {
	case !w.hop.IsValid(): // a tunnel, or WireGuard, which knows the peer
	case isFamily(w.hop, family):
		r.Gw, r.Flags = w.hop.AsSlice(), int(netlink.FLAG_ONLINK)
	default:
		r.Via, r.Flags = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: w.hop.AsSlice()}, int(netlink.FLAG_ONLINK)
	}
	if w.encap != (encap{}) {
		r.Encap = &w.encap
	}
	if w.source.IsValid() {
		r.Src = w.source.AsSlice()
	}
	return r
}
