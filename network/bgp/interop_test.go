package bgp_test

import (
	"fmt"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/bgp"

	"golang.org/x/sys/unix"
)

// Protocols of the daemons' routes (rtm_protocol).
const (
	birdProtocol = unix.RTPROT_BIRD
	frrProtocol  = unix.RTPROT_BGP
)

const password = "not a secret"

// birdConf is a router that speaks external BGP with 192.0.2.1, and announces prefixes.
func birdConf(id string, announced ...string) string {
	var v4, v6 string
	for _, p := range announced {
		if strings.Contains(p, ":") {
			v6 += fmt.Sprintf("\troute %s unreachable;\n", p)
		} else {
			v4 += fmt.Sprintf("\troute %s unreachable;\n", p)
		}
	}
	return fmt.Sprintf(`router id %s;
protocol device { }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; merge paths on; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; merge paths on; }
protocol static { ipv4;
%s}
protocol static { ipv6;
%s}
protocol bgp host {
	local as 65000;
	neighbor 192.0.2.1 as 65001;
	password %q;
	graceful restart on;
	hold time 9;
	connect delay time 1; connect retry time 1; error wait time 1, 2;
	ipv4 { import all; export where source = RTS_STATIC; next hop self; };
	ipv6 { import all; export where source = RTS_STATIC; next hop self; next hop address 2001:db8::%s; };
}
`, id, v4, v6, password, id[len("192.0.2."):])
}

// frrConf is the same for FRR.
func frrConf(id string, announced ...string) string {
	var v4, v6 string
	for _, p := range announced {
		if strings.Contains(p, ":") {
			v6 += fmt.Sprintf("  network %s\n", p)
		} else {
			v4 += fmt.Sprintf("  network %s\n", p)
		}
	}
	return fmt.Sprintf(`router bgp 65000
 bgp router-id %s
 no bgp ebgp-requires-policy
 no bgp network import-check
 bgp graceful-restart
 bgp graceful-restart preserve-fw-state
 neighbor 192.0.2.1 remote-as 65001
 neighbor 192.0.2.1 password %s
 neighbor 192.0.2.1 timers 3 9
 neighbor 192.0.2.1 timers connect 1
 neighbor 192.0.2.1 advertisement-interval 0
 address-family ipv4 unicast
%s exit-address-family
 address-family ipv6 unicast
  neighbor 192.0.2.1 activate
  neighbor 192.0.2.1 route-map own out
%s exit-address-family
exit
route-map own permit 10
 set ipv6 next-hop global 2001:db8::%s
exit
`, id, strings.ReplaceAll(password, " ", "-"), v4, v6, id[len("192.0.2."):])
}

// interop is what is tried with each daemon.
type interop struct {
	protocol int // of the daemon's routes
	password string
	start    func(t *testing.T, node *lab.Node, id string, announced ...string) *daemon
	announce func(d *daemon, id string, announced ...string) // while it runs
	rewrite  func(d *daemon, id string, announced ...string) // while it does not
	program  string                                          // that speaks BGP
}

func TestBird(t *testing.T) {
	t.Parallel()
	need(t, "bird", "bird2")
	testInterop(t, interop{protocol: birdProtocol, password: password, program: "bird",
		start: func(t *testing.T, node *lab.Node, id string, all ...string) *daemon {
			return newBird(t, node, birdConf(id, all...))
		},
		announce: func(d *daemon, id string, all ...string) { d.reconfigure(birdConf(id, all...)) },
		rewrite:  func(d *daemon, id string, all ...string) { d.write("bird.conf", birdConf(id, all...)) },
	})
}

func TestFRR(t *testing.T) {
	t.Parallel()
	need(t, "bgpd", "frr")
	testInterop(t, interop{protocol: frrProtocol, password: strings.ReplaceAll(password, " ", "-"), program: "bgpd",
		start: func(t *testing.T, node *lab.Node, id string, all ...string) *daemon {
			return newFRR(t, node, frrConf(id, all...))
		},
		announce: func(d *daemon, id string, all ...string) { d.configureFRR(all...) },
		rewrite:  func(d *daemon, id string, all ...string) { d.write("frr.conf", frrConf(id, all...)) },
	})
}

