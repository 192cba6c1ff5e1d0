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

// TestNobodyReadsMessages checks that a tunnel goes on if nobody reads its messages.
func TestNobodyReadsMessages(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	u := &up{messages: newMessages(w), established: make(chan struct{})}
	const events = 20 * maxMessages // a pipe has room for 64 KiB
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range events {
			u.printEvent(tunnel.Event{Path: fmt.Sprintf("p%d", i), Kind: tunnel.PathLive})
		}
		u.messages.Close(10 * time.Millisecond) // this does not block either
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the engine waits for a reader")
	}
	go func() { u.messages.Close(time.Minute); w.Close() }()
	lines, dropped, last := 0, 0, -1
	for s := bufio.NewScanner(r); s.Scan(); {
		var n int
		if _, err := fmt.Sscanf(s.Text(), "(%d line", &n); err == nil {
			dropped += n
			continue
		}
		_, what, _ := strings.Cut(s.Text(), "  ")
		if _, err := fmt.Sscanf(what, "path p%d is in use", &n); err != nil || n <= last {
			t.Fatalf("%q after the line of path p%d", s.Text(), last)
		}
		last = n
		lines++
	}
	if lines < maxMessages || lines+dropped != events {
		t.Errorf("%d lines and %d dropped, want %d together", lines, dropped, events)
	}
}

// TestEveryEventHasAText checks that each kind of event has a message.
func TestEveryEventHasAText(t *testing.T) {
	for _, what := range []tunnel.EventKind{tunnel.Established, tunnel.FellBack, tunnel.Restarted, tunnel.PathLive, tunnel.PathDead, tunnel.PathGone, tunnel.Resized, tunnel.Restricted,
		tunnel.Expired, tunnel.Mismatched, tunnel.PeerSilent, tunnel.PeerAnswers, tunnel.PathSilent, tunnel.PathAnswers, tunnel.PathTripped, tunnel.PathClosed} {
		if eventTexts[what] == "" {
			t.Errorf("no text for %q", what)
		}
	}
}
