package graph

import (
	"cmp"
	"net/netip"
	"slices"

	"cleat/network/survey"
)

// Options say what is drawn. The zero value draws all namespaces without what is
// the same everywhere: loopback, addresses of one link, devices that the kernel
// made by itself.
type Options struct {
	All  bool            // draw that, too
	Only map[uint64]bool // the namespaces to draw, by ID; nil: all
}

// key is a link of any namespace.
type key struct {
	ns    uint64
	index int
}

// spot is a link with the namespace that it is in.
type spot struct {
	ns   *survey.Namespace
	link *survey.Link
}

// view is a survey with its relations turned around.
type view struct {
	*survey.Survey
	opt   Options
	links map[key]spot
	above map[key]spot   // what a link hangs on
	below map[key][]spot // ports, children and tunnels of a link, in the order in which they are drawn
}

func newView(s *survey.Survey, opt Options) *view {
	v := &view{Survey: s, opt: opt, links: map[key]spot{}, above: map[key]spot{}, below: map[key][]spot{}}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		for j := range n.Links {
			v.links[key{n.ID, n.Links[j].Index}] = spot{n, &n.Links[j]}
		}
	}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		for j := range n.Links {
			at := spot{n, &n.Links[j]}
			if on, ok := v.leadsTo(at); ok && !v.hangsOn(on, at) {
				v.above[at.key()] = on
				v.below[on.key()] = append(v.below[on.key()], at)
			}
		}
	}
	for k := range v.below {
		home := k.ns
		slices.SortStableFunc(v.below[k], func(a, b spot) int {
			return cmp.Or(cmp.Compare(btoi(a.ns.ID != home), btoi(b.ns.ID != home)),
				survey.Natural(a.ns.Label, b.ns.Label), survey.Natural(a.link.Name, b.link.Name))
		})
	}
	return v
}

func (s spot) key() key { return key{s.ns.ID, s.link.Index} }

// String is the link as others call it.
func (s spot) String() string { return s.ns.Label + "/" + s.link.Name }

// at is where an end leads.
func (v *view) at(e *survey.End) (spot, bool) {
	if e == nil {
		return spot{}, false
	}
	s, ok := v.links[key{e.NamespaceID, e.Index}]
	return s, ok
}

// on is the link that s hangs on in a drawing.
func (v *view) on(s spot) (spot, bool) {
	on, ok := v.above[s.key()]
	return on, ok
}

// hangsOn reports whether a link is another one, or hangs on it. The kernel makes no circles,
// but namespaces are read one after the other, and are others' to change meanwhile.
func (v *view) hangsOn(s, on spot) bool {
	for ok := true; ok; s, ok = v.on(s) {
		if s.key() == on.key() {
			return true
		}
	}
	return false
}

// leadsTo is the link that s would hang on: the one it is a port of, else the one it stands
// on; a tunnel only if that is elsewhere.
func (v *view) leadsTo(s spot) (spot, bool) {
	if m, ok := v.links[key{s.ns.ID, s.link.Master}]; ok && s.link.Master != 0 {
		return m, true
	}
	if p, ok := v.at(s.link.Parent); ok {
		return p, true
	}
	if u, ok := v.at(s.link.Underlay); ok && u.ns != s.ns {
		return u, true
	}
	return spot{}, false
}

// tops are the links of n that hang on no other one of n, uplinks first.
func (v *view) tops(n *survey.Namespace) []spot {
	var out []spot
	for i := range n.Links {
		s := spot{n, &n.Links[i]}
		if on, ok := v.on(s); ok && on.ns == n || v.hidden(s) {
			continue
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b spot) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), survey.Natural(a.link.Name, b.link.Name))
	})
	return out
}

// rank is where in its namespace a link is drawn.
func rank(s spot) int {
	uplink := slices.ContainsFunc(s.ns.DefaultRoutes, func(r survey.Route) bool { return r.Index == s.link.Index })
	switch s.link.Kind {
	case "device", "bond", "team":
		return 1 - btoi(uplink)
	case "loopback":
		return 9
	case "bridge", "openvswitch", "vrf":
		return 3
	case "veth", "netkit":
		return 5 - 3*btoi(uplink)
	}
	return 4 - 2*btoi(uplink)
}

// fallback are devices that modules make by themselves.
var fallback = []string{"tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0",
	"ifb0", "ifb1", "dummy0", "bond0", "teql0", "ovs-system", "ovs-netdev"}

// hidden tells whether a link says nothing here.
func (v *view) hidden(s spot) bool {
	l := s.link
	switch {
	case v.opt.All || len(v.below[s.key()]) > 0 || l.Counters.Lost() > 0:
		return false
	case slices.Contains(fallback, l.Name) && !l.Up:
		return true
	}
	return l.Kind == "loopback" && len(v.addresses(l)) == 0
}

// addresses are those worth showing.
func (v *view) addresses(l *survey.Link) []netip.Prefix {
	if v.opt.All {
		return l.Addresses
	}
	var out []netip.Prefix
	for _, a := range l.Addresses {
		if ip := a.Addr(); !ip.IsLoopback() && !(ip.Is6() && ip.IsLinkLocalUnicast()) {
			out = append(out, a)
		}
	}
	return out
}

// drawn are the namespaces to be drawn, and those that have nothing to show.
func (v *view) drawn() (full, bare []*survey.Namespace) {
	for i := range v.Namespaces {
		n := &v.Namespaces[i]
		switch {
		case v.opt.Only != nil && !v.opt.Only[n.ID]:
		case v.opt.Only == nil && n.UnreadReason == "" && len(v.tops(n)) == 0 && !isHost(n) && !v.opt.All:
			bare = append(bare, n)
		default:
			full = append(full, n)
		}
	}
	return full, bare
}

func isHost(n *survey.Namespace) bool { return n.Origin == survey.OriginHost || n.Origin == survey.OriginHere }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
