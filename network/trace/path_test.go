package trace

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/survey"
)

func TestPathMTU(t *testing.T) {
	for _, tt := range []struct {
		name     string
		hops     []Hop
		mtu      int
		smallest []string
		warn     string // part of the only warning; "" for none
	}{
		{name: "all alike", hops: []Hop{{Link: "a", Way: "out", MTU: 1500, routed: true}, {Link: "b", Way: "in", MTU: 1500}}, mtu: 1500},
		{name: "a small port", mtu: 1400, smallest: []string{"p"}, warn: "dropped silently at /p",
			hops: []Hop{{Link: "a", Way: "out", MTU: 1500, routed: true}, {Link: "p", Way: "in", MTU: 1400}, {Link: "b", Way: "in", MTU: 1500}}},
		{name: "the MTU of a bridge itself does not count", mtu: 1500,
			hops: []Hop{{Link: "a", Way: "out", MTU: 1500, routed: true}, {Link: "br", Way: "through", MTU: 1280}, {Link: "b", Way: "in", MTU: 1500}}},
		{name: "a smaller router answers by ICMP", mtu: 1400, smallest: []string{"r", "b"},
			hops: []Hop{{Link: "a", Way: "out", MTU: 1500, routed: true}, {Link: "q", Way: "in", MTU: 1500}, {Link: "r", Way: "out", MTU: 1400, routed: true}, {Link: "b", Way: "in", MTU: 1400}}},
		{name: "a tunnel that fits", mtu: 1450,
			smallest: nil,
			hops:     []Hop{{Link: "vx", Way: "out", MTU: 1450, routed: true}, {Link: "u", Way: "out", MTU: 1500, Overhead: 50, routed: true}}},
		{name: "a tunnel that does not fit", mtu: 1450, smallest: []string{"u"}, warn: "do not fit into /u",
			hops: []Hop{{Link: "vx", Way: "out", MTU: 1500, routed: true}, {Link: "u", Way: "out", MTU: 1500, Overhead: 50, routed: true}}},
		{name: "small after the tunnel", mtu: 1300, smallest: []string{"p"}, warn: "dropped silently at /p",
			hops: []Hop{{Link: "vx", Way: "out", MTU: 1450, routed: true}, {Link: "u", Way: "out", MTU: 1500, Overhead: 50, routed: true}, {Link: "vy", Way: "in", MTU: 1450}, {Link: "p", Way: "out", MTU: 1300}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := Path{Hops: tt.hops}
			p.findMTU()
			var smallest []string
			for _, h := range p.Hops {
				if h.Smallest {
					smallest = append(smallest, h.Link)
				}
			}
			if p.MTU != tt.mtu || strings.Join(smallest, " ") != strings.Join(tt.smallest, " ") {
				t.Errorf("mtu %d at %v, want %d at %v", p.MTU, smallest, tt.mtu, tt.smallest)
			}
			w := silentDrops(p.Hops)
			if tt.warn == "" && len(w) > 0 || tt.warn != "" && (len(w) != 1 || !strings.Contains(w[0], tt.warn)) {
				t.Errorf("warnings %q, want %q", w, tt.warn)
			}
		})
	}
}

func TestPathText(t *testing.T) {
	p := Path{From: "web", To: "db", Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("192.0.2.2"), Complete: true, MTU: 1400, Symmetric: true, Back: []string{"x"},
		Warnings: []string{"packets of more than 1400 bytes are dropped silently at switch/port1, but web/eth0 sends up to 1500"},
		Hops: []Hop{{Namespace: "web", Link: "eth0", Kind: "veth", Way: "out", MTU: 1500, Up: true, Detail: "route to 192.0.2.2: on the link", Qdisc: "noqueue", SpeedMbit: 10000,
			Offloads: "tx rx sg tso gso gro", Counters: survey.Counters{TxDropped: 3},
			Filters: []Filter{{Table: "inet filter", Chain: "out", Hook: "output", Policy: "drop", Rules: 4, Match: []RuleHit{
				{Chain: "out", Handle: 7, Text: `iifname "a-very-long-one" ip saddr 192.0.2.1 ip daddr 198.51.100.2 l4proto tcp dport 443 counter packets 12345 drop`, Drops: true}}}}},
			{Namespace: "switch", Link: "port1", Kind: "veth", Way: "in", MTU: 1400, Smallest: true}}}
	var b bytes.Buffer
	if err := p.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"mtu 1400 <- smallest DOWN", "3 tx dropped", "nominal 10 Gbit/s", "may drop", "over the same links"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
}

func TestBlockers(t *testing.T) {
	drop := RuleHit{Chain: "c", Handle: 2, Text: "drop", Certain: true, Drops: true}
	for _, tt := range []struct {
		name  string
		match []RuleHit
		want  string
	}{
		{"a certain drop", []RuleHit{drop}, "a rule in n drops the packets: t c: drop (handle 2)"},
		{"a drop after a possible accept", []RuleHit{{Accepts: true}, drop}, "a rule in n drops what no earlier rule accepts: t c: drop (handle 2)"},
		{"a possible drop", []RuleHit{{Drops: true}}, ""},
		{"a certain accept", []RuleHit{{Certain: true, Accepts: true}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(blockers([]Hop{{Namespace: "n", Filters: []Filter{{Table: "t", Chain: "c", Match: tt.match}}}}), "|")
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
