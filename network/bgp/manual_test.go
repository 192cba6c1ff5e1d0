package bgp_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/bgp"
)

// example returns the block of a language in the manual.
func example(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../doc/bgp.md")
	must(t, err)
	_, after, ok := strings.Cut(string(text), "```"+language+"\n")
	block, _, end := strings.Cut(after, "```")
	if !ok || !end {
		t.Fatalf("doc/bgp.md has no block of %s", language)
	}
	return block
}

// TestManual runs the configurations of doc/bgp.md.
func TestManual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, program, debian string
		protocol              int
		hop6                  string // of prefixes of other hosts
		start                 func(*testing.T, *lab.Node)
	}{
		{"bird", "bird", "bird2", birdProtocol, "2001:db8::2", func(t *testing.T, n *lab.Node) { newBird(t, n, example(t, "bird")) }},
		{"frr", "bgpd", "frr", frrProtocol, "2001:db8::fe", func(t *testing.T, n *lab.Node) { newFRR(t, n, example(t, "frr"), "staticd") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			need(t, c.program, c.debian)
			nodes := segment(t, "a", "b", "router")
			must(t, nodes[2].Address("eth0", prefix("192.0.2.254/24"), prefix("2001:db8::fe/64")))
			c.start(t, nodes[2])
			for i, n := range nodes[:2] {
				newSpeaker(t, n, order{
					Config:   &settings{RouterID: addr(fmt.Sprintf("192.0.2.%d", i+1)), AS: 65001, NextHop6: addr(fmt.Sprintf("2001:db8::%d", i+1)), Peers: []bgp.Peer{{Address: addr("192.0.2.254"), AS: 65000}}},
					Announce: prefixes(fmt.Sprintf("10.64.%d.0/26", i+1), fmt.Sprintf("2001:db8:64:%d::/64", i+1)),
				})
			}
			wantRoutes(t, nodes[2], c.protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.2.0/26 via 192.0.2.2",
				"2001:db8:64:1::/64 via 2001:db8::1", "2001:db8:64:2::/64 via 2001:db8::2")
			// Each host learns the other one's prefixes, though they have one AS number.
			wantRoutes(t, nodes[0], bgp.Protocol, "10.64.2.0/26 via 192.0.2.2", "198.51.100.0/24 via 192.0.2.254", "2001:db8:64:2::/64 via "+c.hop6)
		})
	}
}
