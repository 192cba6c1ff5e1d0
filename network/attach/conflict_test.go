package attach_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestBridgeNetworkInUse checks that a masqueraded bridge is refused if the host reaches
// its network by another link, and only then.
func TestBridgeNetworkInUse(t *testing.T) {
	tb := newTestbed(t)
	must(t, handle(t, tb.host).RouteAdd(&netlink.Route{Gw: []byte{198, 51, 100, 254}}))
	for _, c := range []struct{ ip, resource, owner string }{
		{"198.51.100.10/24", "network", "the host's nic"},
		{"198.51.100.10/30", "network", "the host's nic"},
		{"198.51.100.1/24", "address", "the host itself"},
		{"203.0.113.10/24", "", ""},
	} {
		spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix(c.ip)}, Masquerade: true}
		_, err := tb.attach(spec, nil)
		var taken *attach.TakenError
		switch {
		case c.resource == "":
			must(t, err)
		case !errors.As(err, &taken) || taken.Resource != c.resource || taken.Owner != c.owner:
			t.Errorf("%s: %v, want that the %s is in use by %s", c.ip, err, c.resource, c.owner)
		}
	}
}

// TestGatewayAddressInUse checks that the bridge does not get a gateway address that a
// container on it has, until that container is detached.
func TestGatewayAddressInUse(t *testing.T) {
	tb := newTestbed(t)
	tb.repair()
	_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.1/24")}, nil)
	must(t, err)
	waitUp(t, tb.host, "br0") // the kernel then adds its multicast route
	before := tb.snapshot()
	spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true}
	var taken *attach.TakenError
	if _, err := tb.attach(spec, nil); !errors.As(err, &taken) || taken.Name != "192.0.2.1" || taken.Owner != "eth0 of web" {
		t.Errorf("gateway address of a container: %v", err)
	}
	tb.unchanged(before, "refused")
	must(t, tb.detach("eth0", nil))
	_, err = tb.attach(spec, nil)
	must(t, err)

	spec.Addresses = prefixes("203.0.113.1/24")
	var bad *attach.SpecError
	if _, err := tb.attach(spec, nil); !errors.As(err, &bad) || bad.Param != "ip" {
		t.Errorf("gateway address that is the container's own: %v", err)
	}
	spec.Gateways = addrs("203.0.113.254")
	_, err = tb.attach(spec, nil)
	must(t, err)
}

// TestNotesParentDown checks the note that no packets pass while the bridge or the parent
// is down.
func TestNotesParentDown(t *testing.T) {
	tb := newTestbed(t)
	prepBridge(t, tb, nil)
	for _, spec := range []attach.Spec{{Kind: "bridge", Parent: "br0"}, {Kind: "macvlan", Parent: "nic"}} {
		l := find(t, tb.host, spec.Parent)
		for _, down := range []bool{false, true} {
			if down {
				must(t, l.Down())
			}
			got, err := tb.preview(spec)
			must(t, err)
			if noted := slices.Contains(got.Notes, spec.Parent+" is down; no packets pass before `ip link set "+spec.Parent+" up`"); noted != down {
				t.Errorf("%s: notes %q, want a note that %s is down: %v", spec.Kind, got.Notes, spec.Parent, down)
			}
		}
	}
}

// TestEthernetAddressInUse attaches two links with the same Ethernet address to one
// Ethernet: one that was chosen for both, or the generated one of the first.
func TestEthernetAddressInUse(t *testing.T) {
	chosen := link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	for _, c := range []struct {
		name   string
		first  attach.Spec
		second attach.Spec
		owner  string // "" if there is no conflict
	}{
		{"on a bridge", attach.Spec{Kind: "bridge", Parent: "br0", MAC: chosen}, attach.Spec{Kind: "bridge", Parent: "br0", MAC: chosen}, "eth0 of c0"},
		{"generated, on a bridge", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}, attach.Spec{Kind: "bridge", Parent: "br0"}, "eth0 of c0"},
		{"on two bridges", attach.Spec{Kind: "bridge", Parent: "br0", MAC: chosen}, attach.Spec{Kind: "bridge", Parent: "br1", MAC: chosen}, ""},
		{"in two VLANs", attach.Spec{Kind: "macvlan", Parent: "nic", VLAN: 7, MAC: chosen}, attach.Spec{Kind: "macvlan", Parent: "nic", VLAN: 8, MAC: chosen}, ""},
		{"macvlan", attach.Spec{Kind: "macvlan", Parent: "nic", MAC: chosen}, attach.Spec{Kind: "macvlan", Parent: "nic", MAC: chosen}, "eth0 of c0"},
		{"generated, macvlan", attach.Spec{Kind: "macvlan", Parent: "nic"}, attach.Spec{Kind: "macvlan", Parent: "nic"}, "eth0 of c0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.first.VLAN != 0 {
				needKinds(t, "vlan")
			}
			tb := newTestbed(t)
			cfg := tb.containers(2)
			try := tb.attacher(cfg)
			must(t, try("c0", c.first))
			if c.first.MAC == (link.MAC{}) && c.owner != "" {
				must(t, c.second.MAC.UnmarshalText([]byte(tb.list()[0].Address)))
			}
			err := try("c1", c.second)
			var taken *attach.TakenError
			switch {
			case c.owner == "":
				must(t, err)
			case !errors.As(err, &taken) || taken.Resource != attach.EthernetAddress || taken.Owner != c.owner || taken.Holder == nil:
				t.Errorf("got %v, want that the address is in use by %s", err, c.owner)
			}
			if c.owner != "" {
				_, _, err := attach.Detach(t.Context(), cfg, "c0", "eth0")
				must(t, err)
				must(t, try("c1", c.second))
			}
		})
	}
}

