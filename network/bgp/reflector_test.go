package bgp_test

import (
	"fmt"
	"testing"
	"time"

	"cleat/lab"
	"cleat/network/bgp"

	"golang.org/x/sys/unix"
)

// reflector6 is a route reflector with sessions over IPv6. IPv4 prefixes have IPv6 next hops (RFC 8950).
const reflector6 = `router id 192.0.2.3;
protocol device { }
protocol bgp hosts {
	local 2001:db8::3 as 65001;
	neighbor range 2001:db8::/64 internal;
	rr client;
	graceful restart on;
	ipv4 { import all; export where source = RTS_BGP; extended next hop on; };
	ipv6 { import all; export where source = RTS_BGP; };
}
`

// TestReflector is two hosts with one AS number, whose sessions with a reflector are over IPv6.
func TestReflector(t *testing.T) {
	t.Parallel()
	need(t, "bird", "bird2")
	nodes := segment(t, "a", "b", "reflector")
	newBird(t, nodes[2], reflector6)
	var all []*speaker
	for i, n := range nodes[:2] {
		all = append(all, newSpeaker(t, n, order{
			Config:   &settings{RouterID: addr(fmt.Sprintf("192.0.2.%d", i+1)), AS: 65001, NextHop6: addr(fmt.Sprintf("2001:db8::%d", i+1)), Peers: []bgp.Peer{{Address: addr("2001:db8::3")}}},
			Announce: prefixes(fmt.Sprintf("10.64.%d.0/26", i), fmt.Sprintf("2001:db8:64:%d::/64", i)),
		}))
	}
	wantRoutes(t, nodes[0], bgp.Protocol, "10.64.1.0/26 via 2001:db8::2", "2001:db8:64:1::/64 via 2001:db8::2")
	wantRoutes(t, nodes[1], bgp.Protocol, "10.64.0.0/26 via 2001:db8::1", "2001:db8:64::/64 via 2001:db8::1")
	all[1].announce("10.64.1.0/26")
	wantRoutes(t, nodes[0], bgp.Protocol, "10.64.1.0/26 via 2001:db8::2")
	all[1].announce("10.64.1.0/26", "2001:db8:64:1::/64")
	wantRoutes(t, nodes[0], bgp.Protocol, "10.64.1.0/26 via 2001:db8::2", "2001:db8:64:1::/64 via 2001:db8::2")
	all[1].do(order{Moved: addr("2001:db8::12"), Announce: prefixes("2001:db8:64:1::/64")}) // one that it has lost goes
	wantRoutes(t, nodes[0], bgp.Protocol, "2001:db8:64:1::/64 via 2001:db8::12")
}

// bfd is a router that answers BFD every 0.3 s.
const bfd = `router id 192.0.2.2;
protocol device { }
protocol bfd { interface "*" { min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }; }
protocol static { ipv4; route 198.51.100.0/24 unreachable; }
protocol bgp host {
	local 192.0.2.2 as 65000;
	neighbor 192.0.2.1 as 65001;
	bfd on;
	hold time 240;
	graceful restart on;
	connect delay time 1; connect retry time 1; error wait time 1, 2;
	ipv4 { import all; export where source = RTS_STATIC; };
}
`

// bfdFRR is the same for FRR. What only bfdd reads is last: other programs stop there.
const bfdFRR = `ip route 198.51.100.0/24 blackhole
router bgp 65000
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 bgp graceful-restart
 neighbor 192.0.2.1 remote-as 65001
 neighbor 192.0.2.1 bfd profile quick
 neighbor 192.0.2.1 timers 80 240
 neighbor 192.0.2.1 timers connect 1
 neighbor 192.0.2.1 advertisement-interval 0
 address-family ipv4 unicast
  redistribute static
 exit-address-family
exit
bfd
 profile quick
  receive-interval 300
  transmit-interval 300
  detect-multiplier 3
`

// TestBFD has a router that falls silent. Its session would otherwise end after the hold time, and its routes would
// stay for its restart time.
func TestBFD(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, *lab.Node) *daemon{
		"bird": func(t *testing.T, n *lab.Node) *daemon { return newBird(t, n, bfd) },
		"frr":  func(t *testing.T, n *lab.Node) *daemon { return newFRR(t, n, bfdFRR, "staticd", "bfdd") },
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); testBFD(t, start) })
	}
}

func testBFD(t *testing.T, start func(*testing.T, *lab.Node) *daemon) {
	nodes := segment(t, "host", "router")
	d := start(t, nodes[1])
	s := newSpeaker(t, nodes[0], order{Config: &settings{RouterID: addr("192.0.2.1"), AS: 65001, Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000, BFD: true, Hold: 240 * time.Second}}},
		Announce: prefixes("10.64.1.0/26")})
	wantRoutes(t, nodes[0], bgp.Protocol, "198.51.100.0/24 via 192.0.2.2")
	eventually(t, func() error {
		if got := s.do(order{})[0]; got.BFD != "up" {
			return fmt.Errorf("state is %+v", got)
		}
		return nil
	})
	d.signal(unix.SIGSTOP)
	began := time.Now()
	wantRoutes(t, nodes[0], bgp.Protocol)
	t.Logf("routes removed after %s", time.Since(began).Round(10*time.Millisecond))
	d.signal(unix.SIGCONT)
	wantRoutes(t, nodes[0], bgp.Protocol, "198.51.100.0/24 via 192.0.2.2")
}

// TestMissingRouter is a host that restarts while one of its routers is gone. It must announce to the other one, and
// keep the routes of both.
func TestMissingRouter(t *testing.T) {
	t.Parallel()
	nodes := segment(t, "host", "r2", "r3")
	cfg := &settings{RouterID: addr("192.0.2.1"), AS: 65001, Port: 179, Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000}, {Address: addr("192.0.2.3"), AS: 65000}}}
	s := newSpeaker(t, nodes[0], order{Config: cfg, Announce: prefixes("10.64.1.0/26")})
	var routers []*speaker
	for i, n := range nodes[1:] {
		routers = append(routers, newSpeaker(t, n, order{Config: &settings{RouterID: addr(fmt.Sprintf("192.0.2.%d", i+2)), AS: 65000, Port: 179, Peers: []bgp.Peer{{Address: addr("192.0.2.1"), AS: 65001}}},
			Announce: prefixes(fmt.Sprintf("198.51.%d.0/24", 100+i))}))
	}
	both := []string{"198.51.100.0/24 via 192.0.2.2", "198.51.101.0/24 via 192.0.2.3"}
	wantRoutes(t, nodes[0], bgp.Protocol, both...)
	wantRoutes(t, nodes[1], bgp.Protocol, "10.64.1.0/26 via 192.0.2.1")
	s.kill()
	routers[1].kill()
	cfg.Restarting = true
	newSpeaker(t, nodes[0], order{Config: cfg, Announce: prefixes("10.64.1.0/26", "10.64.1.64/26")})
	wantRoutes(t, nodes[1], bgp.Protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.1.64/26 via 192.0.2.1")
	if err := sameRoutes(routes(t, nodes[0], bgp.Protocol), both); err != nil {
		t.Error(err)
	}
}
