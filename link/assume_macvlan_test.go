package link_test

import (
	"testing"

	"cleat/link"
)

// A macvlan device in mode private is isolated by not hearing broadcasts: a
// unicast frame that knows the neighbour's address passes a hairpin switch like
// that of a device in mode vepa (macvlan_handle_frame, drivers/net/macvlan.c).
func TestAssumeMacvlanPrivateIsolatesByBroadcast(t *testing.T) {
	requireKind(t, "macvlan")
	o := newLAN(t)
	a, b := o.macvlans(t, link.MacvlanPrivate)
	addNeighbors(t, a, b)
	checkIsolated(t, a, b, o.outside)
	o.hairpin(t, true)
	checkReachable(t, a, b)
}

// introduce tells two ends each other's Ethernet address.
func addNeighbors(t *testing.T, a, b *endpoint) {
	t.Helper()
	must(t, a.link.AddNeighbor(b.addr, mac(t, b.link)))
	must(t, b.link.AddNeighbor(a.addr, mac(t, a.link)))
}
