package attach_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/attach"
)

// TestTunnelMTU has links in packets of the host's carry what fits into those, and no more
// unless it is wanted, and said.
func TestTunnelMTU(t *testing.T) {
	need(t, "vxlan")
	w := newWorld(t)
	must(t, find(t, w.host, "nic").AddAddr(netip.MustParsePrefix("2001:db8:2::1/64")))
	eventuallyRouted(t, w.host, "2001:db8:2::1/128")
	for _, tt := range []struct {
		name   string
		parent string
		other  string // parameter and address
		mtu    int
		is     int // 0: refused
		noted  bool
	}{
		{"by the way to the other end", "", "remote=198.51.100.2", 0, 1450, false},
		{"by that of IPv6", "", "remote=2001:db8:2::2", 0, 1430, false},
		{"less", "", "remote=198.51.100.2", 1400, 1400, false},
		{"more", "", "remote=198.51.100.2", 1451, 1451, true},
		{"by the parent", "nic", "group=239.1.1.1", 0, 1450, false},
		{"as much as the parent has", "nic", "group=239.1.1.1", 1450, 1450, false},
		{"more than the parent has", "nic", "group=239.1.1.1", 1451, 0, false},
		{"more than the parent has for IPv6", "nic", "group=ff02::7", 1431, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, address, _ := strings.Cut(tt.other, "=")
			got, err := w.attach(attach.Spec{Kind: "vxlan", Parent: tt.parent, MTU: tt.mtu, Params: map[string]string{"vni": "7", name: address}}, nil)
			var bad *attach.SpecError
			if tt.is == 0 {
				if !errors.As(err, &bad) || bad.Param != "mtu" {
					t.Errorf("got %v", err)
				}
				return
			}
			must(t, err)
			if all := w.list(); all[0].MTU != tt.is {
				t.Errorf("its MTU is %d, want %d", all[0].MTU, tt.is)
			}
			if noted := len(got.Notes) > 0; noted != tt.noted {
				t.Errorf("notes %q", got.Notes)
			}
			must(t, w.detach("eth0", nil))
		})
	}
}

// TestSourceHearsNobody has it said that a macvlan in mode source lets nobody in as it is.
func TestSourceHearsNobody(t *testing.T) {
	w := newWorld(t)
	want := attach.Spec{Kind: "macvlan", Parent: "nic", Mode: "source"}
	for _, heard := range []string{"", "02:00:5e:10:00:01"} {
		if heard != "" {
			want.Params = map[string]string{"sources": heard}
		}
		got, err := w.preview(want)
		must(t, err)
		if noted := len(got.Notes) > 0; noted != (heard == "") {
			t.Errorf("sources %q: notes %q", heard, got.Notes)
		}
	}
}
