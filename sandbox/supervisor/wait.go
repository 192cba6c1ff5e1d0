package supervisor

import (
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// wait is a blocking connect whose handshake is under way. The thread can have one.
type wait struct {
	socket
	tid        uint32
	generation int32     // of its events: its descriptor's number may have been another's
	deadline   time.Time // as of SO_SNDTIMEO; zero: none
}

// waits are those of a program.
type waits struct {
	byFD       map[int]*wait
	byThread   map[uint32]*wait
	generation int32
	earliest   time.Time // no deadline is before; zero: there is none
}

// maxWaits bounds threads of a program that wait for a connection, each of which takes a
// descriptor.
const maxWaits = 1024

// next is when to look at deadlines.
func (w *waits) next() (time.Time, bool) { return w.earliest, !w.earliest.IsZero() }

// left drops what a thread has waited for, which calls again: it has left its call before,
// because of a signal.
func (w *waits) left(tid uint32, drop func(*wait)) {
	if old := w.byThread[tid]; old != nil {
		drop(old)
	}
}

// each calls f, which may drop them, for all waits.
func (w *waits) each(f func(*wait)) {
	for _, one := range w.byFD {
		f(one)
	}
}

// add remembers a wait.
func (w *waits) add(one *wait) {
	if w.byFD == nil {
		w.byFD, w.byThread = map[int]*wait{}, map[uint32]*wait{}
	}
	w.byFD[one.fd], w.byThread[one.tid] = one, one
	if at := one.deadline; !at.IsZero() && (w.earliest.IsZero() || at.Before(w.earliest)) {
		w.earliest = at
	}
}

// remove forgets a wait.
func (w *waits) remove(one *wait) {
	delete(w.byFD, one.fd)
	if w.byThread[one.tid] == one {
		delete(w.byThread, one.tid)
	}
}

// await answers a blocking connect when the connection is there or has failed, or when the
// time is over that SO_SNDTIMEO allows. It owns c's descriptor.
func (p *program) await(c socket) {
	if len(p.waits.byFD) >= maxWaits {
		p.waits.each(func(w *wait) {
			if !sys.NotificationLives(p.fd, w.id) {
				p.drop(w)
			}
		})
	}
	if len(p.waits.byFD) >= maxWaits || !p.room() {
		p.finish(c, unix.EAGAIN)
		return
	}
	p.waits.generation++
	w := &wait{socket: c, tid: p.note.TID, generation: p.waits.generation}
	if tv, err := unix.GetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO); err == nil && (tv.Sec != 0 || tv.Usec != 0) {
		w.deadline = time.Now().Add(time.Duration(tv.Nano()))
	}
	event := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLET, Fd: int32(c.fd), Pad: w.generation}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, c.fd, &event); err != nil {
		p.account.release(1)
		p.finish(c, unix.EAGAIN)
		return
	}
	p.waits.add(w)
}

// progress looks at a wait for which an event has come.
func (p *program) progress(fd int, generation int32) {
	w := p.waits.byFD[fd]
	if w == nil || w.generation != generation || connecting(w.fd) {
		return
	}
	p.complete(w, probe(w.fd, w.family))
}

// expire answers the waits whose time is over.
func (p *program) expire() {
	at, ok := p.waits.next()
	now := time.Now()
	if !ok || now.Before(at) {
		return
	}
	p.waits.earliest = time.Time{}
	p.waits.each(func(w *wait) {
		switch at := w.deadline; {
		case at.IsZero():
		case !now.Before(at):
			p.complete(w, unix.EINPROGRESS)
		case p.waits.earliest.IsZero() || at.Before(p.waits.earliest):
			p.waits.earliest = at
		}
	})
}

// complete answers a wait's call.
func (p *program) complete(w *wait, result unix.Errno) {
	p.answer(w.socket, result)
	p.drop(w)
}

// drop ends a wait without an answer.
func (p *program) drop(w *wait) {
	p.waits.remove(w)
	// The program may have the socket still, and the kernel would report it further on.
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, w.fd, nil)
	p.discard(w.fd)
}
