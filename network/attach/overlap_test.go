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

// TestBridgeTakesNoNetwork has a masqueraded bridge refused whose network the host
// reaches by another link, and only then.
func TestBridgeTakesNoNetwork(t *testing.T) {
	w := newWorld(t)
	must(t, handle(t, w.host).RouteAdd(&netlink.Route{Gw: []byte{198, 51, 100, 254}}))
	for _, c := range []struct{ ip, what, by string }{
		{"198.51.100.10/24", "network", "the host's nic"},
		{"198.51.100.10/30", "network", "the host's nic"},
		{"198.51.100.1/24", "address", "the host itself"},
		{"203.0.113.10/24", "", ""},
	} {
		want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix(c.ip)}, Masquerade: true}
		_, err := w.attach(want, nil)
		var taken *attach.TakenError
		switch {
		case c.what == "":
			must(t, err)
		case !errors.As(err, &taken) || taken.Resource != c.what || taken.Owner != c.by:
			t.Errorf("%s: %v, want that the %s is taken by %s", c.ip, err, c.what, c.by)
		}
	}
}

// TestGatewayIsNobodysElse has the host refused the address of a gateway that a container
// on the bridge has, until that is gone.
func TestGatewayIsNobodysElse(t *testing.T) {
	w := newWorld(t)
	w.repair()
	_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.1/24")}, nil)
	must(t, err)
	before := w.snapshot()
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true}
	var taken *attach.TakenError
	if _, err := w.attach(want, nil); !errors.As(err, &taken) || taken.Name != "192.0.2.1" || taken.Owner != "eth0 of web" {
		t.Errorf("a container has it: %v", err)
	}
	w.unchanged(before, "refused")
	must(t, w.detach("eth0", nil))
	_, err = w.attach(want, nil)
	must(t, err)

	want.Addresses = prefixes("203.0.113.1/24")
	var bad *attach.SpecError
	if _, err := w.attach(want, nil); !errors.As(err, &bad) || bad.Param != "ip" {
		t.Errorf("it is the container's own: %v", err)
	}
	want.Gateways = addrs("203.0.113.254")
	_, err = w.attach(want, nil)
	must(t, err)
}

// TestDownIsNoted has it said that nothing passes by what a link stands on.
func TestDownIsNoted(t *testing.T) {
	w := newWorld(t)
	haveBridge(t, w, nil)
	for _, want := range []attach.Spec{{Kind: "bridge", Parent: "br0"}, {Kind: "macvlan", Parent: "nic"}} {
		l := find(t, w.host, want.Parent)
		for _, down := range []bool{false, true} {
			if down {
				must(t, l.Down())
			}
			got, err := w.preview(want)
			must(t, err)
			if said := slices.Contains(got.Notes, want.Parent+" is down; no packets pass before `ip link set "+want.Parent+" up`"); said != down {
				t.Errorf("%s: notes %q, want one that %s is down: %v", want.Kind, got.Notes, want.Parent, down)
			}
		}
	}
}

// TestEthernetAddressTaken has two links on one Ethernet that are to have the same address:
// one that a person chose for both, or that the first was given by chance.
func TestEthernetAddressTaken(t *testing.T) {
	chosen := link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	for _, c := range []struct {
		name   string
		first  attach.Spec
		second attach.Spec
		by     string // "": it is not taken
	}{
		{"on a bridge", attach.Spec{Kind: "bridge", Parent: "br0", MAC: chosen}, attach.Spec{Kind: "bridge", Parent: "br0", MAC: chosen}, "eth0 of c0"},
		{"by chance, on a bridge", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}, attach.Spec{Kind: "bridge", Parent: "br0"}, "eth0 of c0"},
		{"on two bridges", attach.Spec{Kind: "bridge", Parent: "br0", MAC: chosen}, attach.Spec{Kind: "bridge", Parent: "br1", MAC: chosen}, ""},
		{"in two VLANs", attach.Spec{Kind: "macvlan", Parent: "nic", VLAN: 7, MAC: chosen}, attach.Spec{Kind: "macvlan", Parent: "nic", VLAN: 8, MAC: chosen}, ""},
		{"macvlan", attach.Spec{Kind: "macvlan", Parent: "nic", MAC: chosen}, attach.Spec{Kind: "macvlan", Parent: "nic", MAC: chosen}, "eth0 of c0"},
		{"by chance, macvlan", attach.Spec{Kind: "macvlan", Parent: "nic"}, attach.Spec{Kind: "macvlan", Parent: "nic"}, "eth0 of c0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.first.VLAN != 0 {
				need(t, "vlan")
			}
			w := newWorld(t)
			cfg := w.crowd(2)
			try := w.attacher(cfg)
			must(t, try("c0", c.first))
			if c.first.MAC == (link.MAC{}) && c.by != "" {
				must(t, c.second.MAC.UnmarshalText([]byte(w.list()[0].Address)))
			}
			err := try("c1", c.second)
			var taken *attach.TakenError
			switch {
			case c.by == "":
				must(t, err)
			case !errors.As(err, &taken) || taken.Resource != attach.EthernetAddress || taken.Owner != c.by || taken.Holder == nil:
				t.Errorf("got %v, want that %s has it", err, c.by)
			}
			if c.by != "" {
				_, _, err := attach.Detach(t.Context(), cfg, "c0", "eth0")
				must(t, err)
				must(t, try("c1", c.second))
			}
		})
	}
}

