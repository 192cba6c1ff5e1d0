package mptcp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/mptcp"

	"github.com/vishvananda/netlink"
)

// Byte counts that distinguish a link with a share of the traffic from one with only a
// handshake.
const share, aside = 500_000, 100_000

// All links between two nodes carry a connection, up to what the kernel permits.
func TestEachLinkCarries(t *testing.T) {
	need(t)
	most, err := mptcp.FindMost(t.Context())
	must(t, err)
	for _, n := range []int{3, 12} {
		t.Run(fmt.Sprintf("%d links", n), func(t *testing.T) {
			a, b := node(t, "a"), node(t, "b")
			cables(t, a, b, n)
			before := snapshot(t, a.NS)
			here, there := config(t, a, devices("d", n)...), config(t, b, devices("p", n)...)
			there.Subflow, there.Signal = false, true
			p := setUp(t, here)
			setUp(t, there)
			used := min(n, most.Subflows+1)
			if len(p.Used) != used || len(p.Unused) != n-used {
				t.Errorf("used are %v and left %v; want %d of %d", p.Used, p.Unused, used, n)
			}
			for name, bytes := range transfer(t, a, b, addr4(1, 2), 10*used) {
				switch {
				case slices.Contains(p.Used, name) && bytes < share:
					t.Errorf("%s carried %d bytes", name, bytes)
				case slices.Contains(p.Unused, name) && bytes > aside:
					t.Errorf("%s, which has no place, carried %d bytes", name, bytes)
				}
			}
			must(t, undoing(t, here).Apply())
			same(t, "after undo", snapshot(t, a.NS), before)
			if got := transfer(t, a, b, addr4(1, 2), 2); got["d2"] > aside {
				t.Errorf("after undo d2 still carries %d bytes", got["d2"])
			}
		})
	}
}

// uplinks gives a two uplinks to a server that has one address, each through its own
// router:
//
//	    d1 .1 ═══ .2 p1
//	a <                  > router ─ out 192.0.2.1 ═══ 192.0.2.2 eth0 ─ server
//	    d2 .17 ══ .18 p2
func uplinks(t *testing.T) (a, server *lab.Node) {
	t.Helper()
	a, router, server := node(t, "a"), node(t, "router"), node(t, "server")
	cables(t, a, router, 2)
	must(t, lab.Connect(lab.End{Node: router, Name: "out"}, lab.End{Node: server, Name: "eth0"}, lab.Cable{}))
	must(t, router.Address("out", netip.MustParsePrefix("192.0.2.1/24")))
	must(t, server.Address("eth0", netip.MustParsePrefix("192.0.2.2/24")))
	must(t, router.Sysctl("net/ipv4/ip_forward", "1"))
	gateway(t, server, "eth0", "192.0.2.1", 0)
	gateway(t, a, "d1", addr4(1, 2), 100)
	gateway(t, a, "d2", addr4(2, 2), 200)
	return a, server
}

func gateway(t *testing.T, n *lab.Node, device, via string, metric int) {
	t.Helper()
	l, err := link.Find(n.NS, device)
	must(t, err)
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	to, err := netlink.ParseIPNet("0.0.0.0/0")
	must(t, err)
	must(t, h.RouteAdd(&netlink.Route{LinkIndex: l.Index(), Dst: to, Gw: netip.MustParseAddr(via).AsSlice(), Priority: metric}))
}

// Where several uplinks lead to the same address, each subflow uses its own: the one with
// the default route, and the other.
func TestEachUplinkCarries(t *testing.T) {
	need(t)
	a, server := uplinks(t)
	most, err := mptcp.FindMost(t.Context())
	must(t, err)
	must(t, link.SetMPTCPLimits(server.NS, link.MPTCPLimits{Subflows: most.Subflows}))
	setUp(t, config(t, a, "d1", "d2"))
	got := transfer(t, a, server, "192.0.2.2", 20)
	if got["d1"] < share || got["d2"] < share {
		t.Errorf("the links carried %v bytes", got)
	}
}

// A backup is used only when the other links fail.
func TestBackup(t *testing.T) {
	need(t)
	a, server := uplinks(t)
	most, err := mptcp.FindMost(t.Context())
	must(t, err)
	must(t, link.SetMPTCPLimits(server.NS, link.MPTCPLimits{Subflows: most.Subflows}))
	cfg := config(t, a, "d1", "d2")
	cfg.Backup = []string{"d2"}
	setUp(t, cfg)
	got := transfer(t, a, server, "192.0.2.2", 10)
	if got["d1"] < share || got["d2"] > aside {
		t.Errorf("the links carried %v bytes", got)
	}
}
