package bgp_test

import (
	"strings"
	"testing"
	"time"

	"cleat/network/bgp"
)

func TestNewRefuses(t *testing.T) {
	good := bgp.Peer{Address: addr("192.0.2.254"), AS: 65000}
	with := func(change func(*bgp.Peer)) []bgp.Peer {
		p := good
		change(&p)
		return []bgp.Peer{p}
	}
	for _, c := range []struct {
		name string
		cfg  bgp.Config
		want string // "": accepted
	}{
		{"complete", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: []bgp.Peer{good}}, ""},
		{"no AS", bgp.Config{RouterID: addr("192.0.2.1"), Peers: []bgp.Peer{good}}, "autonomous system"},
		{"IPv6 router id", bgp.Config{AS: 65001, RouterID: addr("2001:db8::1"), Peers: []bgp.Peer{good}}, "router id"},
		{"no peer", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1")}, "needs a peer"},
		{"twice", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: []bgp.Peer{good, good}}, "configured twice"},
		{"IPv4 next hop of IPv6", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), NextHop6: addr("192.0.2.1"), Peers: []bgp.Peer{good}}, "next hop"},
		{"multicast", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: with(func(p *bgp.Peer) { p.Address = addr("224.0.0.1") })}, "want the address"},
		{"link-local without a device", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: with(func(p *bgp.Peer) { p.Address = addr("fe80::1") })}, "needs its device"},
		{"link-local", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: with(func(p *bgp.Peer) { p.Address = addr("fe80::1%eth0") })}, ""},
		{"long password", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: with(func(p *bgp.Peer) { p.Password = strings.Repeat("x", 81) })}, "81 bytes"},
		{"short hold time", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: with(func(p *bgp.Peer) { p.Hold = time.Second })}, "at least 3s"},
		{"BFD over routers", bgp.Config{AS: 65001, RouterID: addr("192.0.2.1"), Peers: with(func(p *bgp.Peer) { p.BFD, p.Multihop = true, 2 })}, "BFD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := bgp.New(c.cfg)
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestFilter(t *testing.T) {
	f := bgp.Filter{Networks: prefixes("10.64.0.0/18", "2001:db8:64::/48"),
		Blocks: []bgp.Block{{Prefix: prefix("10.64.2.0/26"), Source: addr("10.64.1.1")}, {Prefix: prefix("10.64.1.7/32")}, {Prefix: prefix("2001:db8:64:2::/64")}}}
	peers := []bgp.Peer{{Address: addr("192.0.2.254")}, {Address: addr("2001:db8::fe")}}
	for _, c := range []struct {
		name, prefix, source string
		want                 bool
	}{
		{"a prefix of others", "198.51.100.0/24", "", true},
		{"the way to a peer", "192.0.2.0/24", "", false},
		{"a peer", "192.0.2.254/32", "", false},
		{"the way to an IPv6 peer", "2001:db8::/32", "", false},
		{"a block of another host", "10.64.2.0/26", "10.64.1.1", true},
		{"an address in it", "10.64.2.9/32", "10.64.1.1", true},
		{"an address that has moved to another host", "10.64.1.7/32", "", true},
		{"an address of this host", "10.64.1.8/32", "", false},
		{"this host's block", "10.64.1.0/26", "", false},
		{"the network", "10.64.0.0/18", "", false},
		{"a block and its neighbour", "10.64.2.0/25", "", false},
		{"more than the network", "10.64.0.0/12", "", true},
		{"an IPv6 block", "2001:db8:64:2::/64", "", true},
		{"another IPv6 block", "2001:db8:64:3::/64", "", false},
		{"loopback", "127.0.0.0/8", "", false},
		{"link-local", "fe80::/10", "", false},
		{"multicast", "224.0.0.0/4", "", false},
		{"default", "0.0.0.0/0", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			source, ok := f.Accepts(prefix(c.prefix), peers)
			if ok != c.want || source.IsValid() != (c.source != "") || source.IsValid() && source.String() != c.source {
				t.Errorf("%s: %v, source %v; want %v, %q", c.prefix, ok, source, c.want, c.source)
			}
		})
	}
}
