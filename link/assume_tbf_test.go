package link_test

import (
	"testing"

	"cleat/link"

	"golang.org/x/sys/unix"
)

// TBF splits a GSO packet that is longer than the burst into its segments. It passes a
// shorter one whole (tbf_enqueue, net/sched/sch_tbf.c).
func TestAssumeTBFSplitsAboveItsBurst(t *testing.T) {
	requireKind(t, "tbf")
	for _, tt := range []struct {
		name        string
		burst       int // bytes
		least, most int // bytes; bounds for the longest packet
	}{
		{"burst below", 4_000, 1, 4_000},
		{"burst above", 200_000, 10_000, 65_535},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
			must(t, b.SetOffload("gro", false)) // GRO would merge the segments again
			from, to := newEndpoint(t, a, "192.0.2.1/24"), newEndpoint(t, b, "192.0.2.2/24")
			must(t, link.Shape(a, link.Shaping{RateBitsPerSec: 1e9, BurstBytes: tt.burst}))
			packets := startCapture(t, b)
			must(t, echoTCPStream(from, to, 1_000_000))
			longest := packets.longest(unix.PACKET_HOST)
			if longest < tt.least || longest > tt.most {
				t.Errorf("the longest received packet has %d bytes, want %d…%d", longest, tt.least, tt.most)
			}
		})
	}
}
