package traffic

import (
	"runtime"
	"time"
)

const (
	// yieldAfter is half of the time (forcePreemptNS) after which the runtime
	// preempts a goroutine that was not scheduled anew.
	yieldAfter = 5 * time.Millisecond
	// yieldCheck is after how many calls the clock is looked at; calls of 80 µs
	// and less keep to yieldAfter.
	yieldCheck = 16
)

// yielder keeps the Go runtime's monitor asleep while a goroutine does nothing
// but system calls. A goroutine that has not been scheduled anew for 10 ms is
// preempted, and one that is in a system call just then loses its (virtual)
// processor; the monitor then wakes up every 20 µs to do it again, for as long
// as the loop lasts (retake in runtime/proc.go). Pinned to one processor that
// costs a TCP stream over loopback 12,000 context switches a second and a
// seventh of its rate. The goroutine must not be locked to its thread: then
// yielding means two thread switches. The zero yielder is ready.
type yielder struct {
	calls uint
	last  int64 // of nanos
}

// call counts one system call and tells whether it yielded.
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
