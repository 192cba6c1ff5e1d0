package endpoint_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cleat/tunnel"
)

// TestFamilies sends TCP and UDP of both families, in both directions, over paths of
// either family and of both.
func TestFamilies(t *testing.T) {
	for _, tt := range []struct {
		outside []int
		key     bool
		more    string
	}{
		{[]int{4, 4}, false, ""},
		{[]int{6, 6}, false, ""},
		{[]int{4, 6}, false, ""},
		{[]int{4, 4}, true, ""},
		{[]int{6, 6}, true, ""},
		{[]int{4, 6}, true, ""},
		{[]int{4, 6}, false, "form: compat"},
		{[]int{6, 4}, false, "form: compat\ncompat: {key: 7}"},
	} {
		t.Run(fmt.Sprintf("outside %v, key %v, %q", tt.outside, tt.key, tt.more), func(t *testing.T) {
			b := newTestbed(t, topology{outside: tt.outside, key: tt.key, more: tt.more})
			for from := range b.ends {
				for _, family := range []int{4, 6} {
					b.checkTraffic(from, family)
				}
			}
			for _, e := range b.ends {
				if log, err := os.ReadFile(e.file + ".log"); err != nil || !strings.Contains(string(log), string(tunnel.Established)) {
					t.Errorf("%s reported %q, %v; want that the other end has answered", e.name, log, err)
				}
			}
		})
	}
}

// checkTraffic sends TCP and datagrams of all sizes from an end to the other.
func (b *testbed) checkTraffic(from, family int) {
	b.t.Helper()
	src, dst := b.ends[from].node, b.ends[1-from].node
	to := innerAddr(1-from, family)
	transferTCP(b.t, src, dst, to, 4<<20)
	d := openDatagrams(b.t, src, dst, innerAddr(from, family), to)
	for _, n := range []int{0, 1, 1200, 1453, 9000, 65507} {
		d.sendUntilArrived(b.t, n)
	}
}
