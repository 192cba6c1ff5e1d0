package supervisor

import (
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// pendingConnect is a blocking connect whose handshake is in progress.
type pendingConnect struct {
	socket
	tid        uint32
	generation int32     // in its epoll events, since the descriptor's number may be reused
	deadline   time.Time // from SO_SNDTIMEO; zero if there is none
}

// pendingConnects are the pending connects of a program, at most one per thread.
type pendingConnects struct {
	byFD       map[int]*pendingConnect
	byThread   map[uint32]*pendingConnect
	generation int32
	earliest   time.Time // no deadline is before it; zero if there are no deadlines
}

// maxPending bounds the pending connects of a program, each of which takes a descriptor.
const maxPending = 1024

// earlier returns the earlier of two times. A zero time is later than any other.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// await answers a blocking connect once it has succeeded or failed, or after the time that
// SO_SNDTIMEO allows. It takes ownership of c.fd.
func (p *program) await(c socket) {
	if len(p.pending.byFD) >= maxPending {
		for _, w := range p.pending.byFD {
			if !sys.NotificationLives(p.fd, w.callID) {
				p.drop(w)
			}
		}
	}
	if len(p.pending.byFD) >= maxPending || !p.hold() {
		p.finish(c, unix.EAGAIN)
		return
	}
	p.pending.generation++
	w := &pendingConnect{socket: c, tid: p.call.TID, generation: p.pending.generation}
	if tv, err := unix.GetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO); err == nil && (tv.Sec != 0 || tv.Usec != 0) {
		w.deadline = time.Now().Add(time.Duration(tv.Nano()))
	}
	event := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLET, Fd: int32(c.fd), Pad: w.generation}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, c.fd, &event); err != nil {
		p.account.release(1)
		p.finish(c, unix.EAGAIN)
		return
	}
	p.pending.byFD[w.fd], p.pending.byThread[w.tid] = w, w
	p.pending.earliest = earlier(p.pending.earliest, w.deadline)
}

func (p *program) expire() {
	if p.pending.earliest.IsZero() {
		return
	}
	now := time.Now()
	if now.Before(p.pending.earliest) {
		return
	}
	p.pending.earliest = time.Time{}
	for _, w := range p.pending.byFD {
		if !w.deadline.IsZero() && !now.Before(w.deadline) {
			p.complete(w, unix.EINPROGRESS)
		} else {
			p.pending.earliest = earlier(p.pending.earliest, w.deadline)
		}
	}
}

func (p *program) complete(w *pendingConnect, result unix.Errno) {
	p.answer(w.socket, result)
	p.drop(w)
}

// drop forgets a pending connect without an answer.
func (p *program) drop(w *pendingConnect) {
	delete(p.pending.byFD, w.fd)
	if p.pending.byThread[w.tid] == w {
		delete(p.pending.byThread, w.tid)
	}
	// If the program still has the socket, closing our descriptor does not end the events.
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, w.fd, nil)
	p.closeHeld(w.fd)
}
