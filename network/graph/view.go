package graph

import (
	"cmp"
	"net/netip"
	"slices"

	"cleat/network/survey"
)

// Options say what is drawn. The zero value draws all namespaces, but not what is the same
// everywhere: loopback, IPv6 link-local addresses, and devices that kernel modules create.
type Options struct {
	All  bool            // draw that as well
	Only map[uint64]bool // the namespaces to draw, by ID; nil for all
}

// linkID identifies a link of any namespace.
type linkID struct {
	ns    uint64
	index int
}

type nsLink struct {
	ns   *survey.Namespace
	link *survey.Link
}

// view is a survey with its relations inverted.
type view struct {
	*survey.Survey
	opt   Options
	links map[linkID]nsLink
	above map[linkID]nsLink   // the link that a link hangs on
	below map[linkID][]nsLink // ports, devices and tunnels on a link, in the order of drawing
	// Of named networks:
	networks map[*survey.Link][]string // in words, by their device on the host
	hubs     map[*survey.Link]nsLink   // of a container's link on a network of driver routed: that network's device
}

func newView(s *survey.Survey, opt Options) *view {
	v := &view{Survey: s, opt: opt, links: map[linkID]nsLink{}, above: map[linkID]nsLink{}, below: map[linkID][]nsLink{},
		networks: map[*survey.Link][]string{}, hubs: map[*survey.Link]nsLink{}}
	v.readNetworks()
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		for j := range n.Links {
			v.links[linkID{n.ID, n.Links[j].Index}] = nsLink{n, &n.Links[j]}
		}
	}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		for j := range n.Links {
			at := nsLink{n, &n.Links[j]}
			if on, ok := v.wouldHangOn(at); ok && !v.hangsOn(on, at) {
				v.above[at.key()] = on
				v.below[on.key()] = append(v.below[on.key()], at)
			}
		}
	}
	for k := range v.below {
		home := k.ns
		slices.SortStableFunc(v.below[k], func(a, b nsLink) int {
			return cmp.Or(cmp.Compare(btoi(a.ns.ID != home), btoi(b.ns.ID != home)),
				survey.Natural(a.ns.Label, b.ns.Label), survey.Natural(a.link.Name, b.link.Name))
		})
	}
	return v
}

func (s nsLink) key() linkID { return linkID{s.ns.ID, s.link.Index} }

// String returns the link's name with its namespace.
func (s nsLink) String() string { return s.ns.Label + "/" + s.link.Name }

// at returns the link that an end refers to.
func (v *view) at(e *survey.End) (nsLink, bool) {
	if e == nil {
		return nsLink{}, false
	}
	s, ok := v.links[linkID{e.NamespaceID, e.Index}]
	return s, ok
}

// hangsOn reports whether s is on, or hangs on it. The kernel allows no loops, but a survey may have
// them: namespaces are read one after the other, and may change meanwhile.
func (v *view) hangsOn(s, on nsLink) bool {
	for ok := true; ok; s, ok = v.above[s.key()] {
		if s.key() == on.key() {
			return true
		}
	}
	return false
}

// wouldHangOn returns the link that s hangs on unless that makes a loop: its master, else its
// parent, else its underlay if that is in another namespace.
func (v *view) wouldHangOn(s nsLink) (nsLink, bool) {
	if m, ok := v.links[linkID{s.ns.ID, s.link.Master}]; ok && s.link.Master != 0 {
		return m, true
	}
	if p, ok := v.at(s.link.Parent); ok {
		return p, true
	}
	if u, ok := v.at(s.link.Underlay); ok && u.ns != s.ns {
		return u, true
	}
	return nsLink{}, false
}

// roots returns the links of n that hang on no other link of n, uplinks first.
func (v *view) roots(n *survey.Namespace) []nsLink {
	var out []nsLink
	for i := range n.Links {
		s := nsLink{n, &n.Links[i]}
		if v.above[s.key()].ns != n && !v.hidden(s) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b nsLink) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), survey.Natural(a.link.Name, b.link.Name))
	})
	return out
}

// rank orders the links of a namespace.
func rank(s nsLink) int {
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

// createdByModules are devices that kernel modules create when they are loaded.
var createdByModules = []string{"tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0",
	"ifb0", "ifb1", "dummy0", "bond0", "teql0", "ovs-system", "ovs-netdev"}

// hidden reports whether a link is left out as uninteresting.
func (v *view) hidden(s nsLink) bool {
	l := s.link
	switch {
	case v.opt.All || len(v.below[s.key()]) > 0 || l.Counters.Lost() > 0:
		return false
	case slices.Contains(createdByModules, l.Name) && !l.Up:
		return true
	}
	return l.Kind == "loopback" && len(v.addresses(l)) == 0
}

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

// selected returns the namespaces to draw, and apart from them those without anything to draw.
func (v *view) selected() (full, empty []*survey.Namespace) {
	for i := range v.Namespaces {
		n := &v.Namespaces[i]
		switch {
		case v.opt.Only != nil && !v.opt.Only[n.ID]:
		case v.opt.Only == nil && n.UnreadReason == "" && len(v.roots(n)) == 0 && !isHost(n) && !v.opt.All:
			empty = append(empty, n)
		default:
			full = append(full, n)
		}
	}
	return full, empty
}

func isHost(n *survey.Namespace) bool {
	return n.Origin == survey.OriginHost || n.Origin == survey.OriginHere
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
