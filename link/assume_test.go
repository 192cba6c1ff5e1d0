package link_test

import (
	"errors"
	"testing"

	"cleat/link"
	"cleat/netns"
)

// Each test here proves one thing that kernels do and no manual says, and that
// this package or its readers rely on.

// A WireGuard device that goes up switches send_redirects off for the whole
// namespace (wg_open, drivers/net/wireguard/device.c), and nobody switches it
// on again. It is the one trace that a link of ours leaves.
func TestAssumeWireGuardStopsRedirects(t *testing.T) {
	need(t, "wireguard")
	ns := newNS(t, "a")
	sysctl(t, ns, sendRedirects, "1")
	l := create(t, ns, link.WireGuardSpec{Attrs: named("wg0")}, nil)
	must(t, l.Close())
	if got := readSysctl(t, ns, sendRedirects); got != "0" {
		t.Errorf("send_redirects is %q: WireGuard leaves it alone now, and the conformance suite need not forgive it", got)
	}
}

const sendRedirects = "net/ipv4/conf/all/send_redirects"

// A macvlan device in mode private is isolated by not hearing broadcasts: a
// unicast frame that knows the neighbour's address passes a hairpin switch like
// that of a device in mode vepa (macvlan_handle_frame, drivers/net/macvlan.c).
func TestAssumeMacvlanPrivateIsolatesByBroadcast(t *testing.T) {
	need(t, "macvlan")
	o := newOffice(t)
	a, b := o.macvlans(t, link.MacvlanPrivate)
	introduce(t, a, b)
	isolated(t, a, b, o.outside)
	o.hairpin(t, true)
	passes(t, a, b)
}

// introduce tells two ends each other's Ethernet address.
func introduce(t *testing.T, a, b *end) {
	t.Helper()
	must(t, a.link.AddNeighbor(b.addr, mac(t, b.link)))
	must(t, b.link.AddNeighbor(a.addr, mac(t, a.link)))
}

// A second ipvlan device changes the mode and the flag of the first: they are
// the parent's (ipvlan_link_new, drivers/net/ipvlan/ipvlan_main.c).
func TestAssumeIPvlanModeIsTheParents(t *testing.T) {
	need(t, "ipvlan")
	ns := newNS(t, "a")
	cable(t, ns, "parent", ns, "wire")
	first := create(t, ns, link.IPvlanSpec{Attrs: named("i1"), Parent: "parent", Mode: link.IPvlanL2, Flag: link.IPvlanPrivate}, nil)
	create(t, ns, link.IPvlanSpec{Attrs: named("i2"), Parent: "parent", Mode: link.IPvlanL3, Flag: link.IPvlanBridge}, nil)
	got, err := first.Spec()
	must(t, err)
	if s := got.(link.IPvlanSpec); s.Mode != link.IPvlanL3 || s.Flag != link.IPvlanBridge {
		t.Errorf("the first device has mode %s, flag %s, want those of the second: l3, bridge", s.Mode, s.Flag)
	}
}

// Before 6.15 a name in use where the request is sent keeps a link from being
// made under that name elsewhere; Create goes a detour. A name in use where the
// link is to go is refused by all.
func TestAssumeNamesAreLookedUpBothWays(t *testing.T) {
	need(t, "vxlan")
	here, there := newNS(t, "here"), newNS(t, "there")
	cable(t, here, "eth0", here, "wire")
	spec := link.VXLANSpec{Attrs: named("eth0"), VNI: 7, Parent: "wire"}
	create(t, here, spec, there)
	spec.VNI = 8
	if _, err := link.Create(here, spec, link.Target{NS: there}); !errors.Is(err, link.ErrExists) {
		t.Errorf("a name in use at the target: %v, want ErrExists", err)
	}
}

// A kernel without CONFIG_BRIDGE_VLAN_FILTERING makes a plain bridge when asked
// for a filtering one; Create notices.
func TestAssumeVLANFilteringIsIgnoredOrThere(t *testing.T) {
	need(t, "bridge")
	ns := newNS(t, "a")
	l, err := link.Create(ns, link.BridgeSpec{Attrs: named("br0"), VLANFiltering: true}, link.Target{})
	var lack *link.Lack
	switch {
	case errors.As(err, &lack):
		if _, err := link.Find(ns, "br0"); err == nil {
			t.Error("the bridge that does not filter was left behind")
		}
	case err != nil:
		t.Fatal(err)
	default:
		got, err := l.Spec()
		must(t, err)
		if !got.(link.BridgeSpec).VLANFiltering {
			t.Error("Create returned a bridge that does not filter")
		}
	}
}

// Bridge netfilter is a setting of each namespace by itself.
func TestAssumeBridgeNetfilterIsPerNamespace(t *testing.T) {
	need(t, "bridge-netfilter")
	a, b := newNS(t, "a"), newNS(t, "b")
	must(t, link.SetBridgeNetfilter(a, link.BridgeNetfilter{}))
	must(t, link.SetBridgeNetfilter(b, link.BridgeNetfilter{IPTables: true, IP6Tables: true, ARPTables: true}))
	for ns, want := range map[*netns.NS]bool{a: false, b: true} {
		got, err := link.ReadBridgeNetfilter(ns)
		must(t, err)
		if got.IPTables != want || got.IP6Tables != want || got.ARPTables != want {
			t.Errorf("%s has %+v, want all %v", ns, got, want)
		}
	}
}
