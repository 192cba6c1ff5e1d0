package named_test

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/named"
	"cleat/packet"
)

// Decisions are those of the rules as they are written, and a rule that is said to decide
// decides the same way.
func TestDecide(t *testing.T) {
	byRule := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(r)
		w.networks[1].Internal = r.IntN(2) == 0
		var rules []named.Rule
		for range r.IntN(8) {
			rules = append(rules, randomRule(r))
		}
		addrs := []string{"203.0.113.7", "203.0.113.8", "10.99.0.1", "10.20.0.200"}
		for _, e := range w.endpoints {
			addrs = append(addrs, e.Addresses[0].String())
		}
		for range 200 {
			traffic := named.Traffic{From: netip.MustParseAddr(addrs[r.IntN(len(addrs))]), To: netip.MustParseAddr(addrs[r.IntN(len(addrs))]),
				Protocol: []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP}[r.IntN(3)], Port: []uint16{22, 53, 80, 85, 91}[r.IntN(5)]}
			d := named.Decide(rules, w.networks, w.endpoints, w.learned, traffic)
			if d.Reason == named.NotFiltered {
				continue
			}
			want := w.want(rules, flowPacket{traffic.From, traffic.To, traffic.Protocol, traffic.Port})
			decided := 0
			if d.Reason == named.ByRule || d.Reason == named.ByDefault {
				decided = map[bool]int{true: 1, false: 2}[d.Allowed]
			}
			if decided != want {
				t.Fatalf("seed %d: %+v: decided %+v, want verdict %d; rules %v", seed, traffic, d, want, rules)
			}
			if (d.Rule != nil) != (d.Reason == named.ByRule) || d.Rule != nil && d.Rule.Allow != d.Allowed {
				t.Fatalf("seed %d: %+v: %+v", seed, traffic, d)
			}
			if d.Rule != nil {
				byRule++
			}
		}
	}
	if byRule < 1000 {
		t.Errorf("only %d decisions by a rule", byRule)
	}
}

// What decides, by rule and without one.
func TestDecideReason(t *testing.T) {
	exists := func(name string) bool { return name == "web" || name == "db" }
	w := newWorld(rand.New(rand.NewPCG(1, 1)))
	w.networks[0].DefaultDeny, w.networks[1].DefaultDeny = false, false
	for _, tt := range []struct {
		rules         string // separated by commas
		from, to      string
		port          uint16
		internal      bool
		want, network string
	}{
		{"", "10.20.0.2", "10.20.0.3", 80, false, "allowed: same network", "web"},
		{"", "10.20.0.2", "10.20.1.3", 80, false, "denied: apart", "web"},
		{"", "10.20.0.2", "203.0.113.7", 80, false, "allowed: outward", "web"},
		{"", "10.20.0.2", "203.0.113.7", 80, true, "denied: internal", "web"},
		{"", "203.0.113.7", "10.20.0.2", 80, false, "denied: inward", "web"},
		{"", "203.0.113.7", "203.0.113.8", 80, false, "allowed: not filtered", ""},
		{"deny web to web", "10.20.0.2", "10.20.0.3", 80, false, "denied: deny web to web", "web"},
		{"deny web to web,allow web/c0 to web/c1:80", "10.20.0.2", "10.20.0.3", 80, false, "allowed: allow web/c0 to web/c1:80", "web"},
		{"deny web to web,allow web/c0 to web/c1:80", "10.20.0.2", "10.20.0.3", 81, false, "denied: deny web to web", "web"},
		{"allow web to db,allow web/c0 to db/c1:80", "10.20.0.2", "10.20.1.3", 80, false, "allowed: allow web/c0 to db/c1:80", "web"},
		{"allow 203.0.113.0/24 to web/c0", "203.0.113.7", "10.20.0.2", 80, false, "allowed: allow 203.0.113.0/24 to web/c0", "web"},
	} {
		var rules []named.Rule
		for text := range strings.SplitSeq(tt.rules, ",") {
			verb, rest, ok := strings.Cut(text, " ")
			if !ok {
				continue
			}
			rule, err := named.ParseRule(verb == "allow", rest, exists)
			must(t, err)
			rules = append(rules, rule)
		}
		w.networks[0].Internal = tt.internal
		d := named.Decide(rules, w.networks, w.endpoints, w.learned, named.Traffic{From: netip.MustParseAddr(tt.from), To: netip.MustParseAddr(tt.to), Protocol: packet.TCP, Port: tt.port})
		got := map[bool]string{true: "allowed: ", false: "denied: "}[d.Allowed]
		if d.Rule != nil {
			got += d.Rule.String()
		} else {
			got += string(d.Reason)
		}
		if got != tt.want || d.Network != tt.network {
			t.Errorf("%q: %s to %s:%d is %s by network %q, want %s by %q", tt.rules, tt.from, tt.to, tt.port, got, d.Network, tt.want, tt.network)
		}
	}
	w.networks[0].DefaultDeny = true
	if d := named.Decide(nil, w.networks, w.endpoints, nil, named.Traffic{From: netip.MustParseAddr("10.20.0.2"), To: netip.MustParseAddr("10.20.0.3"), Protocol: packet.TCP, Port: 80}); d != (named.Decision{Reason: named.ByDefault, Network: "web"}) {
		t.Errorf("with a default of deny: %+v", d)
	}
}