// TestPassthru has a parent that one macvlan has, or is to have, for itself alone.
func TestPassthru(t *testing.T) {
	need(t, "macvlan")
	shared, alone := attach.Spec{Kind: "macvlan", Parent: "nic"}, attach.Spec{Kind: "macvlan", Parent: "nic", Mode: "passthru"}
	for _, c := range []struct {
		name          string
		first, second attach.Spec
		host          bool // the first is the host's own
		param, reason string
	}{
		{"shared, then alone", shared, alone, false, "mode", "needs nic for itself, but eth0 of c0 is on it"},
		{"alone, then shared", alone, shared, false, "PARENT", "is used exclusively by eth0 of c0"},
		{"alone twice", alone, alone, false, "mode", "needs nic for itself, but eth0 of c0"},
		{"the host's, then alone", shared, alone, true, "mode", "needs nic for itself, but the host's mine"},
		{"alone the host's, then shared", alone, shared, true, "PARENT", "is used exclusively by the host's mine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			cfg := w.crowd(2)
			try := w.attacher(cfg)
			if c.host {
				mode := map[string]link.MacvlanMode{"": link.MacvlanBridge, "passthru": link.MacvlanPassthru}[c.first.Mode]
				_, err := link.Create(w.host, link.MacvlanSpec{Attrs: link.Attrs{Name: "mine"}, Parent: "nic", Mode: mode}, link.Target{})
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

// TestEthernetAddressKnown has a bridge that knows an address from somebody who is none of
// ours: its own is refused, another's is said.
func TestEthernetAddressKnown(t *testing.T) {
	w := newWorld(t)
	h := handle(t, w.host)
	br0, err := link.Create(w.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}}, link.Target{})
	must(t, err)
	must(t, br0.Up())
	nic, err := h.LinkByName("nic")
	must(t, err)
	must(t, h.LinkSetMasterByIndex(nic, br0.Index()))
	heard := link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	must(t, h.NeighAdd(&netlink.Neigh{LinkIndex: nic.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, State: netlink.NUD_REACHABLE, HardwareAddr: heard[:]}))
	got, err := w.preview(attach.Spec{Kind: "bridge", Parent: "br0", MAC: heard})
	must(t, err)
	if len(got.Notes) != 1 || !strings.HasPrefix(got.Notes[0], "bridge br0 has recently seen the Ethernet address 02:00:5e:10:00:01 behind its port nic") {
		t.Errorf("notes %q", got.Notes)
	}
	var taken *attach.TakenError
	_, err = w.preview(attach.Spec{Kind: "bridge", Parent: "br0", MAC: link.MAC(nic.Attrs().HardwareAddr)})
	if !errors.As(err, &taken) || taken.Owner != "the host's nic" {
		t.Errorf("that of a port: %v", err)
	}
	must(t, h.LinkSetNoMaster(nic))
	_, err = w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", MAC: link.MAC(nic.Attrs().HardwareAddr)}, nil)
	if !errors.As(err, &taken) || taken.Owner != "the host's nic" {
		t.Errorf("that of a parent: %v", err)
	}
}

// TestWhoWasSilent has it told why it took so long to find the container.
func TestWhoWasSilent(t *testing.T) {
	w := newWorld(t)
	w.container.SilentEngines = "docker"
	const said = "docker did not answer; with the name test:web no other engine is asked"
	got, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
	must(t, err)
	notes, err := w.detachNotes()
	must(t, err)
	if !slices.Equal(got.Notes, []string{said}) || !slices.Equal(notes, []string{said}) {
		t.Errorf("notes %q, detached: %q", got.Notes, notes)
	}
}

// TestPlanSaysWhatIsLacking has a plan tell that the kernel can't make a link of a kind.
func TestPlanSaysWhatIsLacking(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []string{"dummy", "wireguard", "netkit"} {
		got, err := w.preview(attach.Spec{Kind: kind})
		must(t, err)
		lack := link.Probe(kind)
		if said := len(got.Notes) > 0 && strings.HasPrefix(got.Notes[0], "not possible on this machine: "); said != (lack != nil) {
			t.Errorf("%s: notes %q, probe: %v", kind, got.Notes, lack)
		}
	}
}

// TestSecondLinkToANetwork has it said that the container is on the network already,
// by a link and not by a router.
func TestSecondLinkToANetwork(t *testing.T) {
	w := newWorld(t)
	_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Name: "one", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64"), Gateways: addrs("192.0.2.1")}, nil)
	must(t, err)
	for _, c := range []struct {
		ip   string
		said bool
	}{
		{"192.0.2.11/24", true}, {"192.0.2.200/28", true}, {"2001:db8::11/64", true},
		{"203.0.113.11/24", false}, {"2001:db8:1::11/64", false},
	} {
		got, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Name: "two", Addresses: prefixes(c.ip)}, nil)
		must(t, err)
		if said := len(got.Notes) == 1 && strings.Contains(got.Notes[0], "already reaches"); said != c.said {
			t.Errorf("%s: notes %q, want one that it is there already: %v", c.ip, got.Notes, c.said)
		}
		must(t, w.detach("two", nil))
	}
}

