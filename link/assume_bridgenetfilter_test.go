package link_test

import (
	"testing"

	"cleat/link"
)

// Each namespace has its own bridge netfilter sysctls.
func TestAssumeBridgeNetfilterIsPerNamespace(t *testing.T) {
	requireKind(t, "bridge-netfilter")
	a, b := newNS(t, "a"), newNS(t, "b")
	must(t, link.SetBridgeNetfilter(a, false))
	must(t, link.SetBridgeNetfilter(b, true))
	checkBridgeNetfilter(t, a, false)
	checkBridgeNetfilter(t, b, true)
}