// TestPassthru attaches to a parent that a macvlan in passthru mode needs, or has,
// exclusively.
func TestPassthru(t *testing.T) {
	needKinds(t, "macvlan")
	shared, alone := attach.Spec{Kind: "macvlan", Parent: "nic"}, attach.Spec{Kind: "macvlan", Parent: "nic", Mode: "passthru"}
	for _, c := range []struct {
		name          string
		first, second attach.Spec
		host          bool // the first link belongs to the host
		param, reason string
	}{
		{"shared, then exclusive", shared, alone, false, "mode", "needs nic for itself, but eth0 of c0 is on it"},
		{"exclusive, then shared", alone, shared, false, "PARENT", "is used exclusively by eth0 of c0"},
		{"exclusive twice", alone, alone, false, "mode", "needs nic for itself, but eth0 of c0"},
		{"host's shared, then exclusive", shared, alone, true, "mode", "needs nic for itself, but the host's mine"},
		{"host's exclusive, then shared", alone, shared, true, "PARENT", "is used exclusively by the host's mine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t)
			cfg := tb.containers(2)
			try := tb.attacher(cfg)
			if c.host {
				mode := map[string]link.MacvlanMode{"": link.MacvlanBridge, "passthru": link.MacvlanPassthru}[c.first.Mode]
				_, err := link.Create(tb.host, link.MacvlanSpec{Attrs: link.Attrs{Name: "mine"}, Parent: "nic", Mode: mode}, link.Target{})
				must(t, err)
			} else {
				must(t, try("c0", c.first))
			}
			err := try("c1", c.second)
			var bad *attach.SpecError
			if !errors.As(err, &bad) || bad.Param != c.param || !strings.HasPrefix(bad.Reason, c.reason) || (bad.Run == "cleat detach c0 eth0") == c.host {
				t.Errorf("got %v, want %s: %s", err, c.param, c.reason)
			}
		})
	}
}

// TestEthernetAddressSeenByBridge uses addresses that a bridge has learned. That of a
// device of the host is refused; another one results in a note.
func TestEthernetAddressSeenByBridge(t *testing.T) {
	tb := newTestbed(t)
	h := handle(t, tb.host)
	br0, err := link.Create(tb.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}}, link.Target{})
	must(t, err)
	must(t, br0.Up())
	nic, err := h.LinkByName("nic")
	must(t, err)
	must(t, h.LinkSetMasterByIndex(nic, br0.Index()))
	heard := link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	must(t, h.NeighAdd(&netlink.Neigh{LinkIndex: nic.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, State: netlink.NUD_REACHABLE, HardwareAddr: heard[:]}))
	got, err := tb.preview(attach.Spec{Kind: "bridge", Parent: "br0", MAC: heard})
	must(t, err)
	if len(got.Notes) != 1 || !strings.HasPrefix(got.Notes[0], "bridge br0 has recently seen the Ethernet address 02:00:5e:10:00:01 behind its port nic") {
		t.Errorf("notes %q", got.Notes)
	}
	var taken *attach.TakenError
	_, err = tb.preview(attach.Spec{Kind: "bridge", Parent: "br0", MAC: link.MAC(nic.Attrs().HardwareAddr)})
	if !errors.As(err, &taken) || taken.Owner != "the host's nic" {
		t.Errorf("address of a port: %v", err)
	}
	must(t, h.LinkSetNoMaster(nic))
	_, err = tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", MAC: link.MAC(nic.Attrs().HardwareAddr)}, nil)
	if !errors.As(err, &taken) || taken.Owner != "the host's nic" {
		t.Errorf("address of the parent: %v", err)
	}
}

// TestNotesSilentEngine checks that attaching and detaching report the engine that
// delayed the search for the container.
func TestNotesSilentEngine(t *testing.T) {
	tb := newTestbed(t)
	tb.container.SilentEngines = "docker"
	const noted = "docker did not answer; use the name test:web so that only its engine is asked"
	got, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
	must(t, err)
	notes, err := tb.detachNotes()
	must(t, err)
	if !slices.Equal(got.Notes, []string{noted}) || !slices.Equal(notes, []string{noted}) {
		t.Errorf("attach: notes %q; detach: notes %q", got.Notes, notes)
	}
}

