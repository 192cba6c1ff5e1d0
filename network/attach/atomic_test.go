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
	"cleat/network/networktest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// atomicCase is one way to attach, with the state of the host and the container before
// it.
type atomicCase struct {
	name  string
	needs []string // kinds that link.Probe must find
	spec  attach.Spec
	prep  func(*testing.T, *testbed, *attach.Spec)
}

// atomicCases covers each kind, and each flag with at least one kind.
func atomicCases() []atomicCase {
	v4, v6 := prefixes("192.0.2.10/24"), prefixes("192.0.2.10/24", "2001:db8::10/64")
	remote := map[string]string{"vni": "7", "remote": "198.51.100.2"}
	return []atomicCase{
		{name: "new bridge", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Gateways: addrs("192.0.2.1", "2001:db8::1"), MTU: 1400,
			Routes: []attach.Route{{To: netip.MustParsePrefix("203.0.113.0/24"), Via: netip.MustParseAddr("192.0.2.9")}}}},
		{name: "existing bridge", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4}, prep: prepBridge},
		{name: "shared bridge", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4, Masquerade: true}, prep: prepSecondAttachment},
		{name: "masqueraded bridge", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Masquerade: true}},
		{name: "no IPv6 in the container", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Gateways: addrs("2001:db8::1")}, prep: prepNoIPv6},
		{name: "bridge with rate limit", needs: []string{"bridge", "ifb", "tbf"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4, RateBitsPerSec: 1e8, BurstBytes: 20000}},
		{name: "bridge in a VLAN", needs: []string{"bridge-vlan"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v4, VLAN: 100}},
		{name: "default route replaced", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, Gateways: addrs("192.0.2.1", "2001:db8::1")}, prep: prepDefaultRoute},
		{name: "source gateways", needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Addresses: v6, SourceGateways: addrs("192.0.2.1", "2001:db8::1")}, prep: prepDefaultRoute},
		{name: "macvlan", needs: []string{"macvlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: v6, Gateways: addrs("192.0.2.1")}},
		{name: "macvlan with shim", needs: []string{"macvlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24"), HostShim: true}},
		{name: "macvlan with IPv6 shim", needs: []string{"macvlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8:2::7/64"), HostShim: true}, prep: prepRoute},
		{name: "macvlan with rate limit", needs: []string{"macvlan", "ifb", "tbf"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: v4, RateBitsPerSec: 1e8}},
		{name: "macvlan passthru", needs: []string{"macvlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Mode: "passthru", Addresses: v4}},
		{name: "macvlan in a VLAN", needs: []string{"macvlan", "vlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", VLAN: 100, Addresses: v4}},
		{name: "ipvlan l2", needs: []string{"ipvlan"}, spec: attach.Spec{Kind: "ipvlan", Parent: "nic", Addresses: v4}},
		{name: "ipvlan l3", needs: []string{"ipvlan"}, spec: attach.Spec{Kind: "ipvlan", Parent: "nic", Mode: "l3", Addresses: v4}},
		{name: "ipvlan l3s", needs: []string{"ipvlan"}, spec: attach.Spec{Kind: "ipvlan", Parent: "nic", Mode: "l3s", Addresses: v4}},
		{name: "vlan", needs: []string{"vlan"}, spec: attach.Spec{Kind: "vlan", Parent: "nic", VLAN: 100, Addresses: v4}},
		{name: "vxlan", needs: []string{"vxlan"}, spec: attach.Spec{Kind: "vxlan", Addresses: v4, Params: remote}},
		{name: "geneve", needs: []string{"geneve"}, spec: attach.Spec{Kind: "geneve", Addresses: v4, Params: remote}},
		{name: "wireguard", needs: []string{"wireguard"}, spec: attach.Spec{Kind: "wireguard", Addresses: v4, Params: map[string]string{"listen_port": "51820"}},
			prep: func(t *testing.T, tb *testbed, _ *attach.Spec) { // WireGuard sets it when a device goes up, and never resets it
				sysctl(t, tb.web, "net/ipv4/conf/all/send_redirects", "0")
			}},
		{name: "dummy", needs: []string{"dummy"}, spec: attach.Spec{Kind: "dummy", Addresses: v4}},
		{name: "tap", needs: []string{"tun"}, spec: attach.Spec{Kind: "tap", Addresses: v4}},
		{name: "tun", needs: []string{"tun"}, spec: attach.Spec{Kind: "tap", Mode: "tun", Addresses: v4}},
		{name: "netkit l3", needs: []string{"netkit"}, spec: attach.Spec{Kind: "netkit", Addresses: v4}},
		{name: "netkit l2 on a bridge", needs: []string{"netkit", "bridge"}, spec: attach.Spec{Kind: "netkit", Mode: "l2", Parent: "br0", Addresses: v4}, prep: prepBridge},
		{name: "ovs", needs: []string{"openvswitch"}, spec: attach.Spec{Kind: "ovs", Parent: "ovs0", Addresses: v4, VLAN: 100}, prep: prepOVS},
		{name: "ovs internal", needs: []string{"openvswitch"}, spec: attach.Spec{Kind: "ovs", Parent: "ovs0", Mode: "internal", Addresses: v4}, prep: prepOVS},
		{name: "bridge, handed over", needs: []string{"bridge", "ifb", "tbf"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Name: "clh0", HandOver: true, Addresses: v6, Gateways: addrs("192.0.2.1", "2001:db8::1"), RateBitsPerSec: 1e8}},
		{name: "routed, handed over", spec: attach.Spec{Kind: "routed", Name: "clh0", Peer: "clr0", HandOver: true, Addresses: prefixes("192.0.2.10/32", "2001:db8::10/128"),
			Gateways: addrs("198.51.100.1", "fe80::1"), Routes: []attach.Route{{To: netip.MustParsePrefix("198.51.100.1/32")}}}},
		{name: "macvlan, handed over", needs: []string{"macvlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Name: "clh0", HandOver: true, Addresses: v6}},
		{name: "ipvlan, handed over", needs: []string{"ipvlan"}, spec: attach.Spec{Kind: "ipvlan", Parent: "nic", Name: "clh0", HandOver: true, Addresses: v4}},
		{name: "vlan, handed over", needs: []string{"vlan"}, spec: attach.Spec{Kind: "vlan", Parent: "nic", VLAN: 100, Name: "clh0", HandOver: true, Addresses: v4}},
		{name: "phys", spec: attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7", Addresses: v4, MTU: 1400, MAC: link.MAC{2, 0, 0x5e, 0x10, 0, 1}}, prep: prepConfigured},
		{name: "phys with a queueing discipline", needs: []string{"tbf", "ifb"}, spec: attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7", Addresses: v4, RateBitsPerSec: 1e7}, prep: prepQdisc},
	}
}

// prepOVS starts Open vSwitch and makes a bridge, which loads the datapath.
func prepOVS(t *testing.T, tb *testbed, spec *attach.Spec) {
	o, err := link.StartOVS(t.Context(), tb.host, filepath.Join(t.TempDir(), "ovs"))
	must(t, err)
	t.Cleanup(func() { o.Close() })
	_, err = link.Create(tb.host, link.OVSBridgeSpec{Attrs: link.Attrs{Name: "first"}, DB: o.DB()}, link.Target{})
	must(t, err)
	spec.Params = map[string]string{"db": o.DB()}
}

func prepBridge(t *testing.T, tb *testbed, _ *attach.Spec) {
	l, err := link.Create(tb.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0", MTU: 1450}}, link.Target{})
	must(t, err)
	must(t, l.Up())
}

// prepNoIPv6 disables IPv6 the way Docker does in a container without IPv6 networks.
func prepNoIPv6(t *testing.T, tb *testbed, _ *attach.Spec) {
	for _, where := range []string{"all", "default"} {
		sysctl(t, tb.web, "net/ipv6/conf/"+where+"/disable_ipv6", "1")
	}
}

// prepSecondAttachment adds another attachment that shares the bridge and the
// masquerading.
func prepSecondAttachment(t *testing.T, tb *testbed, _ *attach.Spec) {
	_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.20/24"), Masquerade: true}, nil)
	must(t, err)
}

// prepDefaultRoute gives the container a link with default routes.
func prepDefaultRoute(t *testing.T, tb *testbed, _ *attach.Spec) {
	_, err := link.Create(tb.web, link.VethSpec{Attrs: link.Attrs{Name: "old"}, Peer: link.Attrs{Name: "oldpeer"}}, link.Target{PeerNS: tb.outside})
	must(t, err)
	must(t, find(t, tb.outside, "oldpeer").Up())
	l := find(t, tb.web, "old")
	must(t, l.Up())
	waitUp(t, tb.web, "old")
	waitUp(t, tb.outside, "oldpeer")
	must(t, l.AddAddr(netip.MustParsePrefix("203.0.113.2/24")))
	must(t, l.AddAddr(netip.MustParsePrefix("2001:db8:1::2/64")))
	waitRoute(t, tb.web, "2001:db8:1::2/128")
	h := handle(t, tb.web)
	for _, via := range []string{"203.0.113.1", "2001:db8:1::1"} {
		must(t, h.RouteAdd(&netlink.Route{LinkIndex: l.Index(), Gw: netip.MustParseAddr(via).AsSlice()}))
	}
}

// waitRoute waits for a route. The kernel adds the local route of an IPv6 address a
// little later than the address.
func waitRoute(t *testing.T, ns *netns.NS, to string) {
	t.Helper()
	for !slices.ContainsFunc(networktest.Netlink(t, ns), func(line string) bool { return strings.HasPrefix(line, "route "+to) }) {
		if t.Context().Err() != nil {
			t.Fatalf("no route to %s appeared", to)
		}
	}
}

// prepQdisc gives the card routes and a queueing discipline.
func prepQdisc(t *testing.T, tb *testbed, spec *attach.Spec) {
	prepRoute(t, tb, spec)
	must(t, link.Shape(find(t, tb.host, "nic"), link.Shaping{RateBitsPerSec: 5e7, BurstBytes: 30000}))
}

// prepConfigured gives the card all the state that detaching must restore, as far as the
// kernel supports it.
func prepConfigured(t *testing.T, tb *testbed, spec *attach.Spec) {
	prepRoute(t, tb, spec)
	h := handle(t, tb.host)
	nic, err := h.LinkByName("nic")
	must(t, err)
	for ip, broadcast := range map[string]string{"198.51.100.201/29": "0.0.0.0", "198.51.100.209/29": "198.51.100.210"} {
		a, err := netlink.ParseAddr(ip)
		must(t, err)
		a.Broadcast = net.ParseIP(broadcast)
		must(t, h.AddrAdd(nic, a))
	}
	if !tb.addQdiscTree() {
		t.Log("without classes, because the kernel lacks HTB, TBF or u32")
	}
}

// addQdiscTree gives the card a tree of queueing disciplines with classes and filters. It
// returns false if the kernel lacks one of their kinds.
func (tb *testbed) addQdiscTree() bool {
	t := tb.t
	t.Helper()
	l := find(t, tb.host, "nic")
	h := handle(t, tb.host)
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
	for i, to := range []uint32{id(1, 0x10), id(1, 0x20), id(8, 1)} { // descending priorities: the kernel numbers the filter tables in the order they are added
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

// TestNotesLostQdiscs checks that a plan names the queueing disciplines that detaching
// can't restore.
func TestNotesLostQdiscs(t *testing.T) {
	tb := newTestbed(t)
	if !tb.addQdiscTree() {
		t.Skip("the kernel lacks HTB, TBF or u32")
	}
	noted := func() string {
		got, err := tb.preview(attach.Spec{Kind: "phys", Parent: "nic", Addresses: prefixes("192.0.2.10/24")})
		must(t, err)
		return strings.Join(got.Notes, "\n")
	}
	if notes := noted(); strings.Contains(notes, "queueing disciplines") {
		t.Errorf("a note about a tree that can be restored: %q", notes)
	}
	nic := find(t, tb.host, "nic").Index()
	must(t, handle(t, tb.host).QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: nic, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}))
	if notes := noted(); !strings.Contains(notes, "the queueing disciplines of nic (") || !strings.Contains(notes, "ingress") {
		t.Errorf("notes: %q", notes)
	}
}

// prepRoute gives the card an IPv6 address and a route that detaching must restore.
func prepRoute(t *testing.T, tb *testbed, _ *attach.Spec) {
	l := find(t, tb.host, "nic")
	must(t, l.AddAddr(netip.MustParsePrefix("2001:db8:2::1/64")))
	waitRoute(t, tb.host, "2001:db8:2::1/128")
	to, err := netlink.ParseIPNet("203.0.113.0/24")
	must(t, err)
	must(t, handle(t, tb.host).RouteAdd(&netlink.Route{LinkIndex: l.Index(), Dst: to, Gw: netip.MustParseAddr("198.51.100.9").AsSlice()}))
}

// TestAllOrNothing attaches in each way, and makes that fail, and kills it, at each
// point. An error restores the old state at once, a kill with the next command.
// Detaching, whole or killed in the middle, restores it as well.
func TestAllOrNothing(t *testing.T) {
	for _, c := range atomicCases() {
		t.Run(c.name, func(t *testing.T) {
			if !slices.Contains(c.needs, "openvswitch") { // the other tests' snapshots would see its processes start
				t.Parallel() // it mostly waits for the kernel
			}
			needKinds(t, c.needs...)
			tb := newTestbed(t)
			if c.prep != nil {
				c.prep(t, tb, &c.spec)
			}
			tb.repair() // creates the directories
			before := tb.snapshot()

			points := 0
			got, err := tb.attach(c.spec, func() error { points++; return nil })
			must(t, err)
			name := got.Attachment.Spec.Name
			if state := tb.list(); len(state) == 0 || state[0].State != attach.Attached {
				t.Errorf("attached, but listed as %+v", state)
			}
			must(t, tb.detach(name, nil))
			tb.unchanged(before, "detached")
			if points < 10 {
				t.Errorf("the hook was called at only %d points", points)
			}
			tb.failAtEachPoint(c.spec, points, before)
			tb.killAtEachPoint(c.spec, points, before)
			tb.killWhileUndoing(c.spec, name, points, before)
		})
	}
}

var errInjected = errors.New("injected error")

// stride is the distance between the points that are tested. It is larger with -short,
// for guests with an emulated processor.
func stride() int {
	if testing.Short() {
		return 11
	}
	return 1
}

// failAtEachPoint makes attaching fail with an error at each point.
func (tb *testbed) failAtEachPoint(spec attach.Spec, points int, before []string) {
	tb.t.Helper()
	for k := 0; k < points; k += stride() {
		n := 0
		_, err := tb.attach(spec, func() error {
			n++
			if n == k+1 {
				return errInjected
			}
			return nil
		})
		if !errors.Is(err, errInjected) {
			tb.t.Fatalf("error injected at point %d: %v", k, err)
		}
		tb.unchanged(before, fmt.Sprintf("error at point %d", k))
	}
}

// killAt returns a hook that ends the operation at point k as if the process were killed.
func killAt(k int) func() error {
	n := 0
	return func() error {
		n++
		if n > k {
			return attach.ErrKilled
		}
		return nil
	}
}

// killAtEachPoint kills attaching at each point, and repairs.
func (tb *testbed) killAtEachPoint(spec attach.Spec, points int, before []string) {
	tb.t.Helper()
	for k := 0; k < points; k += stride() {
		if _, err := tb.attach(spec, killAt(k)); !errors.Is(err, attach.ErrKilled) {
			tb.t.Fatalf("killed at point %d: %v", k, err)
		}
		tb.repair()
		tb.unchanged(before, "killed at point "+strconv.Itoa(k))
	}
}

// killWhileUndoing kills attaching at the last point, and then the repair of that at each
// point. Then it kills detaching at each point.
func (tb *testbed) killWhileUndoing(spec attach.Spec, name string, points int, before []string) {
	tb.t.Helper()
	for k := 0; ; k += stride() {
		if _, err := tb.attach(spec, killAt(points-1)); !errors.Is(err, attach.ErrKilled) {
			tb.t.Fatal(err)
		}
		err := tb.onHost(func() error {
			_, err := attach.RepairWithHook(tb.t.Context(), tb.store, killAt(k))
			return err
		})
		tb.repair()
		tb.unchanged(before, fmt.Sprintf("killed at point %d of the repair", k))
		if err == nil {
			break
		}
	}
	for k := 0; ; k += stride() {
		got, err := tb.attach(spec, nil)
		must(tb.t, err)
		must(tb.t, tb.store.SaveKeeperReport(got.Attachment.ID, attach.KeeperReport{}))
		err = tb.detach(name, killAt(k))
		if err == nil {
			tb.unchanged(before, "detached")
			return
		}
		tb.repair()
		tb.unchanged(before, fmt.Sprintf("killed at point %d of detaching", k))
	}
}
