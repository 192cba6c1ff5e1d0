package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"cleat/overlay"
)

// TestRemotesInOrder checks that the ways to other hosts are the same each time: otherwise each look at the kernel
// would write a network's file and its rules again.
func TestRemotesInOrder(t *testing.T) {
	w := ways{uplink: "eth0", accepts: map[string]way{}}
	n := overlay.NetworkState{Remote: map[string][]netip.Prefix{}}
	for i := range 8 {
		host := fmt.Sprintf("h%d", i)
		w.accepts[host] = way{choice: overlay.Auto, onLink: true, keys: true, addr: netip.MustParseAddr("192.0.2.1"), tunnel: fmt.Sprintf("%s%d", tunnelDevices, i)}
		n.Remote[host] = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(i), 0}), 24)}
	}
	lent := netip.MustParsePrefix("10.64.0.0/32") // the first address of a block, which another host has
	n.Remote["h7"] = append(n.Remote["h7"], lent)
	first, all := w.remotes(n), blocksOfOthers(n)
	if len(first) != 12 {
		t.Errorf("%d ways, want 2 by WireGuard, VXLAN, plain ones and 8 tunnels", len(first))
	}
	for range 20 {
		if now := w.remotes(n); !reflect.DeepEqual(now, first) {
			t.Fatalf("now %+v\nthen %+v", now, first)
		}
		if now := blocksOfOthers(n); !reflect.DeepEqual(now, all) {
			t.Fatalf("now %s\nthen %s", now, all)
		}
	}
}
