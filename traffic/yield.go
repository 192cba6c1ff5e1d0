package traffic

import (
	"runtime"
	"time"
)

const (
	// yieldAfter is half of the time (forcePreemptNS) after which the runtime preempts a
	// goroutine that was not rescheduled.
	yieldAfter = 5 * time.Millisecond
	// yieldCheck is the number of calls after which the clock is read; with calls of 80
	// µs and less, yieldAfter is kept.
	yieldCheck = 16
)

// yielder keeps the Go runtime's monitor asleep while a goroutine does nothing but system
// calls. A goroutine that has not been rescheduled for 10 ms is preempted, and if it is
// in a system call at that time, it loses its (virtual) processor; the monitor then wakes
// up every 20 µs to do it again, for as long as the loop lasts (retake in
// runtime/proc.go). On a single processor, that costs a TCP stream over loopback 12,000
// context switches a second and a seventh of its rate. The goroutine must not be locked
// to its thread, because yielding would then mean two thread switches. The zero yielder
// is ready to use.
type yielder struct {
	calls uint
	last  int64 // on the clock of nanos
}

// call counts one system call and reports whether it yielded.
func (y *yielder) call() bool {
	if y.calls++; y.calls%yieldCheck != 0 {
		return false
	}
	now := nanos()
	if now-y.last < int64(yieldAfter) {
		return false
	}
	y.last = now
	runtime.Gosched()
	return true
}
