package bgp_test

import (
	"net"
	"net/netip"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/network/bgp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func route(to string, hops ...string) bgp.Route {
	r := bgp.Route{Prefix: prefix(to)}
	for _, h := range hops {
		r.Hops = append(r.Hops, addr(h))
	}
	return r
}

// addForeign adds a route that somebody else has made.
func addForeign(t *testing.T, node *lab.Node, to, via string, metric int) {
	t.Helper()
	h, err := link.Handle(node.NS)
	must(t, err)
	defer h.Close()
	_, dst, err := net.ParseCIDR(to)
	must(t, err)
	must(t, h.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(via), Protocol: unix.RTPROT_STATIC, Priority: metric}))
}

func TestKernel(t *testing.T) {
	nodes := segment(t, "host", "other")
	n := nodes[0]
	k := &bgp.Kernel{NS: n.NS}
	must(t, n.Address("lo", prefix("10.64.1.1/32")))
	addForeign(t, n, "203.0.113.0/24", "192.0.2.9", 0)
	addForeign(t, n, "198.51.100.0/24", "192.0.2.9", 500)
	for _, c := range []struct {
		name   string
		routes []bgp.Route
		keep   bool
		want   []string
		fails  bool
	}{
		{"a route", []bgp.Route{route("198.51.100.0/24", "192.0.2.2")}, false, []string{"198.51.100.0/24 via 192.0.2.2"}, false},
		{"two next hops", []bgp.Route{route("198.51.100.0/24", "192.0.2.2", "192.0.2.3")}, false, []string{"198.51.100.0/24 via 192.0.2.2 via 192.0.2.3"}, false},
		{"another one", []bgp.Route{route("198.51.100.0/24", "192.0.2.3")}, false, []string{"198.51.100.0/24 via 192.0.2.3"}, false},
		{"what is missing stays", []bgp.Route{route("10.64.2.0/26", "192.0.2.2")}, true, []string{"10.64.2.0/26 via 192.0.2.2", "198.51.100.0/24 via 192.0.2.3"}, false},
		{"what is missing goes", []bgp.Route{route("10.64.2.0/26", "192.0.2.2")}, false, []string{"10.64.2.0/26 via 192.0.2.2"}, false},
		{"a source", []bgp.Route{{Prefix: prefix("10.64.2.0/26"), Hops: []netip.Addr{addr("192.0.2.2")}, Source: addr("10.64.1.1")}}, false, []string{"10.64.2.0/26 via 192.0.2.2 src 10.64.1.1"}, false},
		{"a far next hop", []bgp.Route{route("10.64.2.0/26", "203.0.113.7")}, false, []string{"10.64.2.0/26 via 192.0.2.9"}, false},
		{"a next hop by a route of this package", []bgp.Route{route("10.64.2.0/26", "192.0.2.2"), route("10.64.3.0/26", "10.64.2.9")}, false, []string{"10.64.2.0/26 via 192.0.2.2"}, true},
		{"this host as the next hop", []bgp.Route{route("10.64.3.0/26", "192.0.2.1")}, false, nil, true},
		{"a prefix of a link", []bgp.Route{route("192.0.2.0/24", "192.0.2.2"), route("2001:db8::/64", "2001:db8::2")}, false, nil, false},
		{"IPv6", []bgp.Route{route("2001:db8:1::/48", "2001:db8::2")}, false, []string{"2001:db8:1::/48 via 2001:db8::2"}, false},
		{"two IPv6 next hops", []bgp.Route{route("2001:db8:1::/48", "2001:db8::2", "2001:db8::3")}, false, []string{"2001:db8:1::/48 via 2001:db8::2 via 2001:db8::3"}, false},
		{"one of them", []bgp.Route{route("2001:db8:1::/48", "2001:db8::3")}, false, []string{"2001:db8:1::/48 via 2001:db8::3"}, false},
		{"IPv4 by IPv6", []bgp.Route{route("10.64.2.0/26", "2001:db8::2"), route("10.64.3.0/26", "2001:db8::2", "2001:db8::3")}, false, []string{"10.64.2.0/26 via 2001:db8::2", "10.64.3.0/26 via 2001:db8::2 via 2001:db8::3"}, false},
		{"IPv6 by a link-local address", []bgp.Route{route("2001:db8:1::/48", "fe80::2%eth0")}, false, []string{"2001:db8:1::/48 via fe80::2"}, false},
		{"a link-local address of no link", []bgp.Route{route("2001:db8:1::/48", "fe80::2")}, false, nil, true},
		{"IPv6 by IPv4", []bgp.Route{route("2001:db8:1::/48", "192.0.2.2")}, false, nil, true},
		{"default", []bgp.Route{route("0.0.0.0/0", "192.0.2.2"), route("::/0", "2001:db8::2")}, false, []string{"0.0.0.0/0 via 192.0.2.2", "::/0 via 2001:db8::2"}, false},
		{"a far default", []bgp.Route{route("0.0.0.0/0", "203.0.113.7")}, false, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			keep := func(bgp.Route) bool { return c.keep }
			if _, err := k.Sync(c.routes, keep); (err != nil) != c.fails {
				t.Errorf("error is %v", err)
			}
			if err := sameRoutes(routes(t, n, bgp.Protocol), c.want); err != nil {
				t.Error(err)
			}
			if changed, _ := k.Sync(c.routes, keep); len(changed) > 0 {
				t.Errorf("once more changes %s", changed)
			}
		})
	}
	t.Run("routes of others stay", func(t *testing.T) {
		must(t, k.Remove())
		if err := sameRoutes(routes(t, n, unix.RTPROT_STATIC), []string{"203.0.113.0/24 via 192.0.2.9", "198.51.100.0/24 via 192.0.2.9"}); err != nil {
			if sameRoutes(routes(t, n, unix.RTPROT_STATIC), []string{"198.51.100.0/24 via 192.0.2.9", "203.0.113.0/24 via 192.0.2.9"}) != nil {
				t.Error(err)
			}
		}
	})
	t.Run("devices", func(t *testing.T) {
		got, err := k.Devices([]netip.Addr{addr("192.0.2.2"), addr("2001:db8::2"), addr("203.0.113.1")})
		if err != nil || len(got) != 1 || got[0] != "eth0" {
			t.Errorf("%q, %v", got, err)
		}
	})
}
