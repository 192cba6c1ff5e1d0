package mptcp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/mptcp"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	mptcp.Init()
	os.Exit(lab.RunTests(m))
}

// need skips if there is no lab, or no MPTCP in it.
func need(t *testing.T) {
	t.Helper()
	lab.Need(t)
	var lack *link.Lack
	if err := link.Probe("mptcp"); errors.As(err, &lack) {
		t.Skip(lack)
	} else if err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node returns a node that creates no IPv6 addresses by itself, which would appear at
// arbitrary times.
func node(t *testing.T, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	must(t, n.Sysctl("net/ipv6/conf/default/addr_gen_mode", "1"))
	return n
}

// linkRate is the rate of a cable: slow, so that one is not enough for a transfer.
const linkRate = 50e6

// cables joins two nodes by links "d1"… at a and "p1"… at b, with the networks
// 198.51.100.0/28 and following, and 2001:db8:N::/64:
//
//	a ─ d1 .1 ═══ .2 p1 ─ b
//	  ─ d2 .17 ══ .18 p2 ─
func cables(t *testing.T, a, b *lab.Node, n int) {
	t.Helper()
	for i := 1; i <= n; i++ {
		d, p := fmt.Sprintf("d%d", i), fmt.Sprintf("p%d", i)
		must(t, lab.Connect(lab.End{Node: a, Name: d}, lab.End{Node: b, Name: p}, lab.Cable{RateBitsPerSec: linkRate}))
		must(t, a.Address(d, netip.MustParsePrefix(addr4(i, 1)+"/28")))
		must(t, b.Address(p, netip.MustParsePrefix(addr4(i, 2)+"/28")))
	}
}

func addr4(i, host int) string { return fmt.Sprintf("198.51.100.%d", (i-1)*16+host) }

func addr6(i, host int) string { return fmt.Sprintf("2001:db8:%d::%d", i, host) }

// devices returns the names of the links 1 to n.
func devices(prefix string, n int) []string {
	var all []string
	for i := 1; i <= n; i++ {
		all = append(all, fmt.Sprintf("%s%d", prefix, i))
	}
	return all
}

// config returns a Config for a node, with what the kernel really permits.
func config(t *testing.T, n *lab.Node, devices ...string) mptcp.Config {
	t.Helper()
	most, err := mptcp.FindMost(t.Context())
	must(t, err)
	return mptcp.Config{NS: n.NS, Devices: devices, Subflow: true, Dir: filepath.Join(t.TempDir(), "run"), Most: most}
}

func plan(t *testing.T, cfg mptcp.Config) *mptcp.Plan {
	t.Helper()
	p, err := mptcp.New(cfg)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func undoing(t *testing.T, cfg mptcp.Config) *mptcp.Plan {
	t.Helper()
	p, err := mptcp.Undo(cfg.NS, cfg.Dir)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func setUp(t *testing.T, cfg mptcp.Config) *mptcp.Plan {
	t.Helper()
	p := plan(t, cfg)
	must(t, p.Apply())
	return p
}

// snapshot returns everything that setup could change: rules, routes of all tables except
// the local one, endpoints, limits, links.
func snapshot(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	var all []string
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := h.RuleList(family)
		must(t, err)
		for _, r := range rules {
			all = append(all, fmt.Sprintf("rule %s protocol %d", r, r.Protocol))
		}
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range routes {
			if r.Table == unix.RT_TABLE_LOCAL {
				continue // the kernel's own, which it adds some time after the address
			}
			all = append(all, fmt.Sprintf("route %s protocol %d", r, r.Protocol))
		}
	}
	links, err := h.LinkList()
	must(t, err)
	for _, l := range links {
		all = append(all, fmt.Sprintf("link %s %s", l.Attrs().Name, l.Attrs().Flags))
	}
	endpoints, err := link.MPTCPEndpoints(ns)
	must(t, err)
	for _, e := range endpoints {
		all = append(all, fmt.Sprintf("endpoint %+v", e))
	}
	limits, err := link.ReadMPTCPLimits(ns)
	must(t, err)
	all = append(all, fmt.Sprintf("limits %+v", limits))
	slices.Sort(all)
	return all
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: is\n%s\nwas\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// transfer sends megabytes from a to an address of b by MPTCP, and returns how many bytes
// each link of a sent meanwhile.
func transfer(t *testing.T, a, b *lab.Node, to string, megabytes int) map[string]uint64 {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(true)
	var l net.Listener
	// Listen on all addresses: a listener on one accepts no subflows on others.
	must(t, b.NS.Do(func() (err error) { l, err = lc.Listen(context.Background(), "tcp", ":0"); return err }))
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			received <- 0
			return
		}
		defer c.Close()
		n, err := io.Copy(io.Discard, c)
		if err != nil {
			t.Error(err)
		}
		received <- n
	}()
	before := sent(t, a)
	d := net.Dialer{}
	d.SetMultipathTCP(true)
	var c net.Conn
	must(t, a.NS.Do(func() (err error) {
		c, err = d.Dial("tcp", net.JoinHostPort(to, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)))
		return err
	}))
	if is, err := c.(*net.TCPConn).MultipathTCP(); !is || err != nil {
		t.Fatalf("the connection is plain TCP, %v", err)
	}
	part := make([]byte, 1e6)
	for range megabytes {
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if n := <-received; n != int64(megabytes)*1e6 {
		t.Errorf("%d bytes arrived", n)
	}
	after := sent(t, a)
	for name := range after {
		after[name] -= before[name]
	}
	return after
}

func sent(t *testing.T, n *lab.Node) map[string]uint64 {
	t.Helper()
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	links, err := h.LinkList()
	must(t, err)
	out := map[string]uint64{}
	for _, l := range links {
		out[l.Attrs().Name] = l.Attrs().Statistics.TxBytes
	}
	return out
}
