package spec

import (
	"net/netip"
	"testing"
)

// TestRouted looks for addresses that the tunnel's own packets can't be sent to.
func TestRouted(t *testing.T) {
	tun := &Tunnel{
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/30")},
		Routes:    []netip.Prefix{netip.MustParsePrefix("10.30.0.0/16"), netip.MustParsePrefix("::/0")},
	}
	for _, tt := range []struct{ device, outer, want string }{
		{"", "10.9.0.2", "10.9.0.0/30"},
		{"eth0", "10.30.7.1", "10.30.0.0/16"},
		{"", "2001:db8::1", "::/0"},
		{"eth0", "2001:db8::1", ""},
		{"", "203.0.113.7", ""},
	} {
		got := tun.Routed(tt.device, netip.MustParseAddr(tt.outer))
		if got.IsValid() != (tt.want != "") || got.IsValid() && got.String() != tt.want {
			t.Errorf("%s by %q is routed by %s, want %s", tt.outer, tt.device, got, tt.want)
		}
	}
}
