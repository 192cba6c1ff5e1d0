package span_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
	"cleat/network/span"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// underlay is the address family of the packets between hosts.
type underlay int

const (
	over4 underlay = iota
	over6
)

// testbed is hosts on a switch, each with a container:
//
//	host 1: 192.0.2.1, 2001:db8::1   container 10.64.1.2, 2001:db8:64:1::2
//	host 2: 192.0.2.2, …             container 10.64.2.2, …
type testbed struct {
	t     testing.TB
	over  underlay
	sw    *lab.Switch
	hosts []*host
}

type host struct {
	*lab.Node
	i         int
	addr      netip.Addr
	mac       link.MAC
	blocks    []netip.Prefix // of the container's addresses
	port      string         // of the switch
	container *lab.Node
}

const mtu = 1500

func newTestbed(t testing.TB, over underlay, n int) *testbed {
	t.Helper()
	lab.Need(t)
	tb := &testbed{t: t, over: over}
	var err error
	tb.sw, err = lab.NewSwitch("switch", mtu)
	must(t, err)
	t.Cleanup(func() { tb.sw.Close() })
	for i := 1; i <= n; i++ {
		tb.add(i)
	}
	return tb
}

func (tb *testbed) add(i int) {
	tb.t.Helper()
	node, err := lab.NewNode(fmt.Sprintf("host%d", i))
	must(tb.t, err)
	tb.t.Cleanup(func() { node.Close() })
	h := &host{Node: node, i: i, mac: link.MAC{2, 0, 0, 0, 0, byte(i)}, blocks: []netip.Prefix{block4(i), block6(i)}}
	h.addr = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	withoutDAD(tb.t, node)
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		must(tb.t, h.Sysctl(name, "1"))
	}
	outer6 := netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i))
	h.port, err = tb.sw.Plug(lab.End{Node: node, Name: "eth0"}, 0)
	must(tb.t, err)
	must(tb.t, h.Address("eth0", netip.PrefixFrom(h.addr, 24), netip.PrefixFrom(outer6, 64)))
	if tb.over == over6 {
		h.addr = outer6
	}
	h.container, err = lab.NewNode(fmt.Sprintf("container%d", i))
	must(tb.t, err)
	tb.t.Cleanup(func() { h.container.Close() })
	withoutDAD(tb.t, h.container)
	must(tb.t, lab.Connect(lab.End{Node: node, Name: "c0"}, lab.End{Node: h.container, Name: "eth0"}, lab.Cable{}))
	for _, b := range h.blocks {
		must(tb.t, h.Address("c0", netip.PrefixFrom(b.Addr().Next(), b.Bits())))
		must(tb.t, h.container.Address("eth0", netip.PrefixFrom(b.Addr().Next().Next(), b.Bits())))
		gateway(tb.t, h.container.NS, b.Addr().Next())
	}
	usable(tb.t, node.NS)
	usable(tb.t, h.container.NS)
	tb.hosts = append(tb.hosts, h)
}

// usable waits until the kernel uses all IPv6 addresses of a namespace: it does so in its own time.
func usable(t testing.TB, ns *netns.NS) {
	t.Helper()
	k, err := link.Handle(ns)
	must(t, err)
	defer k.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		all, err := k.AddrList(nil, unix.AF_INET6)
		must(t, err)
		if !slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("addresses of %s are tentative: %v", ns, all)
		}
	}
}

// gateway gives a namespace a default route. A guest of the vm tier has no ip program.
func gateway(t testing.TB, ns *netns.NS, via netip.Addr) {
	t.Helper()
	k, err := link.Handle(ns)
	must(t, err)
	defer k.Close()
	must(t, k.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: make(net.IP, via.BitLen()/8), Mask: net.CIDRMask(0, via.BitLen())}, Gw: via.AsSlice()}))
}

// withoutDAD makes a node use IPv6 addresses at once.
func withoutDAD(t testing.TB, n *lab.Node) {
	t.Helper()
	for _, of := range []string{"all", "default"} { // the kernel takes the larger one
		must(t, n.Sysctl("net/ipv6/conf/"+of+"/accept_dad", "0"))
	}
}

func block4(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(i), 0}), 26)
}

func block6(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("2001:db8:64:%x::/112", i)) }

// networks are those that the blocks belong to.
var networks = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/18"), netip.MustParsePrefix("2001:db8:64::/48")}

