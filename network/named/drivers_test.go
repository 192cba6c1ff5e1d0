package named_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/networktest"

	"github.com/goccy/go-yaml"
	"github.com/vishvananda/netlink"
)

// needKinds skips the test if the kernel lacks a kind of link.
func needKinds(t *testing.T, kinds ...string) {
	t.Helper()
	for _, k := range kinds {
		if err := link.Probe(k); err != nil {
			t.Skip(err)
		}
	}
}

// lan returns a network of a driver on the parent "nic". Its gateways are outside.
func lan(driver string) named.NetworkSpec { return onNIC(driver, "198.51.100", "2001:db8:1:") }

// tagged is lan for VLAN 100 of the parent, which has other subnets.
func tagged(driver string) named.NetworkSpec {
	s := onNIC(driver, "203.0.113", "2001:db8:2:")
	s.VLAN = 100
	return s
}

func onNIC(driver, four, six string) named.NetworkSpec {
	return named.NetworkSpec{Name: "lan", Driver: driver, Parent: "nic", MTU: 1400, Subnets: []named.Subnet{
		{Prefix: netip.MustParsePrefix(four + ".0/24"), Gateway: netip.MustParseAddr(four + ".2")},
		{Prefix: netip.MustParsePrefix(six + ":/64"), Gateway: netip.MustParseAddr(six + ":2")}}}
}

// driverTests are the drivers, with what they need of the kernel.
var driverTests = []struct {
	name    string
	needs   []string
	spec    named.NetworkSpec
	private bool // containers don't reach each other
	layer3  bool // the outside would need a route to the containers
}{
	{name: "bridge", spec: named.NetworkSpec{Name: "lan", Subnets: subnets(1)}},
	{name: "routed", spec: named.NetworkSpec{Name: "lan", Driver: named.Routed, Subnets: subnets(1)}},
	{name: "macvlan", needs: []string{"macvlan"}, spec: lan(named.Macvlan)},
	{name: "macvlan private", needs: []string{"macvlan"}, spec: withMode(lan(named.Macvlan), "private"), private: true},
	{name: "ipvlan l2", needs: []string{"ipvlan"}, spec: lan(named.IPvlan)},
	{name: "ipvlan l3s", needs: []string{"ipvlan"}, spec: withMode(lan(named.IPvlan), "l3s"), layer3: true},
	{name: "vlan", needs: []string{"vlan", "macvlan"}, spec: tagged(named.VLAN)},
	{name: "macvlan in a VLAN", needs: []string{"vlan", "macvlan"}, spec: tagged(named.Macvlan)},
	{name: "ipvlan in a VLAN", needs: []string{"vlan", "ipvlan"}, spec: tagged(named.IPvlan)},
}

func withMode(spec named.NetworkSpec, mode string) named.NetworkSpec {
	spec.Mode = mode
	return spec
}

func withVLAN(spec named.NetworkSpec, id int) named.NetworkSpec {
	spec.VLAN = id
	return spec
}

// Containers on a network of each driver reach each other and the outside, keep their addresses
// over a restart and an apply of what was exported, and leave nothing behind.
func TestDrivers(t *testing.T) {
	for _, tt := range driverTests {
		t.Run(tt.name, func(t *testing.T) {
			needKinds(t, tt.needs...)
			tb := newTestbed(t, "a", "b")
			tb.outsideOn(&tt.spec)
			must(t, tb.repair())
			before := tb.snapshot()
			must(t, tb.create(tt.spec))
			rate := int64(100e6) // bit/s
			if link.Probe("tbf") != nil || link.Probe("ifb") != nil {
				rate = 0
			}
			endpoints := map[string]*named.Endpoint{}
			for _, c := range []string{"a", "b"} {
				e, err := tb.connect("lan", c, named.Connection{RateBitsPerSec: rate})
				must(t, err)
				endpoints[c] = e
			}
			b := answer(t, tb.containers["b"], 80) // a socket in a would keep its namespace alive
			tb.check()
			works := func(when string) {
				t.Helper()
				for _, family := range []int{0, 1} {
					to := netip.AddrPortFrom(endpoints["b"].Addresses[family], 80).String()
					if got, want := ask(tb.containers["a"], to), endpoints["a"].Addresses[family].String(); (got == want) == tt.private {
						t.Errorf("%s: %s sees %q, want %s: %t", when, to, got, want, !tt.private)
					}
				}
				if tt.spec.Parent == "" || tt.layer3 {
					return
				}
				for _, sub := range tt.spec.Subnets {
					to := netip.AddrPortFrom(sub.Gateway, 80).String()
					if got := ask(tb.containers["a"], to); got == "" {
						t.Errorf("%s: %s does not answer", when, to)
					}
				}
			}
			answer(t, tb.outside, 80)
			works("connected")
			if tt.spec.MTU != 0 {
				l, err := link.Find(tb.containers["a"], endpoints["a"].Interface)
				must(t, err)
				if mtu, err := l.MTU(); err != nil || mtu != tt.spec.MTU {
					t.Errorf("the MTU is %d, %v", mtu, err)
				}
			}
			tb.exportAndApply()
			tb.restart("a")
			works("a has restarted")
			tb.check()
			must(t, b.Close())
			must(t, tb.disconnect("lan", "b"))
			must(t, tb.connectAgain("b", endpoints["b"]))
			must(t, tb.containers["b"].Close())
			delete(tb.containers, "b")
			must(t, tb.onHost(func() error {
				removed, err := named.Prune(t.Context(), tb.cfg, false, false)
				if !slices.Equal(removed, []string{"lan/b"}) {
					t.Errorf("pruned %v", removed)
				}
				return err
			}))
			must(t, tb.remove("lan", true))
			before = slices.DeleteFunc(before, func(line string) bool { return strings.HasPrefix(line, "b: ") })
			tb.is("after rm", before)
		})
	}
}