// attacher attaches what is wanted to a container. A plan must tell what is in the way.
func (w *world) attacher(cfg attach.Config) func(who string, want attach.Spec) error {
	return func(who string, want attach.Spec) error {
		return w.do(func() error {
			_, foretold := attach.Preview(w.t.Context(), cfg, who, want)
			_, err := attach.Attach(w.t.Context(), cfg, who, want)
			if fmt.Sprint(foretold) != fmt.Sprint(err) {
				w.t.Errorf("planned: %v; done: %v", foretold, err)
			}
			return err
		})
	}
}

// TestAddressTaken has two want what one can have, until the first is gone.
func TestAddressTaken(t *testing.T) {
	ip := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.1/24")}
	gateway := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true}
	for _, c := range []struct {
		name   string
		second attach.Spec
	}{{"address", ip}, {"address of the gateway", gateway}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			cfg := w.crowd(2)
			try := w.attacher(cfg)
			must(t, try("c0", ip))
			var taken *attach.TakenError
			if err := try("c1", c.second); !errors.As(err, &taken) || taken.Owner != "eth0 of c0" || taken.Holder == nil {
				t.Errorf("got %v, want that c0 has it", err)
			}
			must(t, w.do(func() error {
				_, ns, err := cfg.Find(t.Context(), "c0")
				must(t, err)
				defer ns.Close()
				return find(t, ns, "eth0").Close()
			}))
			must(t, try("c1", c.second))
		})
	}
}

// TestRouteTaken has a container asked for a route that it has.
func TestRouteTaken(t *testing.T) {
	w := newWorld(t)
	try := w.attacher(w.config())
	for name, c := range map[string]struct{ ip, route string }{
		"IPv4": {"192.0.2.10/24", "198.51.100.0/24"},
		"IPv6": {"2001:db8::10/64", "2001:db8:1::/64"},
	} {
		want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes(c.ip), Routes: []attach.Route{{To: netip.MustParsePrefix(c.route)}}}
		must(t, try("web", want))
		want.Addresses = nil
		var taken *attach.TakenError
		if err := try("web", want); !errors.As(err, &taken) || taken.Resource != "route" || taken.Name != c.route {
			t.Errorf("%s: got %v, want that the route is taken", name, err)
		}
		want.Routes[0].To = netip.PrefixFrom(want.Routes[0].To.Addr(), want.Routes[0].To.Bits()+1)
		must(t, try("web", want))
	}
}
