package named_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/named"
	"cleat/packet"
	"cleat/policy"
)

// A world for rules: two networks, some of whose endpoints have labels.
type world struct {
	networks  []*named.Network
	endpoints []*named.Endpoint
	learned   map[string][]netip.Addr
}

func newWorld(r *rand.Rand) world {
	w := world{learned: map[string][]netip.Addr{"www.example.com": {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")}}}
	for i, name := range []string{"web", "db"} {
		n := &named.Network{NetworkSpec: named.NetworkSpec{Name: name, Driver: named.Bridge, DefaultDeny: r.IntN(4) == 0}}
		n.Subnets = []named.Subnet{{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.20.%d.0/24", i))}, {Prefix: netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", i))}}
		w.networks = append(w.networks, n)
		for k := range 6 {
			e := &named.Endpoint{Network: name, Container: attach.Container{Engine: "test", Name: fmt.Sprint("c", k)}, Names: []string{fmt.Sprint("c", k)}}
			e.Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.20.%d.%d", i, k+2)), netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", i, k+2))}
			if r.IntN(2) == 0 {
				e.Wanted.Labels = map[string]string{"tier": fmt.Sprint(r.IntN(2))}
			}
			w.endpoints = append(w.endpoints, e)
		}
	}
	return w
}

// randomRule returns a rule about the world.
func randomRule(r *rand.Rand) named.Rule {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	ends := []string{"web", "db", "web/c0", "web/c1", "db/c0", "db/c2", "web/tier=0", "db/tier=1", "any"}
	outside := []string{"203.0.113.0/24", "203.0.113.7", "10.0.0.0/8", "2001:db8::/32"}
	from, to := pick(ends...), pick(append(slices.Clone(ends), outside...)...)
	switch r.IntN(6) {
	case 0:
		from, to = pick(outside...), pick(ends[:8]...)
	case 1:
		from, to = pick(ends[:8]...), pick("www.example.com", "*.example.com", "other.example")
	}
	if from == "any" && to == "any" {
		from = "web"
	}
	if p, err := netip.ParsePrefix(to); err == nil && p.Addr().Is6() {
		to = "[" + to + "]"
	}
	to += pick("", "", ":80", ":80-90", ":22,85/tcp", ":53/udp", ":*/icmp")
	rule, err := named.ParseRule(r.IntN(2) == 0, from+" to "+to, func(name string) bool { return name == "web" || name == "db" })
	if err != nil {
		return randomRule(r) // neither end is a container
	}
	return rule
}

type flowPacket struct {
	from, to netip.Addr
	protocol packet.Protocol
	port     uint16
}

// want judges a packet by the rules as they are written.
func (w world) want(rules []named.Rule, p flowPacket) int {
	network := func(a netip.Addr) string {
		for _, n := range w.networks {
			for _, s := range n.Subnets {
				if s.Prefix.Contains(a) {
					return n.Name
				}
			}
		}
		return ""
	}
	selects := func(s named.Selector, a netip.Addr) bool {
		switch in := network(a); {
		case s.Any:
			return true
		case s.Network != "" && s.Container == "" && s.Label == "":
			return in == s.Network
		case s.Network != "":
			return slices.ContainsFunc(w.endpoints, func(e *named.Endpoint) bool { return slices.Contains(e.Addresses, a) && s.Matches(e) })
		case in != "":
			return false // prefixes and names are about addresses outside
		case s.Name != "":
			for name, addrs := range w.learned {
				if policy.NameMatches(name, s.Name) && slices.Contains(addrs, a) {
					return true
				}
			}
			return false
		}
		return s.Prefix.Contains(a)
	}
	var matching []*named.Rule
	for i := range rules {
		r := &rules[i]
		protocol := p.protocol
		if protocol == packet.ICMPv6 {
			protocol = packet.ICMP
		}
		ports := r.Ports == nil || (protocol == packet.TCP || protocol == packet.UDP) && slices.ContainsFunc(r.Ports, func(o policy.PortRange) bool { return o.First <= p.port && p.port <= o.Last })
		if selects(r.From, p.from) && selects(r.To, p.to) && ports && (r.Protocol == 0 || r.Protocol == protocol) {
			matching = append(matching, r)
		}
	}
	if v := named.JudgeRules(matching); v != 0 {
		return v
	}
	from, to := network(p.from), network(p.to)
	for _, n := range w.networks {
		if n.DefaultDeny && n.Name == from {
			return 2
		}
	}
	_ = to
	return 0
}

