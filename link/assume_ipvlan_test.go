package link_test

import (
	"testing"

	"cleat/link"
)

// A second ipvlan device changes the mode and the flag of the first, because the parent
// holds them (ipvlan_link_new, drivers/net/ipvlan/ipvlan_main.c).
func TestAssumeIPvlanModeIsTheParents(t *testing.T) {
	requireKind(t, "ipvlan")
	ns := newNS(t, "a")
	cable(t, ns, "parent", ns, "wire")
	first := create(t, ns, link.IPvlanSpec{Attrs: attrs("i1"), Parent: "parent", Mode: link.IPvlanL2, Flag: link.IPvlanPrivate}, nil)
	create(t, ns, link.IPvlanSpec{Attrs: attrs("i2"), Parent: "parent", Mode: link.IPvlanL3, Flag: link.IPvlanBridge}, nil)
	got, err := first.Spec()
	must(t, err)
	if s := got.(link.IPvlanSpec); s.Mode != link.IPvlanL3 || s.Flag != link.IPvlanBridge {
		t.Errorf("the first device has mode %s, flag %s, want those of the second: l3, bridge", s.Mode, s.Flag)
	}
}
