package term

import (
	"io"
	"sync"
	"time"
)

// A LineQueue writes lines in a goroutine of its own, so that its callers go on even if nobody
// reads the lines. Lines that arrive faster than they are read are dropped and counted. It is
// safe for concurrent use.
type LineQueue struct {
	lines chan []byte
	ended chan struct{} // closed when all lines are written

	mu      sync.Mutex // guards the fields below
	closed  bool
	dropped int // lines since the last report
}

// NewLineQueue starts to write to w, until Close is called. Up to size lines wait. report
// returns the line that says how many were dropped.
func NewLineQueue(w io.Writer, size int, report func(dropped int) []byte) *LineQueue {
	q := &LineQueue{lines: make(chan []byte, size), ended: make(chan struct{})}
	go func() {
		defer close(q.ended)
		for line := range q.lines {
			w.Write(line) // without a reader, the callers go on
			q.mu.Lock()
			dropped := q.dropped
			q.dropped = 0
			q.mu.Unlock()
			if dropped > 0 {
				w.Write(report(dropped))
			}
		}
	}()
	return q
}

// Put queues a line, which ends in a newline. It never blocks. Lines after Close are ignored.
func (q *LineQueue) Put(line []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	select {
	case q.lines <- line:
	default:
		q.dropped++
	}
}

// Close waits until all lines are written, for at most timeout. It may be called again to wait
// longer.
func (q *LineQueue) Close(timeout time.Duration) {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.lines)
	}
	q.mu.Unlock()
	select {
	case <-q.ended:
	case <-time.After(timeout):
	}
}
