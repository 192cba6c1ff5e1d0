package attach_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
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
		want := attach.Want{Kind: "bridge", Parent: "br0", IPs: []netip.Prefix{netip.MustParsePrefix(c.ip)}, Masquerade: true}
		_, err := w.attach(want, nil)
		var taken *attach.TakenError
		switch {
		case c.what == "":
			must(t, err)
		case !errors.As(err, &taken) || taken.What != c.what || taken.By != c.by:
			t.Errorf("%s: %v, want that the %s is taken by %s", c.ip, err, c.what, c.by)
		}
	}
}

// TestGatewayIsNobodysElse has the host refused the address of a gateway that a container
// on the bridge has, until that is gone.
func TestGatewayIsNobodysElse(t *testing.T) {
	w := newWorld(t)
	w.repair()
	_, err := w.attach(attach.Want{Kind: "bridge", Parent: "br0", IPs: prefixes("192.0.2.1/24")}, nil)
	must(t, err)
	before := w.snapshot()
	want := attach.Want{Kind: "bridge", Parent: "br0", IPs: prefixes("192.0.2.10/24"), Masquerade: true}
	var taken *attach.TakenError
	if _, err := w.attach(want, nil); !errors.As(err, &taken) || taken.Name != "192.0.2.1" || taken.By != "test.web.eth0" {
		t.Errorf("a container has it: %v", err)
	}
	w.unchanged(before, "refused")
	must(t, w.detach("eth0", nil))
	_, err = w.attach(want, nil)
	must(t, err)

	want.IPs = prefixes("203.0.113.1/24")
	var bad *attach.WantError
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
	for _, want := range []attach.Want{{Kind: "bridge", Parent: "br0"}, {Kind: "macvlan", Parent: "nic"}} {
		l := find(t, w.host, want.Parent)
		for _, down := range []bool{false, true} {
			if down {
				must(t, l.Down())
			}
			got, err := w.preview(want)
			must(t, err)
			if said := slices.Contains(got.Notes, want.Parent+" is down: nothing passes before `ip link set "+want.Parent+" up`"); said != down {
				t.Errorf("%s: notes %q, want one that %s is down: %v", want.Kind, got.Notes, want.Parent, down)
			}
		}
	}
}

// TestEthernetAddressTaken has two macvlan devices of one parent that are to have the
// same address.
func TestEthernetAddressTaken(t *testing.T) {
	w := newWorld(t)
	want := attach.Want{Kind: "macvlan", Parent: "nic", MAC: link.MAC{2, 0, 0x5e, 0x10, 0, 1}}
	_, err := w.attach(want, nil)
	must(t, err)
	other := newNS(t, "other")
	w.container = attach.Container{Engine: "test", Name: "web", Path: other.Path()}
	want.Name = "eth1"
	var taken *attach.TakenError
	if _, err := w.attach(want, nil); !errors.As(err, &taken) || taken.What != "Ethernet address" {
		t.Errorf("got %v", err)
	}
}

// TestPlanSaysWhatIsLacking has a plan tell that the kernel can't make a link of a kind.
func TestPlanSaysWhatIsLacking(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []string{"dummy", "wireguard", "netkit"} {
		got, err := w.preview(attach.Want{Kind: kind})
		must(t, err)
		lack := link.Probe(kind)
		if said := len(got.Notes) > 0 && strings.HasPrefix(got.Notes[0], "this can't be done here: "); said != (lack != nil) {
			t.Errorf("%s: notes %q, probe: %v", kind, got.Notes, lack)
		}
	}
}

// TestSecondLinkToANetwork has it said that the container is on the network already,
// by a link and not by a router.
func TestSecondLinkToANetwork(t *testing.T) {
	w := newWorld(t)
	_, err := w.attach(attach.Want{Kind: "bridge", Parent: "br0", Name: "one", IPs: prefixes("192.0.2.10/24", "2001:db8::10/64"), Gateways: addrs("192.0.2.1")}, nil)
	must(t, err)
	for _, c := range []struct {
		ip   string
		said bool
	}{
		{"192.0.2.11/24", true}, {"192.0.2.200/28", true}, {"2001:db8::11/64", true},
		{"203.0.113.11/24", false}, {"2001:db8:1::11/64", false},
	} {
		got, err := w.attach(attach.Want{Kind: "bridge", Parent: "br0", Name: "two", IPs: prefixes(c.ip)}, nil)
		must(t, err)
		if said := len(got.Notes) == 1 && strings.Contains(got.Notes[0], "by one already"); said != c.said {
			t.Errorf("%s: notes %q, want one that it is there already: %v", c.ip, got.Notes, c.said)
		}
		must(t, w.detach("two", nil))
	}
}
