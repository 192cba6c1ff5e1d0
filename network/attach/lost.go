package attach

import (
	"fmt"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Lost lists what of a link has been removed since it was attached, in words: addresses, those routes that
// listed reports, the rate limits, and the link's other end as a port of its bridge. A route may be in any
// table, as others may have moved it. It is nil if the link itself is gone: StatusOf reports that.
func Lost(store *Store, a *Attachment, listed func(Route) bool) (lost []string, err error) {
	s, err := newSession(store, nil)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := readJournal(store.liveJournal(a.ID))
	if err != nil || all.outcome == nil {
		return nil, err
	}
	cont, err := s.namespace(all.Container)
	if err != nil || cont == nil {
		return nil, err
	}
	l, err := cont.findIndex(all.outcome.Index)
	if err != nil || l == nil {
		return nil, err
	}
	addresses, err := cont.lostAddresses(l, a.Spec)
	if err != nil {
		return nil, err
	}
	routes, err := cont.lostRoutes(l, a.Spec, listed)
	if err != nil {
		return nil, err
	}
	in, out := a.Spec.rates()
	lost = append(addresses, routes...)
	if all.outcome.Peer == "" {
		limits, err := cont.lostLimits(l, out, in)
		return append(lost, limits...), err
	}
	peer, err := s.host.find(all.outcome.Peer)
	if err != nil {
		return nil, err
	}
	if peer == nil {
		return append(lost, "link "+all.outcome.Peer+" on the host"), nil
	}
	if a.Spec.Kind == "bridge" {
		br, err := s.host.find(a.Spec.Parent)
		if err != nil {
			return nil, err
		}
		if br == nil || peer.Attrs().MasterIndex != br.Attrs().Index {
			lost = append(lost, fmt.Sprintf("port %s of bridge %s", all.outcome.Peer, a.Spec.Parent))
		}
	}
	limits, err := s.host.lostLimits(peer, in, out)
	return append(lost, limits...), err
}

func (n *namespace) lostAddresses(l netlink.Link, spec Spec) (lost []string, err error) {
	for _, p := range spec.Addresses {
		has, err := n.hasAddr(l, p)
		if err != nil {
			return nil, err
		}
		if !has {
			lost = append(lost, fmt.Sprintf("address %s of %s", p, l.Attrs().Name))
		}
	}
	return lost, nil
}

func (n *namespace) lostRoutes(l netlink.Link, spec Spec, listed func(Route) bool) (lost []string, err error) {
	wanted := spec.Routes[:len(spec.Routes):len(spec.Routes)]
	for _, g := range spec.Gateways {
		wanted = append(wanted, Route{To: defaultPrefix(familyOf(g)), Via: g})
	}
	for _, r := range wanted {
		if !listed(r) {
			continue
		}
		has, err := n.hasRoute(l, r)
		if err != nil {
			return nil, err
		}
		if !has {
			lost = append(lost, "route "+r.String())
		}
	}
	return lost, nil
}

// hasRoute reports whether any table has a route to the same destination by the same gateway or link.
func (n *namespace) hasRoute(l netlink.Link, r Route) (bool, error) {
	family := familyOf(r.To.Addr())
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return n.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list routes of %s: %w", n.ns, err)
	}
	for _, route := range all {
		to := defaultPrefix(family)
		if route.Dst != nil {
			to = prefixOf(route.Dst)
		}
		through := route.LinkIndex == l.Attrs().Index || r.AnyLink || r.Type != RouteUnicast
		if to == r.To && through && (!r.Via.IsValid() || addrOf(route.Gw) == r.Via) {
			return true, nil
		}
	}
	return false, nil
}

// lostLimits lists which of the rate limits of a link are lost, of what it sends and of what it receives. A rate
// of 0 stands for no limit.
func (n *namespace) lostLimits(l netlink.Link, sends, receives int64) (lost []string, err error) {
	if sends == 0 && receives == 0 {
		return nil, nil
	}
	qdiscs, err := link.Dump(func() ([]netlink.Qdisc, error) { return n.QdiscList(l) })
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines of %s: %w", l.Attrs().Name, err)
	}
	has := map[string]bool{}
	for _, q := range qdiscs {
		has[q.Type()] = true
	}
	if sends != 0 && !has["tbf"] {
		lost = append(lost, "limit of what "+l.Attrs().Name+" sends")
	}
	if receives != 0 && !has["ingress"] {
		lost = append(lost, "limit of what "+l.Attrs().Name+" receives")
	}
	return lost, nil
}
