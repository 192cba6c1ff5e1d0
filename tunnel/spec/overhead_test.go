package spec

import (
	"net/netip"
	"testing"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// TestMinOverhead compares the overhead assumed for the native form with the real one.
func TestMinOverhead(t *testing.T) {
	over4 := Path{Remote: netip.MustParseAddrPort("198.51.100.2:4754")}
	over6 := Path{Remote: netip.MustParseAddrPort("[2001:db8::1]:4754")}
	for _, tt := range []struct {
		name string
		t    Tunnel
		p    Path
		want int
	}{
		{"native", Tunnel{Form: Native}, over4, 20 + 8 + wire.HeaderBytes},
		{"native, encrypted, over IPv6", Tunnel{Form: Native, Key: &Key{}}, over6, 40 + 8 + wire.HeaderBytes + secure.Overhead},
		{"RFC 8086, section 3: 36 with a sequence number", Tunnel{Form: Compat, Compat: CompatForm{Sequence: true}}, over4, 36},
		{"lower bound", Tunnel{Form: Auto}, over4, 32},
	} {
		if got := tt.t.minOverhead(tt.p); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}
