package traffic

import "math"

// trackWindow is how far back, in sequence numbers, a datagram is recognised as reordered
// or duplicated. At a million datagrams a second it is 65 ms.
const trackWindow = 1 << 16

// tracker distinguishes new, late and repeated sequence numbers in bounded memory, and
// computes jitter. The zero tracker is ready to use.
type tracker struct {
	seen       [trackWindow / 64]uint64
	next       uint64 // one more than the highest so far
	unique     uint64
	reordered  uint64
	duplicated uint64

	transit int64   // of the previous datagram: arrival time less sending time, on two clocks
	jitter  float64 // ns
	primed  bool
}

// add processes the next datagram in order of arrival, and reports whether it is new. A
// datagram older than the window counts as reordered and new, because it can't be known.
func (t *tracker) add(seq uint64, sent, arrived int64) bool {
	t.addTransit(arrived - sent)
	switch {
	case seq >= t.next:
		t.forget(seq)
		t.next = seq + 1
	case t.next-seq > trackWindow:
		t.reordered++
		t.unique++
		return true
	case t.seen[seq%trackWindow/64]&(1<<(seq%64)) != 0:
		t.duplicated++
		return false
	default:
		t.reordered++
	}
	t.seen[seq%trackWindow/64] |= 1 << (seq % 64)
	t.unique++
	return true
}

// forget clears the slots of the sequence numbers from next to seq, which older ones have
// used.
func (t *tracker) forget(seq uint64) {
	gap := seq - t.next
	if gap == 0 {
		t.seen[seq%trackWindow/64] &^= 1 << (seq % 64)
		return
	}
	if gap >= trackWindow {
		clear(t.seen[:])
		return
	}
	for n := t.next; n <= seq; n++ {
		t.seen[n%trackWindow/64] &^= 1 << (n % 64)
	}
}

// addTransit updates the jitter (RFC 3550 section 6.4.1): J += (|D| - J) / 16. The two
// clocks may differ by any constant.
func (t *tracker) addTransit(transit int64) {
	if t.primed {
		d := math.Abs(float64(transit - t.transit))
		t.jitter += (d - t.jitter) / 16
	}
	t.transit, t.primed = transit, true
}
