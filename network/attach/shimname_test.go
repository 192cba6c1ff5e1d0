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

// TestShimKey checks that the first attachment with a new name for a shim does not replace the
// one that an earlier cleat has made on the parent for others: "shim-enp0s20f0u", with the key
// "shim enp0s20f0u1u2". For short names both are as they were.
func TestShimKey(t *testing.T) {
	for parent, want := range map[string]string{"eth0": "shim eth0", "enp0s20f0u1u2": "shim enp0s~gj08"} {
		if got := (UseShim{Parent: parent, Name: shimOf(parent)}).key(); got != want {
			t.Errorf("on %s: key %q, want %q", parent, got, want)
		}
	}
}
