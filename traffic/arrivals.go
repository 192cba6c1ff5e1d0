package traffic

import (
	"sync/atomic"
	"time"
)

// arrivals records when bytes arrive, over all streams or flows of a test: the longest
// pause. A nil *arrivals records nothing, which saves a clock read and two atomic writes
// for each read from a socket.
type arrivals struct {
	last atomic.Int64 // time of the latest byte (nanos); 0 before the first
	gap  atomic.Int64 // ns
}

// newArrivals returns nil unless wanted is set.
func newArrivals(wanted bool) *arrivals {
	if !wanted {
		return nil
	}
	return &arrivals{}
}

// mark records an arrival. It is safe for concurrent use.
func (a *arrivals) mark() {
	if a != nil {
		a.markAt(nanos())
	}
}

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

// forget starts anew with the next byte.
func (a *arrivals) forget() {
	if a != nil {
		a.last.Store(0)
		a.gap.Store(0)
	}
}

// begin starts anew now; the time until the next byte counts as a pause.
func (a *arrivals) begin() {
	if a != nil {
		a.last.Store(nanos())
		a.gap.Store(0)
	}
}

// longest returns the longest pause so far, including the current one. It returns 0
// before the first byte, and for a nil *arrivals.
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
