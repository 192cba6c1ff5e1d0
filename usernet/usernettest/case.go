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

// Verdict is how a case ended.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "FAIL"
	Skip Verdict = "skip"
)

// Result is what became of a case.
type Result struct {
	Case    string
	Verdict Verdict
	Reason  string   // of a failure or a skip
	Notes   []string // measurements, for the reader
	Log     string   // by the helper, where the case failed
	Took    time.Duration
}

// X is a case being tried. Its methods that end the case must be called by the
// case's own goroutine.
type T struct {
	Settings
	ctx context.Context

	mu       sync.Mutex
	verdict  Verdict
	reason   string
	notes    []string
	cleanups []func()
}

// Settings are how thoroughly cases are tried.
type Settings struct {
	Long, Short bool
	// Patience is how long a case may hang; 0: 30 s, and ten times that if Long.
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

// scaled is a quantity as thorough as the settings.
func scaled[T any](s Settings, short, normal, long T) T {
	switch {
	case s.Long:
		return long
	case s.Short:
		return short
	}
	return normal
}

// thorough is a quantity for IPv4, or a smaller one for IPv6, where what depends
// on the number of things has been seen already.
func fewerForV6(f Family, v4, v6 int) int {
	if f == V4 {
		return v4
	}
	return v6
}

// Notef notes something for the reader.
func (x *T) Notef(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

// Errorf fails the case and goes on with it.
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

// Must ends the case when there is an error.
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

// Cleanup is done when the case has ended, last things first.
func (x *T) Cleanup(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cleanups = append(x.cleanups, f)
}

// Await looks until the condition holds; the case fails when its patience ends.
func (x *T) Await(holds func() error) { x.Must(await(x.ctx, holds)) }

// Both does two things at once and ends the case when either fails.
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

// errPatience ends a case that hangs.
var errTimeout = errors.New("it hangs")

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
		// Connections have deadlines: it will end. What it says then counts most.
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
