package bgp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// maxHops limits the next hops of a route. The kernel spreads packets over more, but no fabric of hosts has them.
const maxHops = 16

// routes returns the best routes that the filter accepts, sorted by prefix. old hears of all prefixes.
func (s *Speaker) routes(b *server.BgpServer, filter *Filter, old *inherited) (all []Route, err error) {
	s.mu.Lock()
	closed := map[netip.Addr]bool{}
	for at, e := range s.sessions {
		closed[at] = e.closed
	}
	s.mu.Unlock()
	for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		err := b.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family}, func(nlri bgp.NLRI, paths []*apiutil.Path) {
			ip, ok := nlri.(*bgp.IPAddrPrefix)
			if !ok {
				return
			}
			p := ip.Prefix.Masked()
			old.hear(p)
			source, ok := filter.accepts(p, s.cfg.Peers)
			if !ok {
				return
			}
			// The library keeps the paths of a session that it has closed.
			paths = slices.DeleteFunc(paths, func(p *apiutil.Path) bool { return closed[p.PeerAddress] || slices.Contains(filter.Gone, nextHop(p)) })
			if hops := s.hops(p, paths); len(hops) > 0 {
				all = append(all, Route{Prefix: p, Hops: hops, Source: source})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list routes of BGP: %w", err)
		}
	}
	slices.SortFunc(all, func(a, b Route) int { return a.Prefix.Compare(b.Prefix) })
	return all, nil
}

// hops returns the next hops of the best paths to a prefix. paths begin with the best one.
func (s *Speaker) hops(p netip.Prefix, paths []*apiutil.Path) (hops []netip.Addr) {
	if slices.ContainsFunc(paths, func(p *apiutil.Path) bool { return !p.PeerAddress.IsValid() || p.PeerAddress.IsUnspecified() }) {
		return nil // it is this host's own
	}
	if p.Bits() == 0 {
		paths = slices.DeleteFunc(slices.Clone(paths), func(p *apiutil.Path) bool { return !s.isDefault(p.PeerAddress) })
	}
	// The peer of a stale path is not there. It keeps forwarding, or is dead.
	if fresh := slices.DeleteFunc(slices.Clone(paths), func(p *apiutil.Path) bool { return p.Stale }); len(fresh) > 0 {
		paths = fresh
	}
	best := slices.DeleteFunc(slices.Clone(paths), func(p *apiutil.Path) bool { return !p.Best })
	if len(best) == 0 && len(paths) > 0 {
		best = paths[:1]
	}
	for _, path := range best {
		if h := nextHop(path); h.IsValid() && !h.IsUnspecified() && !slices.Contains(hops, h) {
			hops = append(hops, h)
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return hops[:min(len(hops), maxHops)]
}

// isDefault reports whether default routes of a peer are accepted.
func (s *Speaker) isDefault(peer netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Peers, func(p Peer) bool { return p.Address == peer && p.Default })
}

// nextHop returns a path's next hop. A link-local one is on the link of the peer.
func nextHop(p *apiutil.Path) (a netip.Addr) {
	for _, attr := range p.Attrs {
		switch attr := attr.(type) {
		case *bgp.PathAttributeNextHop:
			a = attr.Value
		case *bgp.PathAttributeMpReachNLRI:
			a = attr.Nexthop
		}
	}
	a = a.Unmap()
	if a.Is6() && a.IsLinkLocalUnicast() {
		a = a.WithZone(p.PeerAddress.Zone())
	}
	return a
}
