package traffic

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// clockBase keeps the values of nanos small.
var clockBase = time.Now()

// nanos returns the monotonic time in nanoseconds.
func nanos() int64 { return int64(time.Since(clockBase)) }

// onOwnThread runs f on a thread whose sleeps end on time, and waits for it. The default
// timer slack is 50 µs.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the timer slack ends with the thread
		unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		f()
	}()
	<-done
}

const (
	// spinBefore is how long before the intended time a waiting thread stops sleeping:
	// wake-ups of virtual machines are about that late.
	spinBefore = 30 * time.Microsecond
	// sleepSlice limits one sleep, so that a thread notices a stop.
	sleepSlice = 50 * time.Millisecond
)

// waitUntil returns at time at (nanos), or once stop is set, and returns the current
// time. It spins for the last part of the wait, of length spin.
func waitUntil(at int64, spin time.Duration, stop *atomic.Bool) int64 {
	for {
		now := nanos()
		left := time.Duration(at - now)
		if left <= 0 || stop.Load() {
			return now
		}
		if left <= spin {
			continue
		}
		ts := unix.NsecToTimespec(int64(min(left-spin, sleepSlice)))
		unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // after an interruption, check again
	}
}

// schedule is a sequence of evenly spaced times.
type schedule struct {
	start    int64   // on the clock of nanos
	interval float64 // ns between two
}

// at returns the time of number n.
func (s schedule) at(n uint64) int64 { return s.start + int64(float64(n)*s.interval) }

// due returns how many are due by now; the first is due at the start.
func (s schedule) due(now int64) uint64 {
	if now < s.start {
		return 0
	}
	return uint64(float64(now-s.start)/s.interval) + 1
}

// before returns how many have a time before t.
func (s schedule) before(t int64) uint64 {
	n := s.due(t - 1)
	for s.at(n) < t { // at rounds down
		n++
	}
	return n
}