// config returns how a host reaches others.
func (h *host) config(others ...*host) span.Config {
	c := span.Config{VNI: 7790, Local: h.addr, MAC: h.mac, MTU: mtu, Uplink: "eth0", Unreachable: networks}
	for _, o := range others {
		if o == h {
			continue
		}
		one := span.Host{Address: o.addr, MAC: o.mac}
		for i, b := range o.blocks {
			one.Blocks = append(one.Blocks, span.Block{Prefix: b, Source: h.blocks[i].Addr().Next()})
		}
		c.Hosts = append(c.Hosts, one)
	}
	return c
}

// plain makes all blocks of all hosts plain.
func plain(c span.Config) span.Config {
	for i := range c.Hosts {
		for j := range c.Hosts[i].Blocks {
			c.Hosts[i].Blocks[j].Plain = true
		}
	}
	return c
}

func (h *host) sync(t testing.TB, c span.Config) []string {
	t.Helper()
	changed, err := span.Sync(h.NS, c)
	must(t, err)
	return changed
}

// settle syncs, and checks that another Sync changes nothing.
func (h *host) settle(t testing.TB, c span.Config) {
	t.Helper()
	h.sync(t, c)
	before := h.snapshot(t)
	if again := h.sync(t, c); len(again) > 0 {
		t.Errorf("a second Sync of %s changes %q", h, again)
	}
	if after := h.snapshot(t); !slices.Equal(before, after) {
		t.Errorf("a second Sync of %s changes\n%s\nto\n%s", h, strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// run runs a program in a namespace, which must succeed.
func run(t testing.TB, ns *netns.NS, args ...string) string {
	t.Helper()
	var out []byte
	must(t, ns.Do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return err
	}))
	return string(out)
}

// snapshot returns the links, routes, neighbours that are permanent, and forwarding entries of a host.
func (h *host) snapshot(t testing.TB) (all []string) {
	t.Helper()
	k, err := link.Handle(h.NS)
	must(t, err)
	defer k.Close()
	links, err := k.LinkList()
	must(t, err)
	for _, l := range links {
		a := l.Attrs()
		if span.IsDevice(a.Name) {
			all = append(all, fmt.Sprintf("rp_filter of %s: %s", a.Name, h.rpFilter(t, a.Name)))
		}
		all = append(all, fmt.Sprintf("link %d %s %s %s mtu %d up %v", a.Index, a.Name, l.Type(), a.HardwareAddr, a.MTU, a.Flags&net.FlagUp != 0))
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			neighs, err := k.NeighList(a.Index, family)
			must(t, err)
			for _, n := range neighs {
				if len(n.HardwareAddr) > 0 && n.HardwareAddr[0]&1 != 0 {
					continue // of multicast: the kernel joins groups at any time
				}
				if n.State&netlink.NUD_PERMANENT != 0 {
					all = append(all, fmt.Sprintf("neighbour %d %s %s %s state %x flags %x", family, a.Name, n.IP, n.HardwareAddr, n.State, n.Flags))
				}
			}
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := k.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range routes {
			all = append(all, fmt.Sprintf("route %s", r))
		}
	}
	slices.Sort(all)
	return all
}

// rpFilter returns the rp_filter of a device.
func (h *host) rpFilter(t testing.TB, device string) string {
	t.Helper()
	var text []byte
	must(t, h.NS.Do(func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/rp_filter")
		return err
	}))
	return strings.TrimSpace(string(text))
}

const echoPort = 7

// answerWithin bounds an attempt to reach a container. On a busy machine an IPv6 address may take a second.
const answerWithin = 5 * time.Second

// serve makes all containers answer with their names.
func (tb *testbed) serve() {
	tb.t.Helper()
	for _, h := range tb.hosts {
		labtest.Serve(tb.t, h.container.NS, fmt.Sprintf(":%d", echoPort), labtest.Reply(h.container.String()))
	}
}

// reach returns an error unless a namespace reaches a host's container at an address.
func reach(from *netns.NS, to *host, block int) error {
	a := to.blocks[block].Addr().Next().Next()
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(a, echoPort).String(), answerWithin)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s to %s: %w", from, to.container, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(answerWithin))
	b := make([]byte, 64)
	n, err := c.Read(b)
	if err == nil && string(b[:n]) != to.container.String() {
		err = fmt.Errorf("%q answers", b[:n])
	}
	if err != nil {
		return fmt.Errorf("%s to %s: %w", from, to.container, err)
	}
	return nil
}