// testInterop has a host and two routers on a segment:
//
//	host 192.0.2.1 (AS 65001) ── r2 192.0.2.2, r3 192.0.2.3 (AS 65000)
func testInterop(t *testing.T, with interop) {
	nodes := segment(t, "host", "r2", "r3")
	host, r2, r3 := nodes[0], nodes[1], nodes[2]
	d2 := with.start(t, r2, "192.0.2.2", "198.51.100.0/26", "203.0.113.0/26", "203.0.113.64/26", "2001:db8:51::/48")
	with.start(t, r3, "192.0.2.3", "198.51.100.0/26", "2001:db8:51::/48")
	cfg := &settings{RouterID: addr("192.0.2.1"), AS: 65001, Port: 179, NextHop6: addr("2001:db8::1"), Peers: []bgp.Peer{
		{Address: addr("192.0.2.2"), AS: 65000, Password: with.password}, {Address: addr("192.0.2.3"), AS: 65000, Password: with.password}}}
	s := newSpeaker(t, host, order{Config: cfg, Announce: prefixes("10.64.1.0/26", "10.64.1.64/26", "10.64.2.9/32", "2001:db8:64:1::/64")})
	s.established()

	both := []string{"198.51.100.0/26 via 192.0.2.2 via 192.0.2.3"}
	v6 := "2001:db8:51::/48 via 2001:db8::2 via 2001:db8::3"
	t.Run("routes of both routers are in our kernel", func(t *testing.T) {
		wantRoutes(t, host, bgp.Protocol, append(both, "203.0.113.0/26 via 192.0.2.2", "203.0.113.64/26 via 192.0.2.2", v6)...)
	})
	t.Run("our routes are in theirs", func(t *testing.T) {
		for _, r := range []*lab.Node{r2, r3} {
			wantRoutes(t, r, with.protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.1.64/26 via 192.0.2.1", "10.64.2.9/32 via 192.0.2.1", "2001:db8:64:1::/64 via 2001:db8::1")
		}
	})
	t.Run("withdrawals, both ways", func(t *testing.T) {
		s.announce("10.64.1.0/26", "10.64.1.64/26")
		with.announce(d2, "192.0.2.2", "198.51.100.0/26", "203.0.113.0/26", "2001:db8:51::/48")
		wantRoutes(t, r2, with.protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.1.64/26 via 192.0.2.1")
		wantRoutes(t, host, bgp.Protocol, append(both, "203.0.113.0/26 via 192.0.2.2", v6)...)
	})
	t.Run("a router that is killed comes back", func(t *testing.T) {
		d2.kill(with.program)
		with.rewrite(d2, "192.0.2.2", "198.51.100.0/26", "203.0.113.128/26", "2001:db8:51::/48")
		// What r3 announces too leads there; what r2 alone has announced stays.
		wantRoutes(t, host, bgp.Protocol, "198.51.100.0/26 via 192.0.2.3", "203.0.113.0/26 via 192.0.2.2", "2001:db8:51::/48 via 2001:db8::3")
		d2.start()
		wantRoutes(t, host, bgp.Protocol, append(both, "203.0.113.128/26 via 192.0.2.2", v6)...)
		wantRoutes(t, r2, with.protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.1.64/26 via 192.0.2.1")
	})
	t.Run("our speaker is killed and loses no packet", func(t *testing.T) {
		must(t, host.Address("lo", prefix("10.64.1.1/32")))
		must(t, r2.Address("lo", prefix("203.0.113.129/32")))
		stop := stream(t, r2, host, addr("203.0.113.129"), addr("10.64.1.1"))
		s.kill()
		want := append(both, "203.0.113.128/26 via 192.0.2.2", v6)
		if err := sameRoutes(routes(t, host, bgp.Protocol), want); err != nil {
			t.Error(err)
		}
		cfg.Restarting = true
		s = newSpeaker(t, host, order{Config: cfg, Announce: prefixes("10.64.1.0/26", "10.64.1.128/26")})
		s.established()
		for _, r := range []*lab.Node{r2, r3} {
			wantRoutes(t, r, with.protocol, "10.64.1.0/26 via 192.0.2.1", "10.64.1.128/26 via 192.0.2.1")
		}
		wantRoutes(t, host, bgp.Protocol, want...)
		if sent, received := stop(); sent == 0 || sent != received {
			t.Errorf("%d datagrams sent, %d came back", sent, received)
		} else {
			t.Logf("%d datagrams sent, all came back", sent)
		}
	})
}
