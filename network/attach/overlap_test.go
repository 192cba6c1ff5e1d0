package attach_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

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
