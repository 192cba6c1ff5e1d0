package named

import (
	"cmp"
	"net/netip"
	"slices"

	"cleat/network/firewall"
	"cleat/network/ipam"
	"cleat/packet"
	"cleat/policy"
)

// The rules of networks become elements of one map in the kernel, whose keys are ranges of
// source and destination addresses, protocols and destination ports. The ranges must not
// overlap, and no element may be needed for an endpoint that no rule names. So compile divides
// addresses into groups to which the same selectors apply: of each network those endpoints that
// a rule names, and all its other addresses; and of the addresses outside those between two
// ends of prefixes in rules. For each pair of groups it judges each range of protocols and ports
// between two ends of ranges in rules.

// group is a set of addresses to which the same selectors apply.
type group struct {
	network  string // "": outside
	key      string // which selectors apply: one byte for each rule
	from, to []bool // by rule: whether its source or destination is the group
	ranges   []addrRange
}

type addrRange struct{ first, last netip.Addr }

// population is what rules are about.
type population struct {
	networks  []*Network
	endpoints []*Endpoint
	remote    []*Endpoint             // of other hosts; they have a network, addresses, names and labels
	elsewhere []*ElsewherePort        // that those publish everywhere
	learned   map[string][]netip.Addr // addresses of DNS names
}

// everywhere returns the endpoints of all hosts.
func (p population) everywhere() []*Endpoint {
	if len(p.remote) == 0 {
		return p.endpoints
	}
	return slices.Concat(p.endpoints, p.remote)
}

// compile returns the flows that rules accept or drop.
func compile(rules []Rule, p population) []firewall.Flow {
	if len(rules) == 0 && !slices.ContainsFunc(p.networks, func(n *Network) bool { return n.DefaultDeny }) {
		return nil
	}
	var all []firewall.Flow
	for _, v4 := range []bool{true, false} {
		inside, outside := p.groups(rules, v4), p.outside(rules, v4)
		for _, from := range inside {
			for _, to := range slices.Concat(inside, outside) {
				all = append(all, p.flows(rules, from, to, v4)...)
			}
		}
		for _, from := range outside {
			for _, to := range inside {
				all = append(all, p.flows(rules, from, to, v4)...)
			}
		}
	}
	return all
}

// groups returns the groups of the networks' addresses in one family.
func (p population) groups(rules []Rule, v4 bool) []*group {
	var all []*group
	for _, n := range p.networks {
		i := slices.IndexFunc(n.Subnets, func(s Subnet) bool { return s.Prefix.Addr().Is4() == v4 })
		if i < 0 {
			continue
		}
		base := newGroup(rules, n.Name, func(s Selector) bool { return s.Any || s.Network == n.Name && s.Container == "" && s.Label == "" })
		named := map[string]*group{}
		var special []netip.Addr
		particular := particularRules(rules, n.Name)
		for _, e := range p.everywhere() {
			if e.Network != n.Name || !slices.ContainsFunc(particular, func(r *Rule) bool { return r.names(e) }) {
				continue
			}
			g := newGroup(rules, n.Name, func(s Selector) bool { return s.Any || s.matches(e) })
			for _, a := range e.Addresses {
				if a.Is4() != v4 {
					continue
				}
				if named[g.key] == nil {
					named[g.key] = g
					all = append(all, g)
				}
				special = append(special, a)
				named[g.key].ranges = append(named[g.key].ranges, addrRange{a, a})
			}
		}
		for _, g := range named {
			g.ranges = merged(g.ranges)
		}
		base.ranges = except(prefixRange(n.Subnets[i].Prefix), special)
		all = append(all, base)
	}
	return all
}

// particularRules returns the rules that select some endpoints of a network, and not all alike.
func particularRules(rules []Rule, network string) (all []*Rule) {
	is := func(s Selector) bool { return s.Network == network && (s.Container != "" || s.Label != "") }
	for i := range rules {
		if is(rules[i].From) || is(rules[i].To) {
			all = append(all, &rules[i])
		}
	}
	return all
}

