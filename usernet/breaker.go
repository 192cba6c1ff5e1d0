package usernet

import (
	"sync/atomic"
	"time"
)

// breaker is a circuit breaker: it reports whether to try something that has failed
// lately. It is safe for concurrent use.
type breaker struct {
	start    time.Time
	failures atomic.Int32 // in a row
	retryAt  atomic.Int64 // nothing is tried before, in nanoseconds since start; 0: try
	pause    atomic.Int64 // length of the last pause, nanoseconds
}

// After maxFailures in a row nothing is tried for minPause. Each further failure doubles
// the pause.
const (
	maxFailures = 3
	minPause    = 30 * time.Second
	maxPause    = 30 * time.Minute
)

func (a *breaker) allowed() bool {
	until := a.retryAt.Load()
	return until == 0 || int64(time.Since(a.start)) >= until
}

func (a *breaker) success() {
	if a.failures.Load() != 0 {
		a.failures.Store(0)
		a.retryAt.Store(0)
		a.pause.Store(0)
	}
}

func (a *breaker) failure() {
	if a.failures.Add(1) < maxFailures {
		return
	}
	pause := min(max(2*a.pause.Load(), int64(minPause)), int64(maxPause))
	a.pause.Store(pause)
	a.retryAt.Store(int64(time.Since(a.start)) + pause)
}
