package attach_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// trialCase is one way to attach, and what must be there before.
type trialCase struct {
	name  string
	needs []string // kinds of package link
	want  attach.Spec
	prep  func(*testing.T, *world, *attach.Spec)
}

// trialCases are every kind, and every flag with at least one.
func trialCases() []trialCase {
	v4, v6 := prefixes("192.0.2.10/24"), prefixes("192.0.2.10/24", "2001:db8::10/64")
	remote := map[string]string{"vni": "7", "remote": "198.51.100.2"}
	return []trialCase{
		{name: "bridge made", needs: []string{"bridge"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Gateways: addrs("192.0.2.1", "2001:db8::1"), MTU: 1400,
			Routes: []attach.Route{{To: netip.MustParsePrefix("203.0.113.0/24"), Via: netip.MustParseAddr("192.0.2.9")}}}},
		{name: "bridge there", needs: []string{"bridge"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4}, prep: haveBridge},
		{name: "bridge shared", needs: []string{"bridge"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4, Masquerade: true}, prep: another},
		{name: "bridge masqueraded", needs: []string{"bridge"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Masquerade: true}},
		{name: "no IPv6 in the container", needs: []string{"bridge"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Gateways: addrs("2001:db8::1")}, prep: noIPv6},
		{name: "bridge limited", needs: []string{"bridge", "ifb", "tbf"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4, RateBitsPerSec: 1e8, BurstBytes: 20000}},
		{name: "bridge in a VLAN", needs: []string{"bridge-vlan"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4, VLAN: 100}},
		{name: "default route replaced", needs: []string{"bridge"}, want: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Gateways: addrs("192.0.2.1", "2001:db8::1")}, prep: haveDefault},
		{name: "macvlan", needs: []string{"macvlan"}, want: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: v6, Gateways: addrs("192.0.2.1")}},
		{name: "macvlan with shim", needs: []string{"macvlan"}, want: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24"), HostShim: true}},
		{name: "macvlan with shim for IPv6", needs: []string{"macvlan"}, want: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8:2::7/64"), HostShim: true}, prep: haveRoute},
		{name: "macvlan limited", needs: []string{"macvlan", "ifb", "tbf"}, want: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: v4, RateBitsPerSec: 1e8}},
		{name: "macvlan passthru", needs: []string{"macvlan"}, want: attach.Spec{Kind: "macvlan", Parent: "nic", Mode: "passthru", Addresses: v4}},
		{name: "macvlan in a VLAN", needs: []string{"macvlan", "vlan"}, want: attach.Spec{Kind: "macvlan", Parent: "nic", VLAN: 100, Addresses: v4}},
		{name: "ipvlan l2", needs: []string{"ipvlan"}, want: attach.Spec{Kind: "ipvlan", Parent: "nic", Addresses: v4}},
		{name: "ipvlan l3", needs: []string{"ipvlan"}, want: attach.Spec{Kind: "ipvlan", Parent: "nic", Mode: "l3", Addresses: v4}},
		{name: "ipvlan l3s", needs: []string{"ipvlan"}, want: attach.Spec{Kind: "ipvlan", Parent: "nic", Mode: "l3s", Addresses: v4}},
		{name: "vlan", needs: []string{"vlan"}, want: attach.Spec{Kind: "vlan", Parent: "nic", VLAN: 100, Addresses: v4}},
		{name: "vxlan", needs: []string{"vxlan"}, want: attach.Spec{Kind: "vxlan", Addresses: v4, Params: remote}},
		{name: "geneve", needs: []string{"geneve"}, want: attach.Spec{Kind: "geneve", Addresses: v4, Params: remote}},
		{name: "wireguard", needs: []string{"wireguard"}, want: attach.Spec{Kind: "wireguard", Addresses: v4, Params: map[string]string{"listen_port": "51820"}},
			prep: func(t *testing.T, w *world, _ *attach.Spec) { // which it leaves so, whoever makes it
				sysctl(t, w.web, "net/ipv4/conf/all/send_redirects", "0")
			}},
		{name: "dummy", needs: []string{"dummy"}, want: attach.Spec{Kind: "dummy", Addresses: v4}},
		{name: "tap", needs: []string{"tun"}, want: attach.Spec{Kind: "tap", Addresses: v4}},
		{name: "tun", needs: []string{"tun"}, want: attach.Spec{Kind: "tap", Mode: "tun", Addresses: v4}},
		{name: "netkit l3", needs: []string{"netkit"}, want: attach.Spec{Kind: "netkit", Addresses: v4}},
		{name: "netkit l2 on a bridge", needs: []string{"netkit", "bridge"}, want: attach.Spec{Kind: "netkit", Mode: "l2", Parent: "br0", Addresses: v4}, prep: haveBridge},
		{name: "ovs", needs: []string{"openvswitch"}, want: attach.Spec{Kind: "ovs", Parent: "ovs0", Addresses: v4, VLAN: 100}, prep: haveSwitch},
		{name: "ovs internal", needs: []string{"openvswitch"}, want: attach.Spec{Kind: "ovs", Parent: "ovs0", Mode: "internal", Addresses: v4}, prep: haveSwitch},
		{name: "phys", want: attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7", Addresses: v4, MTU: 1400, MAC: link.MAC{2, 0, 0x5e, 0x10, 0, 1}}, prep: haveMore},
		{name: "phys with a queue", needs: []string{"tbf", "ifb"}, want: attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7", Addresses: v4, RateBitsPerSec: 1e7}, prep: haveQueue},
	}
}

// haveSwitch starts Open vSwitch, with a bridge, so that its datapath is there.
func haveSwitch(t *testing.T, w *world, want *attach.Spec) {
	o, err := link.StartOVS(t.Context(), w.host, filepath.Join(t.TempDir(), "ovs"))
	must(t, err)
	t.Cleanup(func() { o.Close() })
	_, err = link.Create(w.host, link.OVSBridgeSpec{Attrs: link.Attrs{Name: "first"}, DB: o.DB()}, link.Target{})
	must(t, err)
	want.Params = map[string]string{"db": o.DB()}
}

func haveBridge(t *testing.T, w *world, _ *attach.Spec) {
	l, err := link.Create(w.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0", MTU: 1450}}, link.Target{})
	must(t, err)
	must(t, l.Up())
}

// noIPv6 is how Docker leaves a container without IPv6 networks.
func noIPv6(t *testing.T, w *world, _ *attach.Spec) {
	for _, where := range []string{"all", "default"} {
		sysctl(t, w.web, "net/ipv6/conf/"+where+"/disable_ipv6", "1")
	}
}

// another is an attachment that uses the same things.
func another(t *testing.T, w *world, _ *attach.Spec) {
	_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.20/24"), Masquerade: true}, nil)
	must(t, err)
}

// haveDefault is a container with a network already.
func haveDefault(t *testing.T, w *world, _ *attach.Spec) {
	_, err := link.Create(w.web, link.VethSpec{Attrs: link.Attrs{Name: "old"}, Peer: link.Attrs{Name: "oldpeer"}}, link.Target{PeerNS: w.outside})
	must(t, err)
	must(t, find(t, w.outside, "oldpeer").Up())
	l := find(t, w.web, "old")
	must(t, l.Up())
	eventuallyUp(t, w.web, "old")
	eventuallyUp(t, w.outside, "oldpeer")
	must(t, l.AddAddr(netip.MustParsePrefix("203.0.113.2/24")))
	must(t, l.AddAddr(netip.MustParsePrefix("2001:db8:1::2/64")))
	eventuallyRouted(t, w.web, "2001:db8:1::2/128")
	h := handle(t, w.web)
	for _, via := range []string{"203.0.113.1", "2001:db8:1::1"} {
		must(t, h.RouteAdd(&netlink.Route{LinkIndex: l.Index(), Gw: netip.MustParseAddr(via).AsSlice()}))
	}
}

// eventuallyRouted waits for a route, which the kernel makes for an IPv6 address a
// little later.
func eventuallyRouted(t *testing.T, ns *netns.NS, to string) {
	t.Helper()
	for !slices.ContainsFunc(lookInto(t, ns), func(line string) bool { return strings.HasPrefix(line, "route "+to) }) {
		if t.Context().Err() != nil {
			t.Fatalf("no route to %s", to)
		}
	}
}

// haveQueue gives the card a queueing discipline, too.
func haveQueue(t *testing.T, w *world, want *attach.Spec) {
	haveRoute(t, w, want)
	must(t, link.Shape(find(t, w.host, "nic"), link.Shaping{RateBitsPerSec: 5e7, BurstBytes: 30000}))
}

// haveMore gives the card all that it must get back, as far as the kernel has that.
func haveMore(t *testing.T, w *world, want *attach.Spec) {
	haveRoute(t, w, want)
	h := handle(t, w.host)
	nic, err := h.LinkByName("nic")
	must(t, err)
	for ip, broadcast := range map[string]string{"198.51.100.201/29": "0.0.0.0", "198.51.100.209/29": "198.51.100.210"} {
		a, err := netlink.ParseAddr(ip)
		must(t, err)
		a.Broadcast = net.ParseIP(broadcast)
		must(t, h.AddrAdd(nic, a))
	}
	if !w.addClasses() {
		t.Log("without classes: the kernel lacks HTB, TBF or u32")
	}
}

// addClasses gives the card a tree of queueing disciplines, with filters; false: the kernel
// lacks something for that.
func (w *world) addClasses() bool {
	t := w.t
	t.Helper()
	l := find(t, w.host, "nic")
	h := handle(t, w.host)
	id := netlink.MakeHandle
	root := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: l.Index(), Handle: id(1, 0), Parent: netlink.HANDLE_ROOT})
	root.Defcls = 0x20
	if err := h.QdiscAdd(root); errors.Is(err, unix.ENOENT) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		parent, id uint32
		rate       uint64
	}{{id(1, 0), id(1, 0x99), 1e8}, {id(1, 0x99), id(1, 0x10), 3e7}, {id(1, 0x99), id(1, 0x20), 5e7}} {
		must(t, h.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: l.Index(), Parent: c.parent, Handle: c.id},
			netlink.HtbClassAttrs{Rate: c.rate, Ceil: 1e8, Prio: 3})))
	}
	err := h.QdiscAdd(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Index(), Handle: id(7, 0), Parent: id(1, 0x10)},
		Rate: 1e6, Limit: 30000, Buffer: 30000})
	if errors.Is(err, unix.ENOENT) {
		return false
	}
	must(t, err)
	inner := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: l.Index(), Handle: id(8, 0), Parent: id(1, 0x20)})
	must(t, h.QdiscAdd(inner))
	must(t, h.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: l.Index(), Parent: id(8, 0), Handle: id(8, 1)}, netlink.HtbClassAttrs{Rate: 2e7})))
	for i, to := range []uint32{id(1, 0x10), id(1, 0x20), id(8, 1)} { // priorities backward: their tables have numbers by age
		parent := id(1, 0)
		if i == 2 {
			parent = id(8, 0)
		}
		err := h.FilterAdd(&netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Index(), Parent: parent, Priority: uint16(9 - i), Protocol: unix.ETH_P_IP}, ClassId: to,
			Sel: &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1, Keys: []netlink.TcU32Key{{Mask: 0xffff, Val: uint32(80 + i), Off: 20}}}})
		if errors.Is(err, unix.ENOENT) {
			return false
		}
		must(t, err)
	}
	return true
}

