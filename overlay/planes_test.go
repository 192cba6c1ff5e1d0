package overlay_test

import (
	"errors"
	"testing"

	"cleat/overlay"
	"cleat/overlay/registry"
)

func TestBetween(t *testing.T) {
	for _, c := range []struct {
		name, cluster, own, other, want string // want is "" for an error
		encrypted                       bool
	}{
		{name: "nobody has chosen", want: "auto"},
		{name: "the cluster", cluster: "routes", want: "routes"},
		{name: "a host", own: "vxlan", want: "vxlan"},
		{name: "VXLAN prevails over routes", own: "routes", other: "vxlan", want: "vxlan"},
		{name: "routes prevail over auto", own: "routes", other: "auto", want: "routes"},
		{name: "a host that differs from the cluster, and one that does not", cluster: "vxlan", own: "auto", want: "vxlan"},
		{name: "two that differ from the cluster", cluster: "vxlan", own: "auto", other: "auto", want: "auto"},
		{name: "Geneve prevails over VXLAN", own: "geneve", other: "vxlan", want: "geneve"},
		{name: "WireGuard prevails over all", own: "geneve", other: "wireguard", want: "wireguard"},
		{name: "WireGuard for the cluster, and a host that differs", cluster: "wireguard", own: "auto", want: "wireguard"},
		{name: "a cluster that encrypts", encrypted: true, want: "wireguard"},
		{name: "whatever its hosts have chosen", encrypted: true, cluster: "vxlan", own: "routes", other: "pigeons", want: "wireguard"},
		{name: "one that only later versions know", own: "vxlan", other: "pigeons"},
		{name: "also of the cluster", cluster: "pigeons", own: "vxlan"},
		{name: "but not if nobody uses it", cluster: "pigeons", own: "vxlan", other: "auto", want: "vxlan"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, pair := range [][2]string{{c.own, c.other}, {c.other, c.own}} { // both come to the same
				s := overlay.State{Default: c.cluster, Encrypted: c.encrypted, Self: registry.Host{Dataplane: pair[0]}}
				got, err := s.Between(registry.Host{Dataplane: pair[1]})
				if got != c.want || errors.As(err, new(*overlay.UnknownDataplaneError)) != (c.want == "") {
					t.Errorf("%q, %v; want %q", got, err, c.want)
				}
			}
		})
	}
}

func TestCheckEncrypted(t *testing.T) {
	for name, want := range map[string]bool{"": true, "auto": true, "wireguard": true, "routes": false, "vxlan": false, "geneve": false} {
		err := overlay.CheckEncrypted(name)
		if errors.As(err, new(*overlay.ContradictionError)) == want {
			t.Errorf("%q: %v", name, err)
		}
	}
}
