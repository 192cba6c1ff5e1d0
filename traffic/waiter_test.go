package traffic

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWaiter checks that a waiter returns when its descriptor is ready, and when its context ends while it waits.
func TestWaiter(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	w, err := newWaiter(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if _, err := unix.Write(pipe[1], []byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := w.wait(pipe[0], unix.POLLIN); err != nil {
		t.Errorf("with something to read: %v", err)
	}
	var b [1]byte
	if _, err := unix.Read(pipe[0], b[:]); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() { got <- w.wait(pipe[0], unix.POLLIN) }()
	cancel(ended)
	if err := <-got; !errors.Is(err, ended) {
		t.Errorf("after the context has ended: %v", err)
	}
	if err := w.wait(pipe[0], unix.POLLIN); !errors.Is(err, ended) {
		t.Errorf("called again: %v", err)
	}
}
