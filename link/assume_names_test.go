package link_test

import (
	"errors"
	"testing"

	"cleat/link"
)

// Kernels before 6.15 refuse to create a link in another namespace under a name that is
// in use in the namespace of the request; Create works around it. All kernels refuse a
// name that is in use at the target.
func TestAssumeNamesAreLookedUpBothWays(t *testing.T) {
	requireKind(t, "vxlan")
	here, there := newNS(t, "here"), newNS(t, "there")
	cable(t, here, "eth0", here, "wire")
	spec := link.VXLANSpec{Attrs: attrs("eth0"), VNI: 7, Parent: "wire"}
	create(t, here, spec, there)
	spec.VNI = 8
	if _, err := link.Create(here, spec, link.Target{NS: there}); !errors.Is(err, link.ErrExists) {
		t.Errorf("create under a name in use at the target: %v, want ErrExists", err)
	}
}
