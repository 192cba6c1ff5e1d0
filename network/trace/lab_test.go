package trace_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/trace"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// must fails the test at the first error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func node(t *testing.T, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

func connect(t *testing.T, a *lab.Node, aName string, b *lab.Node, bName string) {
	t.Helper()
	must(t, lab.Connect(lab.End{Node: a, Name: aName}, lab.End{Node: b, Name: bName}, lab.Cable{}))
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// route adds a route to a node.
func route(t *testing.T, n *lab.Node, dst, via string) {
	t.Helper()
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	to, err := netlink.ParseIPNet(dst)
	must(t, err)
	must(t, h.RouteAdd(&netlink.Route{Dst: to, Gw: netip.MustParseAddr(via).AsSlice()}))
}

// rule adds a chain with one rule to a node.
func rule(t *testing.T, n *lab.Node, family nftables.TableFamily, hook *nftables.ChainHook, exprs ...expr.Any) {
	t.Helper()
	must(t, n.NS.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Family: family, Name: "test"})
		chain := c.AddChain(&nftables.Chain{Name: "chain", Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
		return c.Flush()
	}))
}

func dropFrom(addr string) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: netip.MustParseAddr(addr).AsSlice()},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

func dropPort(port byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{0, port}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// hops lists the hops as "namespace/link".
func hops(p trace.Path) []string {
	var out []string
	for _, h := range p.Hops {
		out = append(out, h.Namespace+"/"+h.Link)
	}
	return out
}

func path(t *testing.T, a, b *lab.Node) trace.Path {
	t.Helper()
	o, err := trace.Observe(t.Context(), nil)
	must(t, err)
	defer o.Close()
	p, err := o.Trace(a.NS, b.NS)
	must(t, err)
	return p
}

// TestTraceBridge traces A – veth – bridge – veth – B. One port is smaller than the rest,
// and rules drop some packets.
func TestTraceBridge(t *testing.T) {
	lab.Need(t)
	a, b := node(t, "a"), node(t, "b")
	sw, err := lab.NewSwitch("switch", 1500)
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	// IPv6 sends by itself, and the bridge would learn from that during the test.
	for _, n := range []*lab.Node{a, b, sw.Node} {
		must(t, n.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"))
	}
	portA, err := sw.Plug(lab.End{Node: a, Name: "eth0"}, 0)
	must(t, err)
	portB, err := sw.Plug(lab.End{Node: b, Name: "eth0"}, 0)
	must(t, err)
	must(t, a.Address("eth0", prefix("192.0.2.1/24")), b.Address("eth0", prefix("192.0.2.2/24")))
	small, err := link.Find(sw.NS, portB)
	must(t, err)
	must(t, small.SetMTU(1400))
	rule(t, sw.Node, nftables.TableFamilyBridge, nftables.ChainHookForward, dropFrom("192.0.2.1")...)
	rule(t, b, nftables.TableFamilyINet, nftables.ChainHookInput, dropPort(80)...)
	rule(t, a, nftables.TableFamilyINet, nftables.ChainHookOutput, dropFrom("192.0.2.99")...)

	spaces := []*netns.NS{a.NS, sw.NS, b.NS}
	before := state(t, spaces)
	p := path(t, a, b)
	if diff := cmp.Diff(before, state(t, spaces)); diff != "" {
		t.Errorf("the trace changed the machine:\n%s", diff)
	}

	heldBy := regexp.MustCompile(`^held-by-.*/`)
	want := []string{"a/eth0", "switch/" + portA, "switch/switch", "switch/" + portB, "b/eth0"}
	got := hops(p)
	// The switch has no process and no name: it is found by the descriptor that this process
	// holds, and labelled by this process.
	for i := range got {
		got[i] = heldBy.ReplaceAllString(got[i], "switch/")
	}
	if !slices.Equal(got, want) {
		t.Fatalf("hops %v, want %v", got, want)
	}
	if !p.Complete || !p.Symmetric || p.MTU != 1400 || p.Source.String() != "192.0.2.1" || p.Destination.String() != "192.0.2.2" {
		t.Errorf("path %+v", p)
	}
	for i, h := range p.Hops {
		if h.Smallest != (i == 3) {
			t.Errorf("hop %d (%s): smallest %v", i, h.Link, h.Smallest)
		}
		if h.MTU == 0 || !h.Up || h.Qdisc == "" || h.Offloads == "" {
			t.Errorf("hop %d lacks facts: %+v", i, h)
		}
	}
	if f := p.Hops[0].Filters; len(f) != 1 || len(f[0].Match) != 0 || f[0].Rules != 1 {
		t.Errorf("filters of a: %+v; a rule about another address must not be shown", f)
	}
	if f := p.Hops[3].Filters; len(f) != 1 || len(f[0].Match) != 1 || !f[0].Match[0].Certain || !f[0].Match[0].Drops {
		t.Errorf("filters of the bridge: %+v, want one rule that drops for certain", f)
	}
	if f := p.Hops[4].Filters; len(f) != 1 || len(f[0].Match) != 1 || f[0].Match[0].Certain || f[0].Match[0].Text != "l4proto tcp dport 80 drop" {
		t.Errorf("filters of b: %+v, want one rule that may match", f)
	}
	all := strings.Join(p.Warnings, "\n")
	for _, w := range []string{"more than 1400 bytes are dropped silently", "drops the packets: bridge test chain: ip saddr 192.0.2.1 drop"} {
		if !strings.Contains(all, w) {
			t.Errorf("no warning %q in:\n%s", w, all)
		}
	}
	b64, err := json.Marshal(p)
	must(t, err)
	var back trace.Path
	must(t, json.Unmarshal(b64, &back))
}

// state returns everything that a trace might change, as text: links without their
// counters, addresses, routes, neighbours, forwarding entries, rules, settings.
func state(t *testing.T, spaces []*netns.NS) []string {
	t.Helper()
	var out []string
	for _, ns := range spaces {
		h, err := link.Handle(ns)
		must(t, err)
		links, err := h.LinkList()
		must(t, err)
		for _, l := range links {
			l.Attrs().Statistics = nil
			attrs, err := json.Marshal(l.Attrs())
			must(t, err)
			out = append(out, fmt.Sprintf("%s %s %s", ns, l.Type(), attrs))
		}
		addrs, err := h.AddrList(nil, unix.AF_UNSPEC)
		must(t, err)
		routes, err := h.RouteList(nil, unix.AF_UNSPEC)
		must(t, err)
		fdb, err := h.NeighListExecute(netlink.Ndmsg{Family: unix.AF_BRIDGE})
		must(t, err)
		for _, n := range fdb { // without the times of use
			out = append(out, fmt.Sprint(ns, n.LinkIndex, n.MasterIndex, n.HardwareAddr, n.State, n.Flags))
		}
		out = append(out, fmt.Sprint(ns, addrs, routes))
		must(t, ns.Do(func() error {
			for _, name := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/forwarding"} {
				v, err := os.ReadFile("/proc/sys/" + name)
				if err != nil {
					return err
				}
				out = append(out, name+" "+string(v))
			}
			c, err := nftables.New()
			if err != nil {
				return err
			}
			chains, err := c.ListChains()
			for _, ch := range chains {
				rules, err := c.GetRules(ch.Table, ch)
				if err != nil {
					return err
				}
				out = append(out, fmt.Sprint(ns, ch.Table.Name, ch.Name, len(rules)))
			}
			return err
		}))
		h.Close()
	}
	return out
}

func TestTraceRouter(t *testing.T) {
	lab.Need(t)
	a, r, b := node(t, "a"), node(t, "r"), node(t, "b")
	connect(t, a, "eth0", r, "left")
	connect(t, r, "right", b, "eth0")
	must(t, a.Address("eth0", prefix("192.0.2.1/24")), r.Address("left", prefix("192.0.2.254/24")),
		r.Address("right", prefix("198.51.100.254/24")), b.Address("eth0", prefix("198.51.100.1/24")))
	route(t, a, "198.51.100.0/24", "192.0.2.254")

	p := path(t, a, b)
	if p.Complete || !strings.Contains(strings.Join(p.Warnings, "\n"), "does not forward") {
		t.Errorf("without forwarding: complete %v, warnings %q", p.Complete, p.Warnings)
	}

	must(t, r.Sysctl("net/ipv4/ip_forward", "1"))
	p = path(t, a, b)
	if !p.Complete || !strings.Contains(strings.Join(p.Warnings, "\n"), "answers from 198.51.100.1 to 192.0.2.1 do not arrive") {
		t.Errorf("without a way back: complete %v, warnings %q", p.Complete, p.Warnings)
	}

	route(t, b, "192.0.2.0/24", "198.51.100.254")
	p = path(t, a, b)
	if got := len(p.Hops); got != 4 || !p.Complete || !p.Symmetric || len(p.Warnings) != 0 {
		t.Errorf("hops %v, complete %v, symmetric %v, warnings %q", hops(p), p.Complete, p.Symmetric, p.Warnings)
	}
}

// TestTraceReversePath has two links between a and b. Answers take another one than
// requests.
func TestTraceReversePath(t *testing.T) {
	lab.Need(t)
	a, b := node(t, "a"), node(t, "b")
	connect(t, a, "one", b, "one")
	connect(t, a, "two", b, "two")
	must(t, a.Address("one", prefix("192.0.2.1/24")), a.Address("two", prefix("198.51.100.1/24")),
		b.Address("one", prefix("192.0.2.2/32")), b.Address("two", prefix("198.51.100.2/24")))
	route(t, b, "192.0.2.1/32", "198.51.100.1")
	must(t, b.Sysctl("net/ipv4/conf/all/rp_filter", "1"))
	p := path(t, a, b)
	if p.Symmetric || !strings.Contains(strings.Join(p.Warnings, "\n"), "b/one: strict reverse path filtering drops packets from 192.0.2.1: the way back is two") {
		t.Errorf("hops %v, back %v, warnings %q", hops(p), p.Back, p.Warnings)
	}
}

func TestTraceKinds(t *testing.T) {
	lab.Need(t)
	for _, tt := range []struct {
		name  string
		build func(t *testing.T, a, b *lab.Node)
		want  []string
		mtu   int
	}{
		{"veth", func(t *testing.T, a, b *lab.Node) {
			connect(t, a, "eth0", b, "eth0")
			must(t, a.Address("eth0", prefix("192.0.2.1/24")), b.Address("eth0", prefix("192.0.2.2/24")))
		}, []string{"a/eth0", "b/eth0"}, 1500},
		{"IPv6 only", func(t *testing.T, a, b *lab.Node) {
			connect(t, a, "eth0", b, "eth0")
			must(t, a.Address("eth0", prefix("2001:db8::1/64")), b.Address("eth0", prefix("2001:db8::2/64")))
		}, []string{"a/eth0", "b/eth0"}, 1500},
		{"container to the host of its bridge", func(t *testing.T, a, b *lab.Node) {
			connect(t, a, "eth0", b, "port")
			br, err := link.Create(b.NS, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}}, link.Target{})
			must(t, err)
			port, err := link.Find(b.NS, "port")
			must(t, err, port.SetMaster("br0"), br.Up())
			must(t, a.Address("eth0", prefix("192.0.2.1/24")), b.Address("br0", prefix("192.0.2.2/24")))
			// The bridge's own address differs from its port's, so that only the
			// forwarding table shows that the frame is local.
			h, err := link.Handle(b.NS)
			must(t, err)
			defer h.Close()
			nl, err := h.LinkByName("br0")
			must(t, err, h.LinkSetHardwareAddr(nl, net.HardwareAddr{2, 0, 0, 0, 0, 1}))
		}, []string{"a/eth0", "b/port", "b/br0"}, 1500},
		{"macvlan bridge", func(t *testing.T, a, b *lab.Node) {
			parent := node(t, "parent")
			connect(t, parent, "nic", node(t, "world"), "nic")
			macvlan(t, parent, a, "mv0")
			macvlan(t, parent, b, "mv0")
			must(t, a.Address("mv0", prefix("192.0.2.1/24")), b.Address("mv0", prefix("192.0.2.2/24")))
		}, []string{"a/mv0", "b/mv0"}, 1500},
		{"vxlan", func(t *testing.T, a, b *lab.Node) {
			connect(t, a, "eth0", b, "eth0")
			must(t, a.Address("eth0", prefix("198.51.100.1/24")), b.Address("eth0", prefix("198.51.100.2/24")))
			for _, end := range []struct {
				n      *lab.Node
				remote string
				inner  string
			}{{a, "198.51.100.2", "192.0.2.1/24"}, {b, "198.51.100.1", "192.0.2.2/24"}} {
				h, err := link.Handle(end.n.NS)
				must(t, err)
				nic, err := h.LinkByName("eth0")
				must(t, err)
				must(t, h.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx0", MTU: 1500}, VxlanId: 42, Port: 4789,
					VtepDevIndex: nic.Attrs().Index, Group: netip.MustParseAddr(end.remote).AsSlice()}))
				h.Close()
				must(t, end.n.Address("vx0", prefix(end.inner)))
			}
		}, []string{"a/vx0", "a/eth0", "b/eth0", "b/vx0"}, 1450},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := node(t, "a"), node(t, "b")
			tt.build(t, a, b)
			p := path(t, a, b)
			if got := hops(p); !slices.Equal(got, tt.want) || !p.Complete || !p.Symmetric || p.MTU != tt.mtu {
				t.Errorf("hops %v (complete %v, symmetric %v, mtu %d), want %v, mtu %d; warnings %q",
					got, p.Complete, p.Symmetric, p.MTU, tt.want, tt.mtu, p.Warnings)
			}
		})
	}
}

