package attach

import (
	"strings"
	"testing"
)

// TestShimOf checks that shims on parents with long names have names of their own.
func TestShimOf(t *testing.T) {
	if got := shimOf("eth0"); got != "shim-eth0" {
		t.Errorf("on eth0: %q", got)
	}
	one, two := shimOf("enp0s20f0u1u2"), shimOf("enp0s20f0u1u3")
	if one == two || len(one) != 15 || len(two) != 15 || !strings.HasPrefix(one, "shim-enp0s") {
		t.Errorf("on two USB network cards: %q and %q, want two names of 15 bytes", one, two)
	}
}
