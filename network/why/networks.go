package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/network/named"
	"cleat/packet"
)

// checkNetworks checks that the ends have a network in common, or that a rule makes up for it.
func (v *investigation) checkNetworks(context.Context) {
	if len(v.from.endpoints) == 0 {
		return
	}
	for _, m := range v.machinesOfTargets() {
		switch {
		case m == nil:
			v.checkOutside()
		case m == v.from || m.isHost || len(m.endpoints) == 0:
		default:
			v.checkCommon(m)
		}
	}
}

// checkOutside checks whether targets that belong to no machine of this host are outside, or
// addresses of a network.
func (v *investigation) checkOutside() {
	outside := false
	for _, t := range v.targets {
		n := v.networkOf(t.addr)
		switch {
		case t.at != nil:
		case n == nil:
			outside = true
		case v.from.on(n.Name) != nil:
			v.ok(checkNetworks, "%s is an address of %s, and %s is on it", t.addr, n.Name, v.from.label)
		default:
			v.bad(checkNetworks, finding{cause: OtherNetwork, about: t, explains: lost | untried, try: "cleat net connect " + n.Name + " " + columns.Word(v.from.ref()),
				because: fmt.Sprintf("%s is an address of %s, %s is on %s, and networks are kept apart", t.addr, n.Name, v.from.label, strings.Join(networksOf(v.from), " and "))})
		}
	}
	if outside {
		v.checkWayOut()
	}
}

// networkOf returns the network that has an address in one of its subnets, first one that the
// source is on; nil if there is none.
func (v *investigation) networkOf(a netip.Addr) *named.Network {
	var found *named.Network
	for _, n := range v.networks {
		if subnetOf(n, a).IsValid() && (found == nil || v.from.on(n.Name) != nil) {
			found = n
		}
	}
	return found
}

// subnetOf returns the subnet of a network that contains an address.
func subnetOf(n *named.Network, a netip.Addr) netip.Prefix {
	for _, s := range n.Subnets {
		if s.Prefix.Contains(a) {
			return s.Prefix
		}
	}
	return netip.Prefix{}
}

// checkWayOut checks that a network of the source leads out of the host.
func (v *investigation) checkWayOut() {
	for _, e := range v.from.endpoints {
		if n := v.network(e.Network); n != nil && !n.Internal {
			v.ok(checkNetworks, "%s leads out of the host", n.Name)
			return
		}
	}
	text := strings.Join(networksOf(v.from), " and ")
	v.bad(checkNetworks, finding{cause: Internal, because: text + " is internal: no way leads out of it", explains: failure,
		try: "cleat net create out && cleat net connect out " + columns.Word(v.from.ref())})
}

func networksOf(m *machine) []string {
	var all []string
	for _, e := range m.endpoints {
		all = append(all, e.Network)
	}
	return all
}

// checkCommon checks that the source has a network in common with a container, or that a rule
// lets it reach one of the container's networks.
func (v *investigation) checkCommon(m *machine) {
	ours, theirs := networksOf(v.from), networksOf(m)
	common := slices.DeleteFunc(slices.Clone(ours), func(n string) bool { return !slices.Contains(theirs, n) })
	if len(common) > 0 {
		v.ok(checkNetworks, "%s and %s are on %s", v.from.label, m.label, strings.Join(common, " and "))
		return
	}
	where := fmt.Sprintf("%s is on %s, %s on %s", v.from.label, strings.Join(ours, " and "), m.label, strings.Join(theirs, " and "))
	for _, t := range v.targets {
		if t.at != m || t.endpoint == nil {
			continue
		}
		d, ok := v.decide(t)
		switch {
		case !ok || d.Reason == named.Apart:
		case d.Reason == named.NotFiltered:
			v.unknown(checkNetworks, "%s; packets of %s don't pass the host", where, d.Network)
			return
		default:
			v.ok(checkNetworks, "%s; a rule is about them", where)
			return
		}
	}
	v.bad(checkNetworks, finding{cause: OtherNetwork, because: where + ", and networks are kept apart", explains: lost | untried, try: v.permit(m)})
}

// permit returns the command that lets the source reach a container of another network: a rule
// for the port, or a connection.
func (v *investigation) permit(m *machine) string {
	source, destination := v.from.endpoints[0], m.endpoints[0]
	n, other := v.network(source.Network), v.network(destination.Network)
	if v.q.To.Port == 0 || n == nil || other == nil || !n.OnHost() || !other.OnHost() {
		return "cleat net connect " + destination.Network + " " + columns.Word(v.from.ref())
	}
	return "cleat net allow " + v.ruleText(source, destination, v.q.To.Port)
}

// ruleText returns a rule about two endpoints and a port, as named.ParseRule reads it.
func (v *investigation) ruleText(from, to *named.Endpoint, port uint16) string {
	text := fmt.Sprintf("%s to %s", endpointText(from), endpointText(to))
	if port == 0 {
		return text
	}
	return fmt.Sprintf("%s:%d/%s", text, port, v.q.To.protocolName())
}

func endpointText(e *named.Endpoint) string {
	if len(e.Names) > 0 {
		return e.Network + "/" + e.Names[0]
	}
	return e.Network
}

// destination returns the endpoint, the address and the port that rules judge: behind a
// published port they are the container's. The endpoint may be nil.
func (v *investigation) destination(t *target) (*named.Endpoint, netip.AddrPort) {
	if t.published != nil {
		return t.published.endpoint, t.published.to
	}
	return t.endpoint, netip.AddrPortFrom(t.addr, v.q.To.Port)
}