// TestNotesMissingKernelSupport checks that a plan notes that the kernel can't make a
// kind of link.
func TestNotesMissingKernelSupport(t *testing.T) {
	tb := newTestbed(t)
	for _, kind := range []string{"dummy", "wireguard", "netkit"} {
		got, err := tb.preview(attach.Spec{Kind: kind})
		must(t, err)
		lack := link.Probe(kind)
		if noted := len(got.Notes) > 0 && strings.HasPrefix(got.Notes[0], "not possible on this machine: "); noted != (lack != nil) {
			t.Errorf("%s: notes %q, probe: %v", kind, got.Notes, lack)
		}
	}
}

// TestEthernetAddressSeenInVLAN is about a bridge that filters VLANs: it knows an address in each of
// them separately.
func TestEthernetAddressSeenInVLAN(t *testing.T) {
	needKinds(t, "bridge-vlan")
	tb := newTestbed(t)
	h := handle(t, tb.host)
	heard := link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	br0, err := link.Create(tb.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}, VLANFiltering: true}, link.Target{})
	must(t, err)
	must(t, br0.Up())
	port, err := link.Create(tb.host, link.DummySpec{Attrs: link.Attrs{Name: "port"}}, link.Target{})
	must(t, err)
	must(t, port.SetMaster("br0"))
	must(t, h.NeighAdd(&netlink.Neigh{LinkIndex: port.Index(), Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, State: netlink.NUD_REACHABLE, HardwareAddr: heard[:], Vlan: 1}))
	for vlan, want := range map[int]int{0: 1, 1: 1, 2: 0} {
		got, err := tb.preview(attach.Spec{Kind: "bridge", Parent: "br0", MAC: heard, VLAN: vlan})
		must(t, err)
		if len(got.Notes) != want {
			t.Errorf("VLAN %d: notes %q, want %d", vlan, got.Notes, want)
		}
	}
}

// TestSecondLinkToNetwork checks the note that the container already reaches a network
// directly by another link. A route by way of a router does not count.
func TestSecondLinkToNetwork(t *testing.T) {
	tb := newTestbed(t)
	_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Name: "one", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64"), Gateways: addrs("192.0.2.1")}, nil)
	must(t, err)
	for _, c := range []struct {
		ip    string
		noted bool
	}{
		{"192.0.2.11/24", true}, {"192.0.2.200/28", true}, {"2001:db8::11/64", true},
		{"203.0.113.11/24", false}, {"2001:db8:1::11/64", false},
	} {
		got, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Name: "two", Addresses: prefixes(c.ip)}, nil)
		must(t, err)
		if noted := len(got.Notes) == 1 && strings.Contains(got.Notes[0], "already reaches"); noted != c.noted {
			t.Errorf("%s: notes %q, want a note that the network is reached already: %v", c.ip, got.Notes, c.noted)
		}
		must(t, tb.detach("two", nil))
	}
}

// attacher returns a function that attaches spec to a container. It checks that Preview
// returns the same error as Attach.
func (tb *testbed) attacher(cfg attach.Config) func(container string, spec attach.Spec) error {
	return func(container string, spec attach.Spec) error {
		return tb.onHost(func() error {
			_, planned := attach.Preview(tb.t.Context(), cfg, container, spec)
			_, err := attach.Attach(tb.t.Context(), cfg, container, spec)
			if fmt.Sprint(planned) != fmt.Sprint(err) {
				tb.t.Errorf("planned: %v; attached: %v", planned, err)
			}
			return err
		})
	}
}

// TestAddressInUse attaches two links that need the same address: the second is refused
// until the first is gone.
func TestAddressInUse(t *testing.T) {
	ip := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.1/24")}
	gateway := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true}
	for _, c := range []struct {
		name   string
		second attach.Spec
	}{{"address", ip}, {"gateway address", gateway}} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t)
			cfg := tb.containers(2)
			try := tb.attacher(cfg)
			must(t, try("c0", ip))
			var taken *attach.TakenError
			if err := try("c1", c.second); !errors.As(err, &taken) || taken.Owner != "eth0 of c0" || taken.Holder == nil {
				t.Errorf("got %v, want that the address is in use by c0", err)
			}
			must(t, tb.onHost(func() error {
				_, ns, err := cfg.Find(t.Context(), "c0")
				must(t, err)
				defer ns.Close()
				return find(t, ns, "eth0").Close()
			}))
			must(t, try("c1", c.second))
		})
	}
}

// TestRouteInUse adds a route that the container already has.
func TestRouteInUse(t *testing.T) {
	tb := newTestbed(t)
	try := tb.attacher(tb.config())
	for name, c := range map[string]struct{ ip, route string }{
		"IPv4": {"192.0.2.10/24", "198.51.100.0/24"},
		"IPv6": {"2001:db8::10/64", "2001:db8:1::/64"},
	} {
		spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes(c.ip), Routes: []attach.Route{{To: netip.MustParsePrefix(c.route)}}}
		must(t, try("web", spec))
		spec.Addresses = nil
		var taken *attach.TakenError
		if err := try("web", spec); !errors.As(err, &taken) || taken.Resource != "route" || taken.Name != c.route {
			t.Errorf("%s: got %v, want that the route is in use", name, err)
		}
		spec.Routes[0].To = netip.PrefixFrom(spec.Routes[0].To.Addr(), spec.Routes[0].To.Bits()+1)
		must(t, try("web", spec))
	}
}