func newGroup(rules []Rule, network string, selects func(Selector) bool) *group {
	g := &group{network: network, from: make([]bool, len(rules)), to: make([]bool, len(rules))}
	key := make([]byte, len(rules))
	for i := range rules {
		g.from[i], g.to[i] = selects(rules[i].From), selects(rules[i].To)
		if g.from[i] {
			key[i] |= 1
		}
		if g.to[i] {
			key[i] |= 2
		}
	}
	g.key = string(key)
	return g
}

// outside returns the groups of addresses that belong to no network.
func (p population) outside(rules []Rule, v4 bool) []*group {
	whole := prefixRange(netip.MustParsePrefix("::/0"))
	if v4 {
		whole = prefixRange(netip.MustParsePrefix("0.0.0.0/0"))
	}
	starts := []netip.Addr{whole.first}
	cut := func(r addrRange) {
		starts = append(starts, r.first)
		if next := r.last.Next(); next.IsValid() {
			starts = append(starts, next)
		}
	}
	var own []addrRange
	for _, n := range p.networks {
		for _, s := range n.Subnets {
			if s.Prefix.Addr().Is4() == v4 {
				own = append(own, prefixRange(s.Prefix))
				cut(prefixRange(s.Prefix))
			}
		}
	}
	for i := range rules {
		for _, s := range []Selector{rules[i].From, rules[i].To} {
			if s.Prefix.IsValid() && s.Prefix.Addr().Is4() == v4 {
				cut(prefixRange(s.Prefix))
			}
			for _, a := range p.addresses(s, v4) {
				cut(addrRange{a, a})
			}
		}
	}
	slices.SortFunc(starts, netip.Addr.Compare)
	starts = slices.Compact(starts)
	byKey := map[string]*group{}
	var all []*group
	for i, first := range starts {
		last := whole.last
		if i+1 < len(starts) {
			last = starts[i+1].Prev()
		}
		if slices.ContainsFunc(own, func(o addrRange) bool { return o.first.Compare(first) <= 0 && first.Compare(o.last) <= 0 }) {
			continue
		}
		g := newGroup(rules, "", func(s Selector) bool {
			return s.Any || s.Prefix.IsValid() && s.Prefix.Contains(first) || slices.Contains(p.addresses(s, v4), first)
		})
		if byKey[g.key] == nil {
			byKey[g.key] = g
			all = append(all, g)
		}
		byKey[g.key].ranges = append(byKey[g.key].ranges, addrRange{first, last})
	}
	for _, g := range all {
		g.ranges = merged(g.ranges)
	}
	return all
}

// addresses returns the learned addresses of a selector's DNS name in one family.
func (p population) addresses(s Selector, v4 bool) []netip.Addr {
	if s.Name == "" {
		return nil
	}
	var all []netip.Addr
	for name, addrs := range p.learned {
		if !policy.NameMatches(name, s.Name) {
			continue
		}
		for _, a := range addrs {
			if a.Is4() == v4 {
				all = append(all, a)
			}
		}
	}
	return all
}

// flows judges the traffic from one group to another.
func (p population) flows(rules []Rule, from, to *group, v4 bool) []firewall.Flow {
	var matching []*Rule
	for i := range rules {
		if from.from[i] && to.to[i] {
			matching = append(matching, &rules[i])
		}
	}
	otherwise := p.otherwise(from, to)
	if len(matching) == 0 && otherwise == noRule {
		return nil
	}
	var all []firewall.Flow
	for _, c := range cells(matching, v4) {
		var covering []*Rule
		for _, r := range matching {
			if c.coveredBy(r) {
				covering = append(covering, r)
			}
		}
		v := cmp.Or(judge(covering), otherwise)
		if v == noRule {
			continue
		}
		for _, a := range from.ranges {
			for _, b := range to.ranges {
				all = append(all, firewall.Flow{FromFirst: a.first, FromLast: a.last, ToFirst: b.first, ToLast: b.last,
					FirstProtocol: c.firstProtocol, LastProtocol: c.lastProtocol, FirstPort: c.firstPort, LastPort: c.lastPort, Accept: v == accepted, Inbound: from.network == ""})
			}
		}
	}
	return all
}

