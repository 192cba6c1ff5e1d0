package keep_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"cleat/network/keep"
)

// A state directory has one keeper. Another one waits if it is configured to.
func TestOne(t *testing.T) {
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	_, stop := w.keeper(w.keep())
	if err := w.host.Do(func() error { return keep.Run(t.Context(), w.keep()) }); !errors.Is(err, keep.ErrRunning) {
		t.Errorf("a second keeper: %v", err)
	}
	if s := keep.StateOf(w.store); !s.Running || s.PID != os.Getpid() {
		t.Errorf("state %+v, want that it runs", s)
	}
	other := newFakeHost(t)
	other.start("web", 0)
	other.attach("web", "192.0.2.10/24")
	other.keeper(other.keep())

	ready := make(chan bool, 2)
	c := w.keep()
	c.Wait, c.Ready = true, func(waiting bool) { ready <- waiting }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.host.Do(func() error { return keep.Run(ctx, c) }) }()
	if !<-ready {
		t.Error("the second keeper does not wait")
	}
	must(t, stop())
	if <-ready {
		t.Error("the second keeper still waits")
	}
	cancel()
	must(t, <-ended)
}

// The state shows a keeper from before its process starts until it ends.
func TestState(t *testing.T) {
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	if s := keep.StateOf(w.store); s != (keep.State{}) {
		t.Errorf("state before the first keeper: %+v", s)
	}
	must(t, keep.Starting(w.store))
	if s := keep.StateOf(w.store); s != (keep.State{Starting: true}) {
		t.Errorf("state while a keeper is being started: %+v", s)
	}
	_, stop := w.keeper(w.keep())
	if s := keep.StateOf(w.store); s != (keep.State{Running: true, PID: os.Getpid()}) {
		t.Errorf("state with a keeper: %+v", s)
	}
	if err := keep.Starting(w.store); !errors.Is(err, keep.ErrRunning) {
		t.Errorf("starting a second keeper: %v", err)
	}
	must(t, stop())
	if s := keep.StateOf(w.store); s != (keep.State{}) {
		t.Errorf("state after the keeper's end: %+v", s)
	}

	must(t, keep.Starting(w.store))
	long := time.Now().Add(-time.Minute)
	must(t, os.Chtimes(w.store.Path("keeper.lock"), long, long))
	if s := keep.StateOf(w.store); s != (keep.State{}) {
		t.Errorf("state a minute after a keeper should have started: %+v", s)
	}
}

// Reading the state does not prevent a keeper from starting.
func TestStateWhileStarting(t *testing.T) {
	w := newFakeHost(t)
	asking, done := context.WithCancel(t.Context())
	var askers sync.WaitGroup
	askers.Go(func() {
		for asking.Err() == nil {
			keep.StateOf(w.store)
		}
	})
	for range 200 {
		if err := keep.Starting(w.store); err != nil {
			t.Error(err)
			break
		}
	}
	done()
	askers.Wait()
}
