package traffic

import (
	"math"
	"time"
)

// trackWindow is how far back, in sequence numbers, a datagram is recognised as
// reordered or duplicated. At a million datagrams a second it is 65 ms.
const trackWindow = 1 << 16

// tracker tells new, late and repeated sequence numbers apart in bounded
// memory, and keeps the jitter. The zero tracker is ready.
type tracker struct {
	seen       [trackWindow / 64]uint64
	next       uint64 // one beyond the highest so far
	unique     uint64
	reordered  uint64
	duplicated uint64

	transit int64 // of the previous datagram: arrival less sending, of two clocks
	jitter  float64
	primed  bool
}

// add takes the next datagram as it arrived. It tells whether the datagram is
// new; one that is older than the window counts as reordered and new, because
// nothing can tell.
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

// forget clears the places of the sequence numbers from next to seq, which
// older ones have used.
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

// addTransit is RFC 3550 section 6.4.1: J += (|D| - J) / 16. The two clocks may
// differ by any constant.
func (t *tracker) addTransit(transit int64) {
	if t.primed {
		d := math.Abs(float64(transit - t.transit))
		t.jitter += (d - t.jitter) / 16
	}
	t.transit, t.primed = transit, true
}

func (t *tracker) jitterTime() time.Duration { return time.Duration(t.jitter) }
