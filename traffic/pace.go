package traffic

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// clockBase makes nanos small; it never changes.
var clockBase = time.Now()

// nanos is the monotonic clock in nanoseconds.
func nanos() int64 { return int64(time.Since(clockBase)) }

// preciseSleep lets the calling, locked thread's sleeps end when they should:
// the default timer slack is 50 µs. The thread must end with its goroutine,
// that is, stay locked.
func preciseSleep() {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// onOwnThread runs f with precise sleeps and returns after it.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread's timer slack goes with it
		preciseSleep()
		f()
	}()
	<-done
}

const (
	// spinBefore is how long before an intended moment a waiting thread stops
	// sleeping: wake-ups of virtual machines are about that late.
	spinBefore = 30 * time.Microsecond
	// sleepSlice bounds one sleep, so that a thread sees that it should end.
	sleepSlice = 50 * time.Millisecond
)

// waitUntil returns at the moment at (of nanos) or once stop is set, and tells
// the time then. With spin it burns the processor for the last spinBefore.
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
		unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // an interrupted sleep is looked at again
	}
}

// schedule is a sequence of intended moments, evenly spaced.
type schedule struct {
	start    int64   // of nanos
	interval float64 // ns between two
}

// at is the moment of the n-th.
func (s schedule) at(n uint64) int64 { return s.start + int64(float64(n)*s.interval) }

// due is how many are due by now, the first at the start.
func (s schedule) due(now int64) uint64 {
	if now < s.start {
		return 0
	}
	return uint64(float64(now-s.start)/s.interval) + 1
}
