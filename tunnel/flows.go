package tunnel

import "time"

// flowTable tells bulk flows from sparse ones. Sparse flows, such as pings and terminals, take
// the shortest path, and wait in a lane of their own (queue). Bulk flows need the paths that
// carry much, and their senders must see the round trips of these from the first packet on:
// slow start ends when round trips grow (HyStart, net/ipv4/tcp_cubic.c), and BBR's window is in
// proportion to the shortest round trip. So a TCP connection counts as bulk from its SYN on,
// until it has sent little.
type flowTable [1 << 12]flowLoad

type flowLoad struct {
	since   time.Duration // when counting began
	packets int
	paths   uint64 // that the flow fills first, one bit per ID; 0: it is sparse
}

const (
	// bulkPackets within a window make a flow bulk, and fewer make it sparse.
	bulkPackets = 500
	// flowWindow is how long packets are counted; or flowWindowRTTs round trips: with a first
	// window of 10 packets that doubles, 630 are sent in six.
	flowWindow     = 5 * time.Second
	flowWindowRTTs = 8
)

// add counts packets of a flow. It returns the paths that the flow fills first, or 0 if the
// flow is sparse. opens reports whether the packets open a connection, and anchored are the
// paths that bulk flows which begin now fill first. A flow keeps its paths: with longer ones,
// it would need another window.
func (t *flowTable) add(now time.Duration, flow uint32, packets int, opens bool, rtt time.Duration, anchored uint64) uint64 {
	f := &t[flow%uint32(len(t))]
	if opens {
		*f = flowLoad{since: now, paths: anchored}
	}
	if now-f.since > max(flowWindow, flowWindowRTTs*rtt) {
		if f.packets < bulkPackets {
			f.paths = 0
		}
		f.since, f.packets = now, 0
	}
	if f.packets += packets; f.packets >= bulkPackets && f.paths == 0 {
		f.paths = anchored
	}
	return f.paths
}
