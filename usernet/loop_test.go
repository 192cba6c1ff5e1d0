package usernet

import (
	"sync"
	"testing"
	"time"

	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// events records the events that a source gets.
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

// pipe2 returns a pipe's ends, the reading one first.
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
		t.Error("an event before anything happened")
	}
	write(t, w)
	if !poll(t, l) || len(e.seen) != 1 || e.seen[0] != unix.EPOLLIN {
		t.Errorf("events %v", e.seen)
	}
	forget(l, ticket, r)
	if poll(t, l) || len(e.seen) != 1 {
		t.Errorf("events %v after removal", e.seen)
	}
}

// forget frees a descriptor's registration, as closing it would.
func forget(l *loop, t handle, fd int) {
	_ = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
	l.remove(t)
}

// leaver removes its neighbour when it gets its first event.
type leaver struct {
	l      *loop
	other  *leaver
	ticket handle
	fd     int
	heir   *events // reuses the registration
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
		t.Errorf("%d sources got events, want only the first", a.heard+b.heard)
	}
	if len(heir.seen) != 0 {
		t.Error("the new source got an event from before its registration")
	}
	poll(t, l)
	if len(heir.seen) != 1 {
		t.Errorf("the new source got %d events of its own, want 1", len(heir.seen))
	}
}

func TestLoopReusesRegistrations(t *testing.T) {
	l := newTestLoop(t)
	r, _ := pipe2(t)
	for range 100 {
		forget(l, add(t, l, r, &events{}), r)
	}
	if n := len(l.registrations); n > 3 {
		t.Errorf("%d registrations for one descriptor", n)
	}
	if _, err := l.add(-1, unix.EPOLLIN, &events{}); err == nil {
		t.Error("add accepts a bad descriptor")
	}
	if n := len(l.free); n != len(l.registrations)-2 { // the zero handle's and the waker's
		t.Errorf("%d of %d registrations are free", n, len(l.registrations))
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
					t.Error("post fails before close")
				}
			}
		})
	}
	wg.Wait()
	poll(t, l)
	if count != posters*each {
		t.Errorf("%d functions ran, want %d", count, posters*each)
	}
	l.post(func() { l.post(func() { count = -1 }) })
	poll(t, l)
	poll(t, l)
	if count != -1 {
		t.Error("a function posted by a posted one did not run")
	}
}

func TestLoopPostWakesWait(t *testing.T) {
	l := newTestLoop(t)
	ran := false
	go l.post(func() { ran = true })
	for !ran {
		if err := l.wait(); err != nil { // without a timer it would sleep forever
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
		t.Error("post succeeds after close")
	}
}

func TestLoopWaitsForTimers(t *testing.T) {
	l := newTestLoop(t)
	fired := false
	l.timers.set(&timer{fire: func() { fired = true }}, l.after(3*time.Millisecond))
	for !fired {
		if err := l.wait(); err != nil { // ends when the timer is due, and not much before
			t.Fatal(err)
		}
		l.timers.run(l.now)
	}
}

// A posted function may carry a client's descriptor, which must not be lost.
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
		t.Errorf("%d functions ran, want the 3 posted before drain", ran)
	}
	l.close()
}
