package usernet

import (
	"sync/atomic"
	"time"
)

// attempts tell whether to try something that has failed lately. They are safe for
// concurrent use.
type attempts struct {
	began    time.Time
	failures atomic.Int32 // in a row
	closed   atomic.Int64 // until then, nanoseconds since began; 0: try
	pause    atomic.Int64 // how long nobody tries next time, nanoseconds
}

// How many must fail before there is a pause, and how long that is, doubled each
// time.
const (
	mostFailures = 3
	firstPause   = 30 * time.Second
	mostPause    = 30 * time.Minute
)

// open tells whether to try.
func (a *attempts) open() bool {
	until := a.closed.Load()
	return until == 0 || int64(time.Since(a.began)) >= until
}

// passed notes that one succeeded.
func (a *attempts) passed() {
	if a.failures.Load() != 0 {
		a.failures.Store(0)
		a.closed.Store(0)
		a.pause.Store(0)
	}
}

// failed notes that one did not.
func (a *attempts) failed() {
	if a.failures.Add(1) < mostFailures {
		return
	}
	pause := min(max(2*a.pause.Load(), int64(firstPause)), int64(mostPause))
	a.pause.Store(pause)
	a.closed.Store(int64(time.Since(a.began)) + pause)
}