// macvlan adds a macvlan device in mode bridge on parent's nic to a node.
func macvlan(t *testing.T, parent, n *lab.Node, name string) {
	t.Helper()
	h, err := link.Handle(parent.NS)
	must(t, err)
	defer h.Close()
	nic, err := h.LinkByName("nic")
	must(t, err, h.LinkAdd(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE,
		LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: nic.Attrs().Index, Namespace: netlink.NsFd(n.NS.Fd())}}))
}

// TestTraceMacvlanParent traces between a host and a container on a macvlan device of the host's
// NIC. The kernel passes nothing between the two, whatever the network beyond does, until the
// host has a macvlan device of its own.
func TestTraceMacvlanParent(t *testing.T) {
	lab.Need(t)
	host, web := node(t, "host"), node(t, "web")
	connect(t, host, "nic", node(t, "router"), "nic")
	macvlan(t, host, web, "eth0")
	must(t, host.Address("nic", prefix("192.0.2.1/24")), web.Address("eth0", prefix("192.0.2.2/24")))
	const cause = "host/nic and its macvlan device web/eth0 can't reach each other: what one sends to the other leaves by the wire (`cleat attach --host-shim` gives"
	for _, ends := range [][2]*lab.Node{{host, web}, {web, host}} {
		p := path(t, ends[0], ends[1])
		if p.Complete || len(p.Hops) != 1 || len(p.Warnings) != 1 || !strings.HasPrefix(p.Warnings[0], cause) {
			t.Errorf("path from %s: %v, complete %v, warnings %q, want only %q", p.From, hops(p), p.Complete, p.Warnings, cause)
		}
	}

	macvlan(t, host, host, "shim-nic")
	h, err := link.Handle(host.NS)
	must(t, err)
	defer h.Close()
	shim, err := h.LinkByName("shim-nic")
	to, _ := netlink.ParseIPNet("192.0.2.2/32")
	must(t, err, h.LinkSetUp(shim), h.RouteAdd(&netlink.Route{Dst: to, LinkIndex: shim.Attrs().Index, Src: net.IPv4(192, 0, 2, 1)}))
	for _, ends := range [][2]*lab.Node{{host, web}, {web, host}} {
		if p := path(t, ends[0], ends[1]); !p.Complete || !p.Symmetric || len(p.Hops) != 2 || len(p.Warnings) != 0 {
			t.Errorf("path from %s past the shim: %v, complete %v, symmetric %v, warnings %q", p.From, hops(p), p.Complete, p.Symmetric, p.Warnings)
		}
	}
}

