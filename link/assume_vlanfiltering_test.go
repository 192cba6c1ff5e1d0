package link_test

import (
	"errors"
	"testing"

	"cleat/link"
)

// A kernel without CONFIG_BRIDGE_VLAN_FILTERING must not leave a plain bridge behind
// when a filtering one is requested.
func TestAssumeVLANFilteringIsRefusedOrThere(t *testing.T) {
	requireKind(t, "bridge")
	ns := newNS(t, "a")
	l, err := link.Create(ns, link.BridgeSpec{Attrs: attrs("br0"), VLANFiltering: true}, link.Target{})
	var lack *link.Lack
	switch {
	case errors.As(err, &lack):
		if _, err := link.Find(ns, "br0"); err == nil {
			t.Error("Create left a bridge behind that does not filter")
		}
	case err != nil:
		t.Fatal(err)
	default:
		got, err := l.Spec()
		must(t, err)
		if !got.(link.BridgeSpec).VLANFiltering {
			t.Error("Create returned a bridge that does not filter")
		}
	}
}