// outsideOn gives the outside the gateway addresses of a network on the parent.
func (tb *testbed) outsideOn(spec *named.NetworkSpec) {
	t := tb.t
	t.Helper()
	if spec.Parent == "" {
		return
	}
	name := "wire"
	if spec.VLAN != 0 {
		name = "tagged"
		_, err := link.Create(tb.outside, link.VLANSpec{Attrs: link.Attrs{Name: name}, Parent: "wire", ID: spec.VLAN}, link.Target{})
		must(t, err)
	}
	l, err := link.Find(tb.outside, name)
	must(t, err)
	must(t, l.Up())
	for _, sub := range spec.Subnets {
		if err := l.AddAddr(netip.PrefixFrom(sub.Gateway, sub.Prefix.Bits())); !errors.Is(err, fs.ErrExist) {
			must(t, err)
		}
		// The kernel adds its local route once the link has a carrier.
		local := fmt.Sprintf("route %s via <nil>", netip.PrefixFrom(sub.Gateway, sub.Gateway.BitLen()))
		tb.eventually("the outside has the address "+sub.Gateway.String(), func() bool {
			return slices.ContainsFunc(networktest.Netlink(t, tb.outside), func(line string) bool {
				return strings.HasPrefix(line, local) && strings.Contains(line, "table 255")
			})
		})
	}
}

// connectAgain connects a container and checks that it gets its addresses again.
func (tb *testbed) connectAgain(container string, before *named.Endpoint) error {
	e, err := tb.connect("lan", container, before.Wanted)
	if err == nil && !slices.Equal(e.Addresses, before.Addresses) {
		err = fmt.Errorf("%s had %v and now has %v", container, before.Addresses, e.Addresses)
	}
	return err
}

// restart restarts a container, and attaches its link again as a keeper does.
func (tb *testbed) restart(container string) {
	t := tb.t
	t.Helper()
	a := tb.attachment("lan", container)
	must(t, tb.containers[container].Close())
	tb.containers[container] = networktest.NewNS(t, container)
	tb.eventually("the link is attached again", func() bool { // the kernel removes the old one a moment after the namespace
		return tb.onHost(func() error { _, err := attach.Reattach(t.Context(), tb.cfg.Attach, a); return err }) == nil
	})
}

// exportAndApply checks that what is exported is what exists.
func (tb *testbed) exportAndApply() {
	t := tb.t
	t.Helper()
	must(t, tb.onHost(func() error {
		exported, err := named.Export(tb.cfg)
		if err != nil {
			return err
		}
		text, err := yaml.Marshal(exported)
		if err != nil {
			return err
		}
		w, err := named.ParseFile("networks.yaml", text)
		if err != nil {
			return err
		}
		changes, err := named.Plan(t.Context(), tb.cfg, w, true)
		for _, c := range changes {
			t.Errorf("applying what was exported: %s", c.Text)
		}
		return err
	}))
}

