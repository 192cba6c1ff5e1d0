package usernet

import (
	"sync"
	"testing"
	"time"

	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// events notes what a loop has told it.
type events struct{ seen []uint32 }

func (e *events) ready(ev uint32) { e.seen = append(e.seen, ev) }

func newTestLoop(t *testing.T) *loop {
	t.Helper()
	guesttest.NoLeaks(t)
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// pipe2 is a pipe's ends, reading first.
func pipe2(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

func add(t *testing.T, l *loop, fd int, src source) handle {
	t.Helper()
	ticket, err := l.add(fd, unix.EPOLLIN, src)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

func poll(t *testing.T, l *loop) bool {
	t.Helper()
	found, err := l.poll()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func write(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestLoopDispatchesReady(t *testing.T) {
	l := newTestLoop(t)
	r, w := pipe2(t)
	var e events
	ticket := add(t, l, r, &e)
	if poll(t, l) {
		t.Error("something is ready before anything happened")
	}
	write(t, w)
	if !poll(t, l) || len(e.seen) != 1 || e.seen[0] != unix.EPOLLIN {
		t.Errorf("events %v", e.seen)
	}
	forget(l, ticket, r)
	if poll(t, l) || len(e.seen) != 1 {
		t.Errorf("events %v after it was forgotten", e.seen)
	}
}

// forget frees a descriptor's seat as closing it would.
func forget(l *loop, t handle, fd int) {
	_ = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
	l.remove(t)
}

// leaver takes its neighbour's seat away when it hears something first.
type leaver struct {
	l      *loop
	other  *leaver
	ticket handle
	fd     int
	heir   *events // gets the seat
	heard  int
}

func (s *leaver) ready(uint32) {
	s.heard++
	if s.other.ticket == 0 {
		return
	}
	forget(s.l, s.other.ticket, s.other.fd)
	s.other.ticket = 0
	if _, err := s.l.add(s.other.fd, unix.EPOLLIN, s.heir); err != nil {
		panic(err)
	}
}

func TestLoopDropsEventOfRemovedSource(t *testing.T) {
	l := newTestLoop(t)
	heir := &events{}
	a, b := &leaver{l: l, heir: heir}, &leaver{l: l, heir: heir}
	a.other, b.other = b, a
	var w [2]int
	for i, s := range []*leaver{a, b} {
		s.fd, w[i] = pipe2(t)
		s.ticket = add(t, l, s.fd, s)
	}
	write(t, w[0])
	write(t, w[1])
	poll(t, l) // both events in one batch
	if a.heard+b.heard != 1 {
		t.Errorf("%d sources heard, want the first only", a.heard+b.heard)
	}
	if len(heir.seen) != 0 {
		t.Error("the successor was told of an event of the batch before it sat down")
	}
	poll(t, l)
	if len(heir.seen) != 1 {
		t.Errorf("the successor heard %d events of its own, want 1", len(heir.seen))
	}
}

func TestLoopReusesRegistrations(t *testing.T) {
	l := newTestLoop(t)
	r, _ := pipe2(t)
	for range 100 {
		forget(l, add(t, l, r, &events{}), r)
	}
	if n := len(l.registrations); n > 3 {
		t.Errorf("%d seats for one descriptor", n)
	}
	if _, err := l.add(-1, unix.EPOLLIN, &events{}); err == nil {
		t.Error("a bad descriptor is welcome")
	}
	if n := len(l.free); n != len(l.registrations)-2 { // the zero seat and the waker's
		t.Errorf("%d of %d seats are free", n, len(l.registrations))
	}
}

func TestLoopRunsPosted(t *testing.T) {
	l := newTestLoop(t)
	const posters, each = 8, 100
	var wg sync.WaitGroup
	count := 0
	for range posters {
		wg.Go(func() {
			for range each {
				if !l.post(func() { count++ }) {
					t.Error("a living loop does not take it")
				}
			}
		})
	}
	wg.Wait()
	poll(t, l)
	if count != posters*each {
		t.Errorf("%d were run, want %d", count, posters*each)
	}
	l.post(func() { l.post(func() { count = -1 }) })
	poll(t, l)
	poll(t, l)
	if count != -1 {
		t.Error("what was posted by what was posted was not run")
	}
}

func TestLoopPostWakesWait(t *testing.T) {
	l := newTestLoop(t)
	ran := false
	go l.post(func() { ran = true })
	for !ran {
		if err := l.wait(); err != nil { // without a timer it would sleep for ever
			t.Fatal(err)
		}
	}
}

func TestLoopPostAfterClose(t *testing.T) {
	guesttest.NoLeaks(t)
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	l.close()
	if l.post(func() { t.Error("run") }) {
		t.Error("a closed loop takes what is posted")
	}
}

func TestLoopWaitsForTimers(t *testing.T) {
	l := newTestLoop(t)
	fired := false
	l.timers.set(&timer{fire: func() { fired = true }}, l.after(3*time.Millisecond))
	for !fired {
		if err := l.wait(); err != nil { // ends when the timer is due, not before by much
			t.Fatal(err)
		}
		l.timers.run(l.now)
	}
}

// A client's descriptor that waits in a posted function must not get lost.
func TestLoopDrainRunsPosted(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for range 3 {
		l.post(func() { ran++ })
	}
	l.drain()
	if l.post(func() { ran++ }) || ran != 3 {
		t.Errorf("%d functions ran, want the 3 posted before the end", ran)
	}
	l.close()
}
