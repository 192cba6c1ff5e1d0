package named

import (
	"cmp"
	"net/netip"
	"slices"

	"cleat/packet"
)

// Traffic is new connections of one kind between two addresses.
type Traffic struct {
	From, To netip.Addr
	Protocol packet.Protocol // packet.TCP, UDP, ICMP, …
	Port     uint16          // of the destination; 0 for protocols without ports
}

// Reason is what decides about traffic.
type Reason string

// The reasons of decisions. Some always allow or always deny.
const (
	ByRule      Reason = "rule"         // a rule of a network
	ByDefault   Reason = "default deny" // denied: no rule matches, and the network denies by default
	SameNetwork Reason = "same network" // allowed
	Apart       Reason = "apart"        // denied: different networks are kept apart
	NoWayOut    Reason = "internal"     // denied: the source's network is internal
	Outward     Reason = "outward"      // allowed: from a network to others than networks
	Inward      Reason = "inward"       // denied: from others to a network
	NotFiltered Reason = "not filtered" // allowed: the packets don't pass the host, or no network is concerned
)

// Decision is what the rules of networks say about traffic. The kernel's rules and those of
// other programs may say more.
type Decision struct {
	Allowed bool
	Reason  Reason
	Rule    *Rule  // that decides; nil: none matches
	Network string // whose property decides, or to which the rule belongs; "": none
}

// Decide returns what decides about traffic. What is published is decided by the address and
// the port of the container.
func (s Store) Decide(t Traffic) (Decision, error) {
	p, err := s.population()
	if err != nil {
		return Decision{}, err
	}
	rules, err := rulesOf(p.networks)
	if err != nil {
		return Decision{}, err
	}
	return p.decide(rules, t), nil
}

func (p population) decide(rules []Rule, t Traffic) Decision {
	from, to := p.network(t.From), p.network(t.To)
	for _, n := range []*Network{from, to} {
		if n != nil && !n.OnHost() {
			return Decision{Allowed: true, Reason: NotFiltered, Network: n.Name}
		}
	}
	if from == nil && to == nil {
		return Decision{Allowed: true, Reason: NotFiltered}
	}
	source, destination := p.groupOf(rules, t.From), p.groupOf(rules, t.To)
	one := cell{uint8(t.Protocol), uint8(t.Protocol), t.Port, t.Port}
	var matching []*Rule
	for i := range rules {
		if source.from[i] && destination.to[i] && one.coveredBy(&rules[i]) {
			matching = append(matching, &rules[i])
		}
	}
	if r := deciding(matching); r != nil {
		return Decision{Allowed: r.Allow, Reason: ByRule, Rule: r, Network: r.home()}
	}
	if p.otherwise(source, destination) == dropped {
		return Decision{Reason: ByDefault, Network: cmp.Or(from, to).Name}
	}
	return withoutRule(from, to)
}

// withoutRule returns the decision where no rule matches. One of the networks may be nil.
func withoutRule(from, to *Network) Decision {
	switch {
	case from == nil:
		return Decision{Reason: Inward, Network: to.Name}
	case from == to:
		return Decision{Allowed: true, Reason: SameNetwork, Network: from.Name}
	case to != nil:
		return Decision{Reason: Apart, Network: from.Name}
	case from.Internal:
		return Decision{Reason: NoWayOut, Network: from.Name}
	}
	return Decision{Allowed: true, Reason: Outward, Network: from.Name}
}

// deciding returns the rule that decides where all of these match; nil if there are none. Its
// verdict is that of judge: a deny without an exception or, if there is none, the narrowest
// allow.
func deciding(matching []*Rule) *Rule {
	var narrowest *Rule
	for _, r := range matching {
		excepted := slices.ContainsFunc(matching, func(a *Rule) bool { return a.Allow && a.exceptionTo(r) })
		switch {
		case !r.Allow && !excepted:
			return r
		case r.Allow && !excepted && narrowest == nil:
			narrowest = r // no other allow is narrower
		}
	}
	return narrowest
}

// network returns the network that an address belongs to; nil if it is outside.
func (p population) network(a netip.Addr) *Network {
	i := slices.IndexFunc(p.networks, func(n *Network) bool { return n.subnet(a) != nil })
	if i < 0 {
		return nil
	}
	return p.networks[i]
}

// population returns all networks with their endpoints. Those of other hosts, of which there may be 100,000, are read
// only if a rule names containers, or if they publish ports everywhere: otherwise only their network matters.
func (s Store) population() (p population, err error) {
	if p.networks, err = s.Networks(); err != nil {
		return p, err
	}
	rules, err := rulesOf(p.networks)
	if err != nil {
		return p, err
	}
	named := slices.ContainsFunc(rules, func(r Rule) bool { return r.From.namesEndpoints() || r.To.namesEndpoints() })
	for _, n := range p.networks {
		endpoints, err := s.Endpoints(n.Name)
		if err != nil {
			return p, err
		}
		p.endpoints = append(p.endpoints, endpoints...)
		if n.Span == nil {
			continue
		}
		mention := "" // what else matters of other hosts is the ports that their containers publish everywhere
		if !named {
			mention = publishesEverywhere
		}
		hosts, err := s.remoteHostsThat(n.Name, mention)
		if err != nil {
			return p, err
		}
		for _, h := range hosts {
			for i := range h.Endpoints {
				p.remote = append(p.remote, h.Endpoints[i].endpoint(n.Name))
			}
			p.elsewhere = append(p.elsewhere, h.elsewhere(n.Name)...)
		}
	}
	p.learned, err = s.learned()
	return p, err
}

// groupOf returns the group that an address belongs to, without its ranges.
func (p population) groupOf(rules []Rule, a netip.Addr) *group {
	n := p.network(a)
	if n == nil {
		return newGroup(rules, "", func(s Selector) bool {
			return s.Any || s.Prefix.IsValid() && s.Prefix.Contains(a) || slices.Contains(p.addresses(s, a.Is4()), a)
		})
	}
	all := p.everywhere()
	i := slices.IndexFunc(all, func(e *Endpoint) bool { return e.Network == n.Name && slices.Contains(e.Addresses, a) })
	if i < 0 {
		return newGroup(rules, n.Name, func(s Selector) bool { return s.Any || s.Network == n.Name && s.Container == "" && s.Label == "" })
	}
	return newGroup(rules, n.Name, func(s Selector) bool { return s.Any || s.matches(all[i]) })
}