// otherwise returns the verdict on traffic that no rule matches, where it is not that of all
// networks.
func (p population) otherwise(from, to *group) verdict {
	denies := func(network string) bool {
		return slices.ContainsFunc(p.networks, func(n *Network) bool { return n.Name == network && n.DefaultDeny })
	}
	if denies(from.network) && from.network != "" || denies(to.network) && to.network != "" && from.network == to.network {
		return dropped
	}
	return noRule
}

// cell is a range of protocols, and of ports where they have ports, that rules don't divide
// further.
type cell struct {
	firstProtocol, lastProtocol uint8
	firstPort, lastPort         uint16
}

const allPorts = 1<<16 - 1

// cells divides all protocols and ports at the ends of ranges in rules.
func cells(rules []*Rule, v4 bool) []cell {
	if !slices.ContainsFunc(rules, func(r *Rule) bool { return r.Protocol != 0 || r.Ports != nil }) {
		return []cell{{0, 255, 0, allPorts}}
	}
	icmp := uint8(packet.ICMPv6)
	if v4 {
		icmp = uint8(packet.ICMP)
	}
	known := []uint8{uint8(packet.TCP), uint8(packet.UDP), icmp}
	slices.Sort(known)
	var all []cell
	next := 0
	for _, k := range append(known, 255) {
		last := int(k) - 1
		if k == 255 {
			last = 255
		}
		if next <= last {
			all = append(all, cell{uint8(next), uint8(last), 0, allPorts})
		}
		next = int(k) + 1
		switch k {
		case 255:
		case icmp:
			all = append(all, cell{k, k, 0, allPorts})
		default:
			all = append(all, portCells(rules, k)...)
		}
	}
	return all
}

func portCells(rules []*Rule, protocol uint8) []cell {
	starts := []int{0}
	for _, r := range rules {
		if r.Protocol != 0 && uint8(r.Protocol) != protocol {
			continue
		}
		for _, p := range r.Ports {
			starts = append(starts, int(p.First), int(p.Last)+1)
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	var all []cell
	for i, first := range starts {
		last := allPorts
		if i+1 < len(starts) {
			last = starts[i+1] - 1
		}
		if first <= allPorts {
			all = append(all, cell{protocol, protocol, uint16(first), uint16(last)})
		}
	}
	return all
}

// coveredBy reports whether a rule matches the cell's protocols and ports.
func (c cell) coveredBy(r *Rule) bool {
	single := packet.Protocol(c.firstProtocol)
	if single == packet.ICMPv6 {
		single = packet.ICMP
	}
	if r.Protocol != 0 && (c.firstProtocol != c.lastProtocol || r.Protocol != single) {
		return false
	}
	if r.Ports == nil {
		return true
	}
	if single != packet.TCP && single != packet.UDP || c.firstProtocol != c.lastProtocol {
		return false
	}
	return slices.ContainsFunc(r.Ports, func(p policy.PortRange) bool { return p.First <= c.firstPort && c.lastPort <= p.Last })
}

func prefixRange(p netip.Prefix) addrRange {
	first, last := ipam.Bounds(p)
	return addrRange{first, last}
}

// except returns a range without some addresses.
func except(r addrRange, without []netip.Addr) []addrRange {
	slices.SortFunc(without, netip.Addr.Compare)
	var all []addrRange
	first := r.first
	for _, a := range slices.Compact(without) {
		if first.Less(a) {
			all = append(all, addrRange{first, a.Prev()})
		}
		first = a.Next()
	}
	if first.IsValid() && first.Compare(r.last) <= 0 {
		all = append(all, addrRange{first, r.last})
	}
	return all
}

// merged joins ranges that touch.
func merged(all []addrRange) []addrRange {
	slices.SortFunc(all, func(a, b addrRange) int { return a.first.Compare(b.first) })
	var out []addrRange
	for _, r := range all {
		if n := len(out); n > 0 && out[n-1].last.Next() == r.first {
			out[n-1].last = r.last
			continue
		}
		out = append(out, r)
	}
	return out
}
