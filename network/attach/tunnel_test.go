package attach_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/attach"
)

// TestTunnelMTU checks the MTU of tunnels. By default it is what fits into the packets of
// the underlying link; a larger one is refused, or results in a note.
func TestTunnelMTU(t *testing.T) {
	needKinds(t, "vxlan")
	tb := newTestbed(t)
	must(t, find(t, tb.host, "nic").AddAddr(netip.MustParsePrefix("2001:db8:2::1/64")))
	waitRoute(t, tb.host, "2001:db8:2::1/128")
	for _, tt := range []struct {
		name   string
		parent string
		other  string // parameter=address
		mtu    int
		is     int // 0 if refused
		noted  bool
	}{
		{"by the route to the remote", "", "remote=198.51.100.2", 0, 1450, false},
		{"by the IPv6 route to the remote", "", "remote=2001:db8:2::2", 0, 1430, false},
		{"less", "", "remote=198.51.100.2", 1400, 1400, false},
		{"more", "", "remote=198.51.100.2", 1451, 1451, true},
		{"by the parent", "nic", "group=239.1.1.1", 0, 1450, false},
		{"the most for the parent", "nic", "group=239.1.1.1", 1450, 1450, false},
		{"too much for the parent", "nic", "group=239.1.1.1", 1451, 0, false},
		{"too much for the parent and IPv6", "nic", "group=ff02::7", 1431, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, address, _ := strings.Cut(tt.other, "=")
			got, err := tb.attach(attach.Spec{Kind: "vxlan", Parent: tt.parent, MTU: tt.mtu, Params: map[string]string{"vni": "7", name: address}}, nil)
			var bad *attach.SpecError
			if tt.is == 0 {
				if !errors.As(err, &bad) || bad.Param != "mtu" {
					t.Errorf("got %v", err)
				}
				return
			}
			must(t, err)
			if all := tb.list(); all[0].MTU != tt.is {
				t.Errorf("MTU %d, want %d", all[0].MTU, tt.is)
			}
			if noted := len(got.Notes) > 0; noted != tt.noted {
				t.Errorf("notes %q", got.Notes)
			}
			must(t, tb.detach("eth0", nil))
		})
	}
}

// TestSourceModeWithoutSources checks the note that a macvlan in source mode accepts no
// packets without sources.
func TestSourceModeWithoutSources(t *testing.T) {
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "macvlan", Parent: "nic", Mode: "source"}
	for _, heard := range []string{"", "02:00:5e:10:00:01"} {
		if heard != "" {
			spec.Params = map[string]string{"sources": heard}
		}
		got, err := tb.preview(spec)
		must(t, err)
		if noted := len(got.Notes) > 0; noted != (heard == "") {
			t.Errorf("sources %q: notes %q", heard, got.Notes)
		}
	}
}