// source returns the endpoint of the source from which packets to a target come: on a common
// network or, if there is none, the first that has an address of the family.
func (v *investigation) source(t *target) (*named.Endpoint, netip.Addr) {
	all := slices.Clone(v.from.endpoints)
	slices.SortStableFunc(all, func(a, b *named.Endpoint) int { return v.distance(a, t) - v.distance(b, t) })
	for _, e := range all {
		for _, a := range e.Addresses {
			if a.Is4() == t.addr.Is4() {
				return e, a
			}
		}
	}
	return nil, netip.Addr{}
}

// distance orders the source's endpoints by how likely packets to a target come from them.
func (v *investigation) distance(e *named.Endpoint, t *target) int {
	n := v.network(e.Network)
	switch {
	case t.route.source.IsValid() && slices.Contains(e.Addresses, t.route.source):
		return 0
	case t.endpoint != nil && t.endpoint.Network == e.Network, n != nil && subnetOf(n, t.addr).IsValid():
		return 1
	}
	return 2
}

// decide returns what the rules say about the question's traffic to a target. ok is false if
// the source has no address for it.
func (v *investigation) decide(t *target) (d named.Decision, ok bool) {
	_, from := v.source(t)
	_, to := v.destination(t)
	if !from.IsValid() || t.route.local {
		return d, false
	}
	d, err := v.store.Decide(named.Traffic{From: from, To: to.Addr(), Protocol: v.protocol(to.Addr()), Port: to.Port()})
	return d, err == nil
}

// protocol returns the protocol of the probe.
func (v *investigation) protocol(a netip.Addr) packet.Protocol {
	switch {
	case v.q.To.Port != 0:
		return v.q.To.Protocol
	case a.Is4():
		return packet.ICMP
	}
	return packet.ICMPv6
}

// checkRules says which rule of a network decides.
func (v *investigation) checkRules(context.Context) {
	var said []string
	for _, t := range v.targets {
		d, ok := v.decide(t)
		if !ok {
			continue
		}
		f, text := v.judged(t, d)
		if slices.Contains(said, text) {
			continue
		}
		said = append(said, text)
		if f != nil {
			f.about, f.explains = t, lost
			if t.at != nil && t.at.host != "" {
				f.fact = f.because + ": it holds on this host, and on host " + t.at.host
			}
			v.bad(checkRules, *f)
		} else if text != "" {
			v.ok(checkRules, "%s", text)
		}
	}
}

// judged puts a decision into words. The finding is nil if it allows the traffic.
func (v *investigation) judged(t *target, d named.Decision) (*finding, string) {
	e, to := v.destination(t)
	source, _ := v.source(t)
	n := v.network(source.Network)
	deny := func(cause Cause, try, format string, args ...any) (*finding, string) {
		text := fmt.Sprintf(format, args...)
		return &finding{cause: cause, because: text, try: try}, text
	}
	switch {
	case d.Reason == named.ByRule && d.Allowed:
		return nil, fmt.Sprintf("the rule %q allows it", d.Rule)
	case d.Reason == named.ByRule:
		return deny(RuleDenies, "cleat net deny --remove "+strings.TrimPrefix(d.Rule.String(), "deny "), "the rule %q denies it", d.Rule)
	case d.Reason == named.ByDefault:
		return deny(RuleDenies, v.allow(source, e, to), "no rule of %s allows it, and its default is deny", d.Network)
	case d.Reason == named.SameNetwork:
		return nil, "no rule is about it; containers on " + d.Network + " reach each other"
	case t.published != nil && n != nil && n.Internal:
		return deny(Internal, v.permit(t.published.at), "%s is internal: published ports are not reached from it", n.Name)
	case t.published != nil:
		return nil, "no rule is about it; published ports are reached from other networks"
	case t.at == v.host:
		return v.hostAccess(t, n)
	case d.Reason == named.Outward:
		return nil, "no rule is about it; " + d.Network + " may reach what is outside"
	}
	return nil, "" // NotFiltered, or what checkNetworks has said
}

// allow returns the command that allows traffic to an endpoint or, if it is nil, an address.
func (v *investigation) allow(source, e *named.Endpoint, to netip.AddrPort) string {
	if e != nil {
		return "cleat net allow " + v.ruleText(source, e, to.Port())
	}
	d := Destination{Name: to.Addr().String(), Port: to.Port(), Protocol: v.q.To.Protocol}
	return fmt.Sprintf("cleat net allow %s to %s", endpointText(source), d)
}

// hostAccess says whether a network lets its containers reach the host at an address.
func (v *investigation) hostAccess(t *target, n *named.Network) (*finding, string) {
	if n == nil || !n.OnHost() {
		return nil, ""
	}
	gateway := slices.ContainsFunc(n.Subnets, func(s named.Subnet) bool { return s.Gateway == t.addr })
	switch {
	case n.HostAccess == named.HostAll:
		return nil, n.Name + " lets containers reach the host at all its addresses"
	case n.HostAccess == named.HostGateway && gateway:
		return nil, n.Name + " lets containers reach the host at its gateway"
	case gateway && v.q.To.Port == dnsPort:
		return nil, "name servers at the gateway are always reached"
	case n.HostAccess == named.HostGateway:
		f := &finding{cause: HostAccess, because: fmt.Sprintf("%s lets containers reach the host at its gateway only, not at %s", n.Name, t.addr)}
		for _, s := range n.Subnets {
			if s.Gateway.Is4() == t.addr.Is4() {
				f.try = "cleat net why " + columns.Word(v.from.ref()) + " " + Destination{Name: s.Gateway.String(), Port: v.q.To.Port, Protocol: v.q.To.Protocol}.String()
			}
		}
		return f, f.because
	}
	f := &finding{cause: HostAccess, because: n.Name + " lets containers reach nothing of the host but names",
		try: "cleat net export, then cleat net apply with host_access: gateway for " + n.Name}
	return f, f.because
}
