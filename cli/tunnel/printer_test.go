package tunnel

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cleat/tunnel"
)

// Who does not read what a tunnel says does not stop it.
func TestTellerNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	u := &up{printer: newPrinter(), established: make(chan struct{})}
	go u.write(w)
	const events = 20 * printerLines // a pipe has room for 64 KiB
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range events {
			u.tell(tunnel.Event{Path: fmt.Sprintf("p%d", i), Kind: tunnel.PathLive})
		}
		u.end(10 * time.Millisecond) // not for good either
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the engine waits for who reads")
	}
	go func() { <-u.ended; w.Close() }()
	lines, left, last := 0, 0, -1
	for s := bufio.NewScanner(r); s.Scan(); {
		var n int
		if _, err := fmt.Sscanf(s.Text(), "(%d lines left out: nobody read them in time)", &n); err == nil {
			left += n
			continue
		}
		_, what, _ := strings.Cut(s.Text(), "  ")
		if _, err := fmt.Sscanf(what, "path p%d is in use", &n); err != nil || n <= last {
			t.Fatalf("%q behind that of path p%d", s.Text(), last)
		}
		last = n
		lines++
	}
	if lines < printerLines || lines+left != events {
		t.Errorf("%d lines and %d left out, want %d together", lines, left, events)
	}
}

// All that happens is said in words.
func TestTellerHasWords(t *testing.T) {
	for _, what := range []tunnel.EventKind{tunnel.Established, tunnel.FellBack, tunnel.Restarted, tunnel.PathLive, tunnel.PathDead, tunnel.PathGone, tunnel.Resized, tunnel.Restricted,
		tunnel.Expired, tunnel.Mismatched} {
		if happenings[what] == "" {
			t.Errorf("nothing is said of %q", what)
		}
	}
}
