package tunnel

import (
	"fmt"
	"io"
	"sync"
	"time"

	"cleat/cli/term"
)

// printerLines is how many lines wait for whoever reads them: all paths' of a tunnel's
// coming and going, a few times.
const printerLines = 512

// printer writes lines without ever having anybody wait for it: a tunnel goes on though
// nobody reads what it says.
type printer struct {
	lines chan string
	ended chan struct{} // write has returned

	mu     sync.Mutex
	closed bool
	lost   int // lines since the last that were written
}

func newPrinter() *printer {
	return &printer{lines: make(chan string, printerLines), ended: make(chan struct{})}
}

// say has a line written. It returns at once.
func (t *printer) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	select {
	case t.lines <- line:
	default:
		t.lost++
	}
}

// write writes what is said until end is called.
func (t *printer) write(w io.Writer) {
	defer close(t.ended)
	for line := range t.lines {
		fmt.Fprintln(w, line)
		if len(t.lines) > 0 {
			continue
		}
		t.mu.Lock()
		lost := t.lost
		t.lost = 0
		t.mu.Unlock()
		if lost > 0 {
			fmt.Fprintf(w, "(%s left out: nobody read them in time)\n", term.Count(lost, "line"))
		}
	}
}

// end waits until all is written, but no longer than within. Nothing is said afterwards.
func (t *printer) end(within time.Duration) {
	t.mu.Lock()
	t.closed = true
	close(t.lines)
	t.mu.Unlock()
	select {
	case <-t.ended:
	case <-time.After(within):
	}
}
