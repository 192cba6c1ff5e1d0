package bgp_test

import (
	"fmt"
	"strings"
	"testing"

	"cleat/network/bgp"
)

// TestSpeakers has three of our own in a row: a and c have no session with each other.
//
//	a (AS 65001) ── b (AS 65000) ── c (AS 65002)
func TestSpeakers(t *testing.T) {
	t.Parallel()
	nodes := segment(t, "a", "b", "c")
	hostA := &settings{RouterID: addr("192.0.2.1"), AS: 65001, NextHop6: addr("2001:db8::1"), Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000, Hold: bgp.MinHold}}}
	a := newSpeaker(t, nodes[0], order{Config: hostA, Announce: prefixes("10.64.1.0/26", "2001:db8:64:1::/64"),
		Filter: &bgp.Filter{Networks: prefixes("10.64.0.0/18"), Blocks: []bgp.Block{{Prefix: prefix("10.64.2.0/26")}}}})
	b := newSpeaker(t, nodes[1], order{Config: &settings{RouterID: addr("192.0.2.2"), AS: 65000, Port: 179, NextHop6: addr("2001:db8::2"),
		Peers: []bgp.Peer{{Address: addr("192.0.2.1"), AS: 65001}, {Address: addr("192.0.2.3"), AS: 65002}}},
		Announce: prefixes("10.64.2.0/26", "10.64.3.0/26", "198.51.100.0/24", "192.0.2.0/24", "0.0.0.0/0", "2001:db8:64:2::/64")})
	c := newSpeaker(t, nodes[2], order{Config: &settings{RouterID: addr("192.0.2.3"), AS: 65002, Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000, Default: true}}},
		Announce: prefixes("10.64.4.0/26")})
	for _, s := range []*speaker{a, b, c} {
		s.established()
	}

	t.Run("what the filter accepts is in the kernel", func(t *testing.T) {
		wantRoutes(t, nodes[0], bgp.Protocol, "10.64.2.0/26 via 192.0.2.2", "198.51.100.0/24 via 192.0.2.2", "2001:db8:64:2::/64 via 2001:db8::2")
		wantRoutes(t, nodes[1], bgp.Protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.4.0/26 via 192.0.2.3", "2001:db8:64:1::/64 via 2001:db8::1")
	})
	t.Run("hosts pass nothing on, and a default route needs consent", func(t *testing.T) {
		wantRoutes(t, nodes[2], bgp.Protocol, "0.0.0.0/0 via 192.0.2.2", "10.64.2.0/26 via 192.0.2.2", "10.64.3.0/26 via 192.0.2.2", "198.51.100.0/24 via 192.0.2.2")
	})
	t.Run("what somebody deletes comes back", func(t *testing.T) {
		must(t, (&bgp.Kernel{NS: nodes[0].NS}).Remove())
		wantRoutes(t, nodes[0], bgp.Protocol, "10.64.2.0/26 via 192.0.2.2", "198.51.100.0/24 via 192.0.2.2", "2001:db8:64:2::/64 via 2001:db8::2")
	})
	t.Run("prefixes and filters change", func(t *testing.T) {
		b.announce("10.64.2.0/26", "10.64.2.5/32", "10.64.3.0/26")
		wantRoutes(t, nodes[0], bgp.Protocol, "10.64.2.0/26 via 192.0.2.2", "10.64.2.5/32 via 192.0.2.2")
		a.do(order{Filter: &bgp.Filter{Networks: prefixes("10.64.0.0/18"), Blocks: []bgp.Block{{Prefix: prefix("10.64.3.0/26")}}}})
		wantRoutes(t, nodes[0], bgp.Protocol, "10.64.3.0/26 via 192.0.2.2")
	})
	t.Run("state", func(t *testing.T) {
		eventually(t, func() error {
			got := a.do(order{})[0]
			if !got.Established || got.Since.IsZero() || got.Sent != 2 || got.Received != 3 || got.AS != 65000 || got.Error != "" {
				return fmt.Errorf("state is %+v", got)
			}
			return nil
		})
	})
	t.Run("a restart loses nothing", func(t *testing.T) {
		must(t, nodes[0].Address("lo", prefix("10.64.1.1/32")))
		stop := stream(t, nodes[1], nodes[0], addr("192.0.2.2"), addr("10.64.1.1"))
		a.stop()
		wantRoutes(t, nodes[0], bgp.Protocol, "10.64.3.0/26 via 192.0.2.2")
		hostA.Restarting = true
		a = newSpeaker(t, nodes[0], order{Config: hostA, Announce: prefixes("10.64.1.0/26", "10.64.1.64/26")})
		a.established()
		wantRoutes(t, nodes[1], bgp.Protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.1.64/26 via 192.0.2.1", "10.64.4.0/26 via 192.0.2.3")
		if sent, received := stop(); sent == 0 || sent != received {
			t.Errorf("%d datagrams sent, %d came back", sent, received)
		}
	})
}

// TestEnds are sessions that end, or don't begin, by the fault of the peer.
func TestEnds(t *testing.T) {
	t.Parallel()
	nodes := segment(t, "a", "b", "c")
	peer := bgp.Peer{Address: addr("192.0.2.1"), AS: 65001}
	b := order{Config: &settings{RouterID: addr("192.0.2.2"), AS: 65000, Port: 179, Peers: []bgp.Peer{peer}}, Announce: prefixes("198.51.100.0/26", "198.51.100.64/26", "198.51.100.128/26")}
	c := order{Config: &settings{RouterID: addr("192.0.2.3"), AS: 65009, Port: 179, Peers: []bgp.Peer{peer}}, Announce: prefixes("203.0.113.0/24")}
	newSpeaker(t, nodes[1], b)
	newSpeaker(t, nodes[2], c)
	a := newSpeaker(t, nodes[0], order{Config: &settings{RouterID: addr("192.0.2.1"), AS: 65001,
		Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000, MaxPrefixes: 2}, {Address: addr("192.0.2.3"), AS: 65000}}}, Announce: prefixes("10.64.1.0/26")})
	for i, want := range []string{"more than 2 prefixes", "another AS number"} {
		eventually(t, func() error {
			if got := a.do(order{})[i]; got.Established || !strings.Contains(got.Error, want) {
				return fmt.Errorf("state is %+v, want %q", got, want)
			}
			return nil
		})
	}
	wantRoutes(t, nodes[0], bgp.Protocol)
}
