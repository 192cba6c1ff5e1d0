package tunnel

import (
	"fmt"
	"io"
	"sync"
	"time"

	"cleat/cli/term"
)

// printerLines is how many lines may wait to be read: enough for each path of a tunnel to
// die and return a few times.
const printerLines = 512

// printer writes lines without ever blocking its caller: a tunnel must go on even if
// nobody reads its messages. Lines that don't fit its queue are dropped and counted.
type printer struct {
	lines chan string
	ended chan struct{} // write has returned

	mu      sync.Mutex // guards the fields below
	closed  bool
	dropped int // lines since the last count was written
}

func newPrinter() *printer {
	return &printer{lines: make(chan string, printerLines), ended: make(chan struct{})}
}

// printf queues a line. It returns at once.
func (t *printer) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	select {
	case t.lines <- line:
	default:
		t.dropped++
	}
}

// write writes queued lines until end is called.
func (t *printer) write(w io.Writer) {
	defer close(t.ended)
	for line := range t.lines {
		fmt.Fprintln(w, line)
		if len(t.lines) > 0 {
			continue
		}
		t.mu.Lock()
		dropped := t.dropped
		t.dropped = 0
		t.mu.Unlock()
		if dropped > 0 {
			fmt.Fprintf(w, "(%s dropped: not read in time)\n", term.Count(dropped, "line"))
		}
	}
}

// end waits until all lines are written, for at most timeout. Later lines are ignored.
func (t *printer) end(timeout time.Duration) {
	t.mu.Lock()
	t.closed = true
	close(t.lines)
	t.mu.Unlock()
	select {
	case <-t.ended:
	case <-time.After(timeout):
	}
}