// What a card can't get back of its queueing disciplines is said before it is moved.
func TestQueuesLost(t *testing.T) {
	w := newWorld(t)
	if !w.addClasses() {
		t.Skip("the kernel lacks HTB, TBF or u32")
	}
	noted := func() string {
		got, err := w.preview(attach.Spec{Kind: "phys", Parent: "nic", Addresses: prefixes("192.0.2.10/24")})
		must(t, err)
		return strings.Join(got.Notes, "\n")
	}
	if notes := noted(); strings.Contains(notes, "queueing disciplines") {
		t.Errorf("all of it comes back: %q", notes)
	}
	nic := find(t, w.host, "nic").Index()
	must(t, handle(t, w.host).QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: nic, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}))
	if notes := noted(); !strings.Contains(notes, "the queueing disciplines of nic (") || !strings.Contains(notes, "ingress") {
		t.Errorf("notes: %q", notes)
	}
}

// haveRoute gives the card more that it must get back.
func haveRoute(t *testing.T, w *world, _ *attach.Spec) {
	l := find(t, w.host, "nic")
	must(t, l.AddAddr(netip.MustParsePrefix("2001:db8:2::1/64")))
	eventuallyRouted(t, w.host, "2001:db8:2::1/128")
	to, err := netlink.ParseIPNet("203.0.113.0/24")
	must(t, err)
	must(t, handle(t, w.host).RouteAdd(&netlink.Route{LinkIndex: l.Index(), Dst: to, Gw: netip.MustParseAddr("198.51.100.9").AsSlice()}))
}

