package link_test

import (
	"testing"

	"cleat/link"
	"cleat/netns"
)

// Each namespace has its own bridge netfilter sysctls.
func TestAssumeBridgeNetfilterIsPerNamespace(t *testing.T) {
	requireKind(t, "bridge-netfilter")
	a, b := newNS(t, "a"), newNS(t, "b")
	must(t, link.SetBridgeNetfilter(a, link.BridgeNetfilter{}))
	must(t, link.SetBridgeNetfilter(b, link.BridgeNetfilter{IPTables: true, IP6Tables: true, ARPTables: true}))
	for ns, want := range map[*netns.NS]bool{a: false, b: true} {
		got, err := link.ReadBridgeNetfilter(ns)
		must(t, err)
		if got.IPTables != want || got.IP6Tables != want || got.ARPTables != want {
			t.Errorf("bridge netfilter of %s is %+v, want all %v", ns, got, want)
		}
	}
}
