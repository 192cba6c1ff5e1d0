package link_test

import (
	"errors"
	"testing"

	"cleat/link"
)

// A kernel without CONFIG_BRIDGE_VLAN_FILTERING does not make a plain bridge when
// asked for a filtering one.
func TestAssumeVLANFilteringIsRefusedOrThere(t *testing.T) {
	requireKind(t, "bridge")
	ns := newNS(t, "a")
	l, err := link.Create(ns, link.BridgeSpec{Attrs: attrs("br0"), VLANFiltering: true}, link.Target{})
	var lack *link.Lack
	switch {
	case errors.As(err, &lack):
		if _, err := link.Find(ns, "br0"); err == nil {
			t.Error("the bridge that does not filter was left behind")
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