// TestAllOrNothing has each way to attach fail, and be killed, at each point: the
// error at once, and the kill after the next command, leaves everything as it was.
// So does detaching, whole or killed in the middle.
func TestAllOrNothing(t *testing.T) {
	for _, c := range trialCases() {
		t.Run(c.name, func(t *testing.T) {
			if !slices.Contains(c.needs, "openvswitch") { // whose processes the others would see come
				t.Parallel() // it waits for the kernel most of the time
			}
			need(t, c.needs...)
			w := newWorld(t)
			if c.prep != nil {
				c.prep(t, w, &c.want)
			}
			w.repair() // makes the directories
			before := w.snapshot()

			points := 0
			got, err := w.attach(c.want, func() error { points++; return nil })
			must(t, err)
			name := got.Attachment.Spec.Name
			if state := w.list(); len(state) == 0 || state[0].State != attach.Attached {
				t.Errorf("attached, but listed as %+v", state)
			}
			must(t, w.detach(name, nil))
			w.unchanged(before, "detached")
			if points < 10 {
				t.Errorf("only %d points", points)
			}
			w.failEverywhere(c.want, points, before)
			w.killEverywhere(c.want, points, before)
			w.killWhileUndoing(c.want, name, points, before)
		})
	}
}

var errTrial = errors.New("trial")

