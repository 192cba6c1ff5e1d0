package link_test

import (
	"testing"

	"cleat/link"
)

// A macvlan device in mode private is isolated only because it receives no broadcasts.
// A unicast frame to a known address passes a hairpin switch like a frame of a device
// in mode vepa (macvlan_handle_frame, drivers/net/macvlan.c).
func TestAssumeMacvlanPrivateIsolatesByBroadcast(t *testing.T) {
	requireKind(t, "macvlan")
	o := newLAN(t)
	a, b := o.macvlans(t, link.MacvlanPrivate)
	addNeighbors(t, a, b)
	checkIsolated(t, a, b, o.outside)
	o.hairpin(t, true)
	checkReachable(t, a, b)
}

// addNeighbors adds to each of two endpoints a neighbour entry for the other.
func addNeighbors(t *testing.T, a, b *endpoint) {
	t.Helper()
	must(t, a.link.AddNeighbor(b.addr, mac(t, b.link)))
	must(t, b.link.AddNeighbor(a.addr, mac(t, a.link)))
}