// TestTraceFlood has a bridge that has learned nothing, and a port that leads nowhere
// before the right one.
func TestTraceFlood(t *testing.T) {
	lab.Need(t)
	a, b, c := node(t, "a"), node(t, "b"), node(t, "c")
	sw, err := lab.NewSwitch("switch", 1500)
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	for _, n := range []*lab.Node{a, b, c, sw.Node} {
		must(t, n.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"))
	}
	for _, n := range []*lab.Node{a, c, b} {
		_, err := sw.Plug(lab.End{Node: n, Name: "eth0"}, 0)
		must(t, err)
	}
	must(t, a.Address("eth0", prefix("192.0.2.1/24")), b.Address("eth0", prefix("192.0.2.2/24")), c.Address("eth0", prefix("192.0.2.3/24")))
	p := path(t, a, b)
	if len(p.Hops) != 5 || !p.Complete || len(p.Warnings) != 0 || !strings.Contains(p.Hops[3].Detail, "flooded") {
		t.Errorf("hops %v, complete %v, warnings %q, %q", hops(p), p.Complete, p.Warnings, p.Hops[min(3, len(p.Hops)-1)].Detail)
	}
}

func TestTraceSelf(t *testing.T) {
	lab.Need(t)
	a := node(t, "a")
	p := path(t, a, a)
	if !slices.Equal(hops(p), []string{"a/lo"}) || !p.Complete {
		t.Errorf("hops %v, complete %v", hops(p), p.Complete)
	}
}

func TestTraceNowhere(t *testing.T) {
	lab.Need(t)
	a, b := node(t, "a"), node(t, "b")
	o, err := trace.Observe(t.Context(), nil)
	must(t, err)
	defer o.Close()
	if _, err := o.Trace(a.NS, b.NS); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Errorf("error %v, want that there is no address", err)
	}
}

