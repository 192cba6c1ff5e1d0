package usernet

import (
	"sync/atomic"
	"time"
)

// attempts tell whether to try something that has failed lately. They are safe for
// concurrent use.
type breaker struct {
	start    time.Time
	failures atomic.Int32 // in a row
	retryAt  atomic.Int64 // until then, nanoseconds since began; 0: try
	pause    atomic.Int64 // how long nobody tries next time, nanoseconds
}

// How many must fail before there is a pause, and how long that is, doubled each
// time.
const (
	maxFailures = 3
	minPause    = 30 * time.Second
	maxPause    = 30 * time.Minute
)

// open tells whether to try.
func (a *breaker) allowed() bool {
	until := a.retryAt.Load()
	return until == 0 || int64(time.Since(a.start)) >= until
}

// passed notes that one succeeded.
func (a *breaker) success() {
	if a.failures.Load() != 0 {
		a.failures.Store(0)
		a.retryAt.Store(0)
		a.pause.Store(0)
	}
}

// failed notes that one did not.
func (a *breaker) failure() {
	if a.failures.Add(1) < maxFailures {
		return
	}
	pause := min(max(2*a.pause.Load(), int64(minPause)), int64(maxPause))
	a.pause.Store(pause)
	a.retryAt.Store(int64(time.Since(a.start)) + pause)
}
