package usernet

import (
	"net/netip"
	"os"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// guestListener is a listening socket of the guest's network namespace in an engine's loop.
//
// Whoever has CAP_NET_ADMIN in that namespace can destroy the socket behind the descriptor
// (SOCK_DESTROY, net/ipv4/tcp_diag.c). From then on epoll reports EPOLLHUP in each round, and
// nothing that we do would end that. So the first EPOLLHUP or EPOLLERR takes the descriptor out
// of the loop.
type guestListener struct {
	s           *engine
	fd          int
	handle      handle
	resumeTimer timer             // after a pause
	accept      func() unix.Errno // takes clients; level-triggered, so it may leave some for the next round
	onLost      func()            // is called once the socket is of no use any more
}

// add begins to wait for clients.
func (l *guestListener) add() (err error) {
	l.resumeTimer.fire = func() { _ = l.s.loop.modify(l.handle, l.fd, unix.EPOLLIN) }
	l.handle, err = l.s.loop.add(l.fd, unix.EPOLLIN, l)
	return err
}

// ready implements source.
func (l *guestListener) ready(events uint32) {
	if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.remove()
		l.onLost()
		return
	}
	if exhausted(l.accept()) {
		l.pause()
	}
}

// exhausted reports whether a call failed for want of descriptors or memory, which may pass.
func exhausted(errno unix.Errno) bool {
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		return true
	}
	return false
}

// remove stops waiting. The descriptor stays open.
func (l *guestListener) remove() {
	l.s.loop.timers.drop(&l.resumeTimer)
	l.s.loop.unregister(l.handle, l.fd)
	l.handle = 0
}

// pause leaves clients in the kernel's queue for acceptAgain. Without it the loop would spin:
// the listener stays readable.
func (l *guestListener) pause() {
	l.s.stats.OverLimit++
	if l.s.loop.modify(l.handle, l.fd, 0) == nil {
		l.s.loop.timers.set(&l.resumeTimer, l.s.loop.after(acceptRetryDelay))
	}
}

// outwardCost is a connection's socket inside and the one of the host.
var outForwardCost = tcpFlowCost.Plus(junctionCost)

// outward is a port inside that leads to an address of the host's side. Both ends of its
// connections are sockets, so their bytes are spliced.
type outForward struct {
	guestListener
	file *os.File
	to   netip.AddrPort
}

// Outward has connections that a listening TCP socket of the guest's namespace accepts led to
// an address of the host's side. Neither Policy nor Hook is asked. The Stack takes the socket
// over, and closes it when it ends or at once where the result is an error.
func (s *Stack) ForwardOut(listener *os.File, to netip.AddrPort) error {
	e := s.group.engines[0]
	var err error
	if callErr := e.call(func() { err = e.forwardOut(listener, to) }); callErr != nil {
		err = callErr
	}
	if err != nil {
		listener.Close()
	}
	return err
}

func (s *engine) forwardOut(listener *os.File, to netip.AddrPort) error {
	o := &outForward{file: listener, to: to}
	o.guestListener = guestListener{s: s, fd: int(listener.Fd()), accept: o.acceptAll, onLost: o.close}
	if err := unix.SetNonblock(o.fd, true); err != nil {
		return err
	}
	if err := o.add(); err != nil {
		return err
	}
	s.outForwards[o] = struct{}{}
	return nil
}

// close gives the port up.
func (o *outForward) close() {
	if o.handle != 0 {
		o.remove()
	}
	delete(o.s.outForwards, o)
	o.file.Close()
}

func (o *outForward) acceptAll() unix.Errno {
	for range acceptsPerRound {
		fd, from, errno := sys.AcceptNow(o.fd)
		if errno != 0 {
			return errno
		}
		if !o.connect(fd, from.AddrPort()) {
			abandon(fd)
		}
	}
	return 0
}

// lead begins a connection for a client inside, and reports whether it could. It owns fd then.
func (o *outForward) connect(fd int, from netip.AddrPort) bool {
	at, errno := sys.LocalAddress(fd)
	if errno != 0 {
		return false
	}
	costs, ok := o.s.admit(outForwardCost)
	if !ok {
		return false
	}
	e := o.s.group.engineForClient()
	c := guestClient{fd: fd, local: from, remote: at.AddrPort(), to: o.to, costs: costs}
	if e == o.s {
		e.tcp.callHost(c)
		return true
	}
	if !e.loop.post(func() { e.tcp.callHost(c) }) {
		costs.close()
		return false
	}
	return true
}

// insideClient is a connection that was accepted inside for an address of the host's side.
type guestClient struct {
	fd            int
	local, remote netip.AddrPort // its ends, both inside
	to            netip.AddrPort
	costs         account
}

// lead connects to the host's side on behalf of a client inside. The client has been accepted
// already: a failure is a RST.
func (t *tcpTable) callHost(c guestClient) {
	if f := t.flows[keyOf(c.local, c.remote)]; f != nil { // between the same ports, and over
		f.drop()
	}
	f, other := t.newFlow(c.local, c.remote, c.costs)
	if other != nil {
		c.costs.close()
		abandon(c.fd)
		return
	}
	f.insideFD, f.host, f.junctionCharged = c.fd, c.to, true
	resetOnClose(c.fd, true)
	f.connect()
}
