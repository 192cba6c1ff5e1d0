package bgp_test

import (
	"testing"

	"cleat/network/bgp"
)

// TestInherited starts a speaker on a host that has routes of an earlier one. One of its two routers is gone.
func TestInherited(t *testing.T) {
	t.Parallel()
	nodes := segment(t, "host", "r2")
	k := &bgp.Kernel{NS: nodes[0].NS}
	_, err := k.Sync([]bgp.Route{route("0.0.0.0/0", "192.0.2.2"), route("10.64.2.0/26", "192.0.2.2"), route("10.64.3.0/26", "192.0.2.2"),
		route("198.51.100.0/24", "192.0.2.3"), route("203.0.113.0/24", "192.0.2.3")}, nil)
	must(t, err)
	router := newSpeaker(t, nodes[1], order{Config: &settings{RouterID: addr("192.0.2.2"), AS: 65000, Port: 179, Peers: []bgp.Peer{{Address: addr("192.0.2.1"), AS: 65001}}},
		Announce: prefixes("203.0.113.0/24")})
	host := order{Config: &settings{RouterID: addr("192.0.2.1"), AS: 65001, Restarting: true, Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000}, {Address: addr("192.0.2.3"), AS: 65000}}},
		Announce: prefixes("10.64.1.0/26"), Filter: &bgp.Filter{Networks: prefixes("10.64.0.0/18"), Blocks: []bgp.Block{{Prefix: prefix("10.64.2.0/26")}}}}
	s := newSpeaker(t, nodes[0], host)
	stay := []string{"10.64.2.0/26 via 192.0.2.2", "198.51.100.0/24 via 192.0.2.3"}
	wantRoutes(t, nodes[0], bgp.Protocol, append(stay, "203.0.113.0/24 via 192.0.2.2")...)
	router.announce()
	wantRoutes(t, nodes[0], bgp.Protocol, stay...)
	s.kill()
	host.Config.Restarting = false
	newSpeaker(t, nodes[0], host)
	wantRoutes(t, nodes[0], bgp.Protocol)
}

// TestMovedAtStart has a host that gets another address before its speaker has begun.
func TestMovedAtStart(t *testing.T) {
	t.Parallel()
	nodes := segment(t, "host", "r2")
	newSpeaker(t, nodes[1], order{Config: &settings{RouterID: addr("192.0.2.2"), AS: 65000, Port: 179, NextHop6: addr("2001:db8::2"), Peers: []bgp.Peer{{Address: addr("192.0.2.1"), AS: 65001}}},
		Announce: prefixes("203.0.113.0/24")})
	s := newSpeaker(t, nodes[0], order{Config: &settings{RouterID: addr("192.0.2.1"), AS: 65001, NextHop6: addr("2001:db8::9"), Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000}}},
		Moved: addr("2001:db8::1"), Announce: prefixes("10.64.1.0/26", "2001:db8:64:1::/64")})
	s.established()
	wantRoutes(t, nodes[1], bgp.Protocol, "10.64.1.0/26 via 192.0.2.1", "2001:db8:64:1::/64 via 2001:db8::1")
}
