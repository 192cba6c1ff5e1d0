package tunnel_test

import (
	"encoding/binary"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel"
	"cleat/tunnel/tunneltest"
)

// TestMarkedPackets checks that packets that a router marks are counted at the end that sent them,
// for their path, and only if their senders support ECN and they had no mark before.
func TestMarkedPackets(t *testing.T) {
	const limit = 4 * time.Second
	tests := []struct {
		name    string
		ecn     byte // of the inner packets
		path    int  // that carries them; path 1 uses IPv6
		counted bool
	}{
		{"ECT(0)", 2, 0, true},
		{"ECT(1)", 1, 0, true},
		{"ECT(0), IPv6", 2, 1, true},
		{"marked before", 3, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newHarness(t, tunnel.Config{}, 2).withKeys().startBoth()
			other := 1 - tt.path
			w.paths[other].SetBlackhole(true)
			w.wait("the other path to be dead", limit, func() bool {
				w.send(0, 5, nil)
				return !w.ends[0].tunnel.Status().Paths[other].Live
			})
			if err := w.paths[tt.path].SetMarking(tunneltest.Side(1), true); err != nil {
				t.Fatal(err)
			}
			marked := func(end, path int) uint64 { return w.ends[end].tunnel.Status().Paths[path].MarkedPackets }
			const packets = 100
			var sent []uint64
			for range packets {
				b := datagram(w.next, 200)
				b[1], b[10], b[11] = tt.ecn, 0, 0
				binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:packet.IPv4Bytes]))
				if err := w.ends[0].dev.Send(packet.VNetHdr{}, b); err != nil {
					t.Fatal(err)
				}
				sent = append(sent, w.next)
				w.next++
			}
			w.waitArrived(1, sent)
			if tt.counted {
				w.wait("all packets to be counted as marked", limit, func() bool { return marked(0, tt.path) >= packets })
			} else {
				w.wait("reports", limit, func() bool { return w.ends[0].tunnel.Status().Paths[tt.path].DeliveredPackets >= packets })
				if got := marked(0, tt.path); got > 0 {
					t.Errorf("%d packets are counted as marked", got)
				}
			}
			if got := marked(0, other) + marked(1, 0) + marked(1, 1); got > 0 {
				t.Errorf("%d packets are counted that nobody marked", got)
			}
		})
	}
}