// A frame for nobody is flooded to every port. Through bridges that are joined many times
// over there are more ways than can be tried.
func TestTraceManyWays(t *testing.T) {
	a, b, sw := node(t, "a"), node(t, "b"), node(t, "sw")
	h, err := link.Handle(sw.NS)
	must(t, err)
	defer h.Close()
	const bridges = 12
	for i := range bridges {
		must(t, h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("br%d", i)}}))
	}
	port := func(name string, bridge int) {
		l, err := h.LinkByName(name)
		must(t, err)
		br, err := h.LinkByName(fmt.Sprintf("br%d", bridge))
		must(t, err, h.LinkSetMaster(l, br)) // the links are down, so no packet loops
	}
	for i := range bridges - 1 {
		for j := range 2 {
			from, to := fmt.Sprintf("p%d-%d", i, j), fmt.Sprintf("q%d-%d", i, j)
			must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: from}, PeerName: to}))
			port(from, i)
			port(to, i+1)
		}
	}
	connect(t, a, "eth0", sw, "a0")
	port("a0", 0)
	dummy := node(t, "elsewhere")
	connect(t, b, "eth0", dummy, "eth0")
	must(t, a.Address("eth0", prefix("192.0.2.1/24")), b.Address("eth0", prefix("192.0.2.2/24")))
	p := path(t, a, b)
	if p.Complete || !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.Contains(w, "too many ways") }) {
		t.Errorf("%d hops, warnings %q", len(p.Hops), p.Warnings)
	}
}
