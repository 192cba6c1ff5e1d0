package link_test

import (
	"testing"

	"cleat/link"
	"cleat/netns"
)

// Bridge netfilter is a setting of each namespace by itself.
func TestAssumeBridgeNetfilterIsPerNamespace(t *testing.T) {
	requireKind(t, "bridge-netfilter")
	a, b := newNS(t, "a"), newNS(t, "b")
	must(t, link.SetBridgeNetfilter(a, link.BridgeNetfilter{}))
	must(t, link.SetBridgeNetfilter(b, link.BridgeNetfilter{IPTables: true, IP6Tables: true, ARPTables: true}))
	for ns, want := range map[*netns.NS]bool{a: false, b: true} {
		got, err := link.ReadBridgeNetfilter(ns)
		must(t, err)
		if got.IPTables != want || got.IP6Tables != want || got.ARPTables != want {
			t.Errorf("%s has %+v, want all %v", ns, got, want)
		}
	}
}