// A parent that goes away is named, and containers are connected again when it is back.
func TestParentGoesAway(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(lan(named.Macvlan)))
	e, err := tb.connect("lan", "a", named.Connection{})
	must(t, err)
	nic, err := link.Find(tb.host, "nic")
	must(t, err)
	must(t, nic.Close())
	differences := func() (all []string) {
		must(t, tb.onHost(func() error {
			found, err := named.Check(t.Context(), tb.cfg)
			for _, d := range found {
				all = append(all, d.String())
			}
			return err
		}))
		return all
	}
	const missing = "lan: its parent nic does not exist; containers are connected again when it is back"
	if got := differences(); !slices.Contains(got, missing) {
		t.Errorf("the check says %q, want %q among it", got, missing)
	}
	err = tb.onHost(func() error { _, err := named.RepairAll(t.Context(), tb.cfg); return err })
	if err == nil || !strings.Contains(err.Error(), `connect lan/a again: parent "nic": the host has no such device`) {
		t.Errorf("repair without the parent: %v", err)
	}
	err = ignore(tb.connect("lan", "b", named.Connection{}))
	var bad *attach.SpecError
	if !errors.As(err, &bad) || bad.Param != "parent" {
		t.Errorf("connect without the parent: %v", err)
	}
	networktest.Connect(t, tb.host, tb.outside)
	must(t, tb.onHost(func() error { _, err := named.RepairAll(t.Context(), tb.cfg); return err }))
	tb.check()
	answer(t, tb.outside, 80)
	if got := ask(tb.containers["a"], "198.51.100.2:80"); got != e.Addresses[0].String() {
		t.Errorf("the parent is back: the outside sees %q, want %s", got, e.Addresses[0])
	}
	must(t, tb.remove("lan", true))
}

// What can't be a network of a driver is refused when it is created, and changes nothing.
func TestBadNetworks(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	_, err := link.Create(tb.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br7"}}, link.Target{})
	must(t, err)
	br, err := link.Find(tb.host, "br7")
	must(t, err)
	must(t, br.AddAddr(netip.MustParsePrefix("192.0.2.1/24")))
	must(t, br.Up())
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	before := tb.snapshot()
	on := func(driver, parent, subnet, gateway string) named.NetworkSpec {
		s := named.NetworkSpec{Name: "lan", Driver: driver, Parent: parent, Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix(subnet)}}}
		if gateway != "" {
			s.Subnets[0].Gateway = netip.MustParseAddr(gateway)
		}
		return s
	}
	for _, tt := range []struct {
		spec named.NetworkSpec
		want string
	}{
		{on(named.Macvlan, "nik", "198.51.100.0/24", "198.51.100.2"), `parent "nik": the host has no such device`},
		{on(named.Macvlan, "lo", "198.51.100.0/24", "198.51.100.2"), "is the loopback device"},
		{on(named.Macvlan, "nic", "198.51.100.0/24", "198.51.100.1"), "is the host itself"},
		{on(named.Macvlan, "nic", "198.51.100.0/24", ""), "is the host itself"}, // the first address is the default
		{on(named.Macvlan, "nic", "192.0.2.0/25", ""), "the host's br7"},
		{on(named.Macvlan, "nic", "10.20.0.0/16", ""), "the host's cl-web"},
		{withVLAN(on(named.VLAN, "nic", "203.0.113.0/24", ""), 4095), "want 1…4094"},
		{withVLAN(on(named.VLAN, "nic", "203.0.113.0/24", ""), -1), "want 1…4094"},
		{on(named.VLAN, "nic", "203.0.113.0/24", ""), "requires a VLAN ID"},
		{withMode(on(named.Macvlan, "nic", "203.0.113.0/24", ""), "l2"), "has no such mode"},
	} {
		if err := tb.create(tt.spec); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.spec, err, tt.want)
		}
	}
	tb.is("after refused networks", before)
	addDefaultRoute(t, tb.host, "198.51.100.254")
	spec := on(named.Macvlan, "nic", "198.51.100.0/24", "")
	must(t, tb.create(spec))
	n, err := tb.store.Network("lan")
	must(t, err)
	if got := n.Subnets[0].Gateway; got != netip.MustParseAddr("198.51.100.254") {
		t.Errorf("the gateway is %s, want the host's", got)
	}
	spec.Name = "lan2" // the same subnet on the same parent
	must(t, tb.create(spec))
	tb.containers["a"] = networktest.NewNS(t, "a")
	for _, a := range []string{"198.51.100.1", "198.51.100.254"} {
		if err := ignore(tb.connect("lan", "a", named.Connection{Addresses: []netip.Addr{netip.MustParseAddr(a)}})); err == nil {
			t.Errorf("a container got %s", a)
		}
	}
	e, err := tb.connect("lan", "a", named.Connection{})
	must(t, err)
	if e.Addresses[0] != netip.MustParseAddr("198.51.100.2") {
		t.Errorf("the first container got %s", e.Addresses[0])
	}
}

func addDefaultRoute(t *testing.T, ns *netns.NS, via string) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	must(t, h.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr(via).AsSlice()}))
}