// got looks a packet up in compiled flows, as the kernel does.
func got(flows []firewall.Flow, p flowPacket) (v, matches int) {
	within := func(a, first, last netip.Addr) bool {
		return a.Is4() == first.Is4() && first.Compare(a) <= 0 && a.Compare(last) <= 0
	}
	for _, f := range flows {
		if !within(p.from, f.FromFirst, f.FromLast) || !within(p.to, f.ToFirst, f.ToLast) {
			continue
		}
		proto := uint8(p.protocol)
		if proto < f.FirstProtocol || proto > f.LastProtocol || p.port < f.FirstPort || p.port > f.LastPort {
			continue
		}
		matches++
		if v = 2; f.Accept {
			v = 1
		}
	}
	return v, matches
}

// Compiled flows say of every packet what the rules say, and no two match one packet.
func TestCompile(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(r)
		var rules []named.Rule
		for range r.IntN(8) {
			rules = append(rules, randomRule(r))
		}
		flows := named.Compile(rules, w.networks, w.endpoints, w.learned)
		addrs := [2][]netip.Addr{}
		for _, e := range w.endpoints {
			addrs[0], addrs[1] = append(addrs[0], e.Addresses[0]), append(addrs[1], e.Addresses[1])
		}
		for _, a := range []string{"10.20.0.200", "10.20.1.200", "203.0.113.7", "203.0.113.8", "10.99.0.1", "192.0.2.1"} {
			addrs[0] = append(addrs[0], netip.MustParseAddr(a))
		}
		for _, a := range []string{"fd00:0::ff", "fd00:1::ff", "2001:db8::7", "2001:db8::8", "2001:db9::1"} {
			addrs[1] = append(addrs[1], netip.MustParseAddr(a))
		}
		outside := func(a netip.Addr) bool {
			return !slices.ContainsFunc(w.networks, func(n *named.Network) bool {
				return slices.ContainsFunc(n.Subnets, func(s named.Subnet) bool { return s.Prefix.Contains(a) })
			})
		}
		for range 400 {
			family := r.IntN(2)
			all := addrs[family]
			p := flowPacket{from: all[r.IntN(len(all))], to: all[r.IntN(len(all))]}
			if outside(p.from) && outside(p.to) {
				continue
			}
			icmp := []packet.Protocol{packet.ICMP, packet.ICMPv6}[family]
			p.protocol = []packet.Protocol{packet.TCP, packet.UDP, icmp, 47}[r.IntN(4)]
			p.port = []uint16{22, 53, 79, 80, 85, 90, 91, 443}[r.IntN(8)]
			v, matches := got(flows, p)
			if want := w.want(rules, p); v != want || matches > 1 {
				t.Fatalf("seed %d: %+v: verdict %d by %d flows, want %d; rules %v", seed, p, v, matches, want, rules)
			}
		}
	}
}

// A rule is the same after it was written to a file and read again.
func TestRuleText(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 500 {
		rule := randomRule(r)
		again, err := named.ParseStored(rule.String())
		if err != nil || again.String() != rule.String() || again.From != rule.From || again.To != rule.To || !slices.Equal(again.Ports, rule.Ports) || again.Protocol != rule.Protocol {
			t.Fatalf("%s: read again as %s: %v", rule, again, err)
		}
	}
}
