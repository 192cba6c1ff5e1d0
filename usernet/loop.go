package usernet

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// source handles the events of a descriptor in the loop.
type source interface {
	// ready is called on the loop's thread with epoll's events. It should record what is
	// ready and leave the work to the round.
	ready(events uint32)
}

// loop is an epoll instance with the sources that wait on it, and the timers. All methods
// but post belong to one thread.
type loop struct {
	epfd          int
	wakeup        int // an eventfd that post writes to
	registrations []registration
	free          []int32
	events        [128]unix.EpollEvent
	timers        timerHeap
	start         time.Time
	now           int64 // nanoseconds since start, read after each call of epoll

	mu     sync.Mutex
	posted []func() // called in order when wakeup is readable
	spare  []func() // the other half of a double buffer for posted
	closed bool
}

// registration is a descriptor in the loop. Its generation tells an event for a source
// that has left in this round from an event for its successor.
type registration struct {
	src        source
	generation int32
}

// handle identifies a registration; the zero handle identifies none.
type handle int32

func newLoop() (*loop, error) {
	l := &loop{start: time.Now(), registrations: make([]registration, 1)}
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make epoll instance: %w", err)
	}
	if l.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(l.epfd)
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	if _, err := l.add(l.wakeup, unix.EPOLLIN, (*waker)(l)); err != nil {
		l.close()
		return nil, err
	}
	l.readClock()
	return l, nil
}

func (l *loop) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	unix.Close(l.epfd)
	unix.Close(l.wakeup)
}

// add registers fd. Events are as in epoll_ctl(2).
func (l *loop) add(fd int, events uint32, src source) (handle, error) {
	i := int32(len(l.registrations))
	if n := len(l.free); n > 0 {
		i, l.free = l.free[n-1], l.free[:n-1]
	} else {
		l.registrations = append(l.registrations, registration{})
	}
	s := &l.registrations[i]
	s.src = src
	ev := unix.EpollEvent{Events: events, Fd: i, Pad: s.generation}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		l.remove(handle(i))
		return 0, fmt.Errorf("wait for descriptor: %w", err)
	}
	return handle(i), nil
}

// replaceSource delivers a descriptor's events to another source.
func (l *loop) replaceSource(t handle, src source) { l.registrations[t].src = src }

// modify changes the events that a source waits for.
func (l *loop) modify(t handle, fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(t), Pad: l.registrations[t].generation}
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// remove frees a registration. The caller closes the descriptor, which removes it from
// the epoll instance: it must have no duplicates.
func (l *loop) remove(t handle) {
	if t == 0 {
		return
	}
	l.registrations[t].src = nil
	l.registrations[t].generation++
	l.free = append(l.free, int32(t))
}

// unregister frees a registration whose descriptor stays open.
func (l *loop) unregister(t handle, fd int) {
	if t == 0 {
		return
	}
	_ = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
	l.remove(t)
}

// readClock updates now.
func (l *loop) readClock() { l.now = int64(time.Since(l.start)) + 1 }

// after returns the loop's time d from now.
func (l *loop) after(d time.Duration) int64 { return l.now + int64(d) }

// poll dispatches the events that are ready, and reports whether there were any.
func (l *loop) poll() (bool, error) {
	n, errno := sys.EpollNow(l.epfd, l.events[:])
	if errno != 0 && errno != unix.EINTR {
		return false, fmt.Errorf("wait for events: %w", errno)
	}
	l.dispatch(n)
	return n > 0, nil
}

// wait blocks until an event is ready or a timer is due.
func (l *loop) wait() error {
	timeout := -1
	if next := l.timers.next(); next > 0 {
		timeout = int(max(0, next-l.now+int64(time.Millisecond)-1) / int64(time.Millisecond))
	}
	n, err := unix.EpollWait(l.epfd, l.events[:], timeout)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for events: %w", err)
	}
	l.dispatch(n)
	return nil
}

// dispatch reads the clock, and passes n events to their sources. A negative n counts as 0.
func (l *loop) dispatch(n int) {
	l.readClock()
	for i := range l.events[:max(n, 0)] {
		ev := &l.events[i]
		if s := &l.registrations[ev.Fd]; s.src != nil && s.generation == ev.Pad {
			s.src.ready(ev.Events)
		}
	}
}

// post calls f on the loop's thread. It may be called from any goroutine. It returns
// false, and f is never called, if the loop has ended.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.posted = append(l.posted, f)
	if len(l.posted) == 1 {
		_, _ = unix.Write(l.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return true
}

// drain ends post and calls the functions that were posted: some bring descriptors and
// connections, which shutdown then closes.
func (l *loop) drain() {
	l.mu.Lock()
	l.closed = true
	rest := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range rest {
		f()
	}
}

// waker calls what was posted.
type waker loop

func (w *waker) ready(uint32) {
	var count [8]byte
	_, _ = sys.ReadNow(w.wakeup, count[:])
	w.mu.Lock()
	w.posted, w.spare = w.spare[:0], w.posted
	w.mu.Unlock()
	for i, f := range w.spare {
		w.spare[i] = nil
		f()
	}
}
