package link_test

import (
	"errors"
	"testing"

	"cleat/link"
)

// Before 6.15 a name in use where the request is sent keeps a link from being
// made under that name elsewhere; Create goes a detour. A name in use where the
// link is to go is refused by all.
func TestAssumeNamesAreLookedUpBothWays(t *testing.T) {
	requireKind(t, "vxlan")
	here, there := newNS(t, "here"), newNS(t, "there")
	cable(t, here, "eth0", here, "wire")
	spec := link.VXLANSpec{Attrs: attrs("eth0"), VNI: 7, Parent: "wire"}
	create(t, here, spec, there)
	spec.VNI = 8
	if _, err := link.Create(here, spec, link.Target{NS: there}); !errors.Is(err, link.ErrExists) {
		t.Errorf("a name in use at the target: %v, want ErrExists", err)
	}
}
