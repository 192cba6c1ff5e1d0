package usernettest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Verdict is the result of a case.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "FAIL"
	Skip Verdict = "skip"
)

// Result describes how a case ended.
type Result struct {
	Case    string
	Verdict Verdict
	Reason  string   // of a failure or a skip
	Notes   []string // measurements, for people
	Log     string   // the end of the helper's log, if the case failed
	Took    time.Duration
}

// T is a running case, similar to testing.T. Methods that end the case must be called on
// the case's own goroutine.
type T struct {
	Settings
	ctx context.Context

	mu       sync.Mutex
	verdict  Verdict
	reason   string
	notes    []string
	cleanups []func()
}

// Settings are how thorough the cases are.
type Settings struct {
	Long, Short bool
	// Timeout is how long a case may hang; 0: 30 s, or 300 s if Long.
	Timeout time.Duration
}

func (s Settings) timeout() time.Duration {
	switch {
	case s.Timeout > 0:
		return s.Timeout
	case s.Long:
		return 300 * time.Second
	}
	return 30 * time.Second
}

// scaled returns the quantity for the settings.
func scaled[T any](s Settings, short, normal, long T) T {
	switch {
	case s.Long:
		return long
	case s.Short:
		return short
	}
	return normal
}

// fewerForV6 returns v4 for IPv4 and the smaller v6 for IPv6. Effects of large numbers
// have been seen with IPv4.
func fewerForV6(f Family, v4, v6 int) int {
	if f == V4 {
		return v4
	}
	return v6
}

// Notef adds a note for people.
func (x *T) Notef(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

// Errorf fails the case and continues it.
func (x *T) Errorf(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.verdict != Fail {
		x.verdict, x.reason = Fail, ""
	}
	x.reason = strings.TrimPrefix(x.reason+"; "+fmt.Sprintf(format, args...), "; ")
}

// Fatalf fails the case and ends it.
func (x *T) Fatalf(format string, args ...any) {
	x.Errorf(format, args...)
	runtime.Goexit()
}

// Must ends the case if err is not nil.
func (x *T) Must(err error) {
	if err != nil {
		x.Fatalf("%v", err)
	}
}

// Skipf ends the case without a verdict on the path.
func (x *T) Skipf(format string, args ...any) {
	x.mu.Lock()
	x.verdict, x.reason = Skip, fmt.Sprintf(format, args...)
	x.mu.Unlock()
	runtime.Goexit()
}

// Cleanup calls f when the case has ended, in reverse order.
func (x *T) Cleanup(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cleanups = append(x.cleanups, f)
}

// Await waits until the condition holds. The case fails at its timeout.
func (x *T) Await(holds func() error) { x.Must(await(x.ctx, holds)) }

// Both runs a and b concurrently, and ends the case if either fails.
func (x *T) Both(a, b func() error) {
	done := make(chan error, 1)
	go func() { done <- a() }()
	err := b()
	select {
	case other := <-done:
		x.Must(errors.Join(other, err))
	case <-x.ctx.Done():
		x.Must(errors.Join(err, context.Cause(x.ctx)))
	}
}

// errTimeout ends a case that hangs.
var errTimeout = errors.New("timed out")

// try runs f as a case.
func try(ctx context.Context, name string, s Settings, f func(*T)) Result {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout(), errTimeout)
	defer cancel()
	x := &T{Settings: s, ctx: ctx, verdict: Pass}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(x)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		// Connections have deadlines, so the case will end. Its own error says more than
		// the timeout.
		select {
		case <-done:
		case <-time.After(s.timeout()):
		}
	}
	x.mu.Lock()
	if x.verdict == Pass && ctx.Err() != nil {
		x.verdict, x.reason = Fail, errTimeout.Error()
	}
	x.mu.Unlock()
	x.cleanup()
	x.mu.Lock()
	defer x.mu.Unlock()
	return Result{Case: name, Verdict: x.verdict, Reason: x.reason, Notes: x.notes, Took: time.Since(began)}
}

func (x *T) cleanup() {
	for {
		x.mu.Lock()
		n := len(x.cleanups)
		if n == 0 {
			x.mu.Unlock()
			return
		}
		f := x.cleanups[n-1]
		x.cleanups = x.cleanups[:n-1]
		x.mu.Unlock()
		f()
	}
}
