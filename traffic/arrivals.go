package traffic

import (
	"sync/atomic"
	"time"
)

// arrivals is when bytes came, of all streams or flows of a test together: how
// long there were none, and how many came early. A nil *arrivals counts nothing:
// a clock read and two atomic writes for each read from a socket are little, but
// not nothing.
type arrivals struct {
	last atomic.Int64 // of nanos: of the youngest byte; 0: none has come yet
	gap  atomic.Int64 // ns
}

// newArrivals is nil where nobody wants to know.
func newArrivals(wanted bool) *arrivals {
	if !wanted {
		return nil
	}
	return &arrivals{}
}

// mark notes that bytes have come. It is safe for concurrent use.
func (a *arrivals) mark() {
	if a != nil {
		a.markAt(nanos())
	}
}

// markAt is mark at a moment that the caller has read already.
func (a *arrivals) markAt(now int64) {
	if a == nil {
		return
	}
	before := a.last.Swap(now)
	if before == 0 {
		return
	}
	for {
		longest := a.gap.Load()
		if now-before <= longest || a.gap.CompareAndSwap(longest, now-before) {
			return
		}
	}
}

// forget starts anew, with the next byte.
func (a *arrivals) forget() {
	if a != nil {
		a.last.Store(0)
		a.gap.Store(0)
	}
}

// begin starts anew; the time until the next byte counts.
func (a *arrivals) begin() {
	if a != nil {
		a.last.Store(nanos())
		a.gap.Store(0)
	}
}

// longest is the longest time without a byte so far, what has passed since the
// youngest included; 0 for nobody who counts, and before the first.
func (a *arrivals) longest() time.Duration {
	if a == nil {
		return 0
	}
	last := a.last.Load()
	if last == 0 {
		return 0
	}
	return time.Duration(max(a.gap.Load(), nanos()-last))
}