// stride is how far apart the points are that are tried: with -short, in a guest
// whose processor is emulated, not all.
func stride() int {
	if testing.Short() {
		return 11
	}
	return 1
}

// failEverywhere injects an error at each point.
func (w *world) failEverywhere(want attach.Spec, points int, before []string) {
	w.t.Helper()
	for k := 0; k < points; k += stride() {
		n := 0
		_, err := w.attach(want, func() error {
			n++
			if n == k+1 {
				return errTrial
			}
			return nil
		})
		if !errors.Is(err, errTrial) {
			w.t.Fatalf("error injected at point %d: %v", k, err)
		}
		w.unchanged(before, fmt.Sprintf("error at point %d", k))
	}
}

// stopAt ends everything at a point.
func stopAt(k int) func() error {
	n := 0
	return func() error {
		n++
		if n > k {
			return attach.ErrKilled
		}
		return nil
	}
}

// killEverywhere stops at each point, and repairs.
func (w *world) killEverywhere(want attach.Spec, points int, before []string) {
	w.t.Helper()
	for k := 0; k < points; k += stride() {
		if _, err := w.attach(want, stopAt(k)); !errors.Is(err, attach.ErrKilled) {
			w.t.Fatalf("stopped at point %d: %v", k, err)
		}
		w.repair()
		w.unchanged(before, "killed at point "+strconv.Itoa(k))
	}
}

// killWhileUndoing stops at the last point, then in the repairing of that at each
// point, and detaches, stopped at each point.
func (w *world) killWhileUndoing(want attach.Spec, name string, points int, before []string) {
	w.t.Helper()
	for k := 0; ; k += stride() {
		if _, err := w.attach(want, stopAt(points-1)); !errors.Is(err, attach.ErrKilled) {
			w.t.Fatal(err)
		}
		err := w.do(func() error {
			_, err := attach.RepairWithHook(w.t.Context(), w.store, stopAt(k))
			return err
		})
		w.repair()
		w.unchanged(before, fmt.Sprintf("killed at point %d of the repair", k))
		if err == nil {
			break
		}
	}
	for k := 0; ; k += stride() {
		_, err := w.attach(want, nil)
		must(w.t, err)
		err = w.detach(name, stopAt(k))
		if err == nil {
			w.unchanged(before, "detached")
			return
		}
		w.repair()
		w.unchanged(before, fmt.Sprintf("killed at point %d of detaching", k))
	}
}
