package usernet

import (
	"net/netip"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// acceptor is a listening TCP socket in an engine's loop.
//
// A process with CAP_NET_ADMIN in the socket's network namespace can destroy the
// socket behind the descriptor (SOCK_DESTROY, net/ipv4/tcp_diag.c). From then on
// epoll reports EPOLLHUP in each round, and nothing we do would end that. So the
// first EPOLLHUP or EPOLLERR takes the descriptor out of the loop.
type acceptor struct {
	s           *engine
	fd          int
	handle      handle
	resumeTimer timer             // ends the pause after a lack of descriptors or memory
	accept      func() unix.Errno // accepts clients; the descriptor is level-triggered, so some may be left for the next round
	onLost      func()            // called when the socket was destroyed; nil: not called
}

// add registers the socket with the loop.
func (a *acceptor) add() (err error) {
	a.resumeTimer.fire = func() { _ = a.s.loop.modify(a.handle, a.fd, unix.EPOLLIN) }
	a.handle, err = a.s.loop.add(a.fd, unix.EPOLLIN, a)
	return err
}

// ready implements source.
func (a *acceptor) ready(events uint32) {
	if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		a.remove()
		if a.onLost != nil {
			a.onLost()
		}
		return
	}
	if !exhausted(a.accept()) {
		return
	}
	// Leave clients in the kernel's queue for a while. Otherwise the loop would spin,
	// because the socket stays readable.
	a.s.stats.OverLimit++
	if a.s.loop.modify(a.handle, a.fd, 0) == nil {
		a.s.loop.timers.set(&a.resumeTimer, a.s.loop.after(acceptRetryDelay))
	}
}

// acceptUpTo accepts clients until none is left, but at most the given number. connect owns
// the client's socket if it returns true. Other clients get a RST. The error is that of
// accept(2): EAGAIN if no client is left, 0 if there may be more.
func (a *acceptor) acceptUpTo(most int, connect func(fd int, from netip.AddrPort) bool) unix.Errno {
	for range most {
		fd, from, errno := sys.AcceptNow(a.fd)
		if errno != 0 {
			return errno
		}
		if !connect(fd, from.AddrPort()) {
			abandon(fd)
		}
	}
	return 0
}

// exhausted reports whether a call failed for lack of descriptors or memory. A
// later call may succeed.
func exhausted(errno unix.Errno) bool {
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		return true
	}
	return false
}

// remove takes the socket out of the loop. The descriptor stays open.
func (a *acceptor) remove() {
	a.s.loop.timers.drop(&a.resumeTimer)
	a.s.loop.unregister(a.handle, a.fd)
	a.handle = 0
}
