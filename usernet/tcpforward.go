package usernet

import (
	"fmt"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// tcpListener accepts clients of a forward.
type tcpListener struct {
	t           *tcpTable
	forward     Forward
	spec        listenSpec
	fd          int
	handle      handle
	resumeTimer timer // after a pause
	lastAccept  int64 // when the last client came
}

// listen opens a forward.
func (t *tcpTable) listen(f Forward) (at netip.AddrPort, l *tcpListener, err error) {
	fd, at, err := bindForward(f, unix.SOCK_STREAM)
	if err != nil {
		return at, nil, err
	}
	own, errno := sys.LocalAddress(fd)
	if errno != 0 {
		unix.Close(fd)
		return at, nil, errno
	}
	where := listenSpec{addr: own.AddrPort()}
	if own.Family() == unix.AF_INET6 {
		where = listenSpec6(at)
	}
	f.Listen = at
	l, err = t.serve(f, fd, where)
	return at, l, err
}

// serve listens on a socket that is bound where the forward listens, or to a part
// of that. It owns fd.
func (t *tcpTable) serve(f Forward, fd int, where listenSpec) (*tcpListener, error) {
	l := &tcpListener{t: t, forward: f, spec: where, fd: fd}
	if l.forward.To.Port() == 0 {
		l.forward.To = netip.AddrPortFrom(f.To.Addr(), f.Listen.Port())
	}
	t.s.tuneListener(fd)
	if err := unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.resumeTimer.fire = func() { _ = t.s.loop.modify(l.handle, fd, unix.EPOLLIN) }
	var err error
	if l.handle, err = t.s.loop.add(fd, unix.EPOLLIN, l); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return l, nil
}

// place is where a socket listens.
type listenSpec struct {
	addr      netip.AddrPort
	dualStack bool // of IPv6, and takes IPv4's clients too
}

// placeOf6 is that of IPv6's socket for all that a forward listens at.
func listenSpec6(at netip.AddrPort) listenSpec {
	if a := at.Addr(); a.IsValid() && a != netip.IPv6Unspecified() {
		return listenSpec{addr: at}
	}
	return listenSpec{netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port()), true}
}

// divide makes two places of one that a forward listens at: the one for a socket
// of a family, and what that leaves, if anything. IPv6's sockets take the clients
// of IPv4 too unless only6 is set. ok is false where no such socket would do.
func splitListen(at netip.AddrPort, family int, only6 bool) (lent listenSpec, rest *listenSpec, ok bool) {
	all4, all6 := netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
	dual := listenSpec6(at).dualStack
	switch {
	case family == unix.AF_INET && dual:
		return listenSpec{addr: all4}, &listenSpec{addr: all6}, true
	case family == unix.AF_INET:
		return listenSpec{addr: at}, nil, at.Addr().Is4()
	case dual && only6:
		return listenSpec{addr: all6}, &listenSpec{addr: all4}, true
	case dual:
		return listenSpec{all6, true}, nil, true
	case at.Addr().Is4() && !only6:
		return listenSpec{netip.AddrPortFrom(netip.AddrFrom16(at.Addr().As16()), at.Port()), true}, nil, true
	}
	return listenSpec{addr: at}, nil, at.Addr().Is6()
}

// lend gives up listening in favour of a socket for somebody else, which is bound
// and does not listen yet.
func (s *engine) lend(guest netip.AddrPort, as LoanConfig) (fd int, l *openForward) {
	for _, l := range s.forwards {
		if l.loans > 0 && !as.ReusePort || l.Listen.Port() < as.MinPort || l.Protocol != packet.TCP || !l.servesGuest(guest) {
			continue
		}
		lent, rest, ok := splitListen(l.Listen, as.Family, as.V6Only)
		if !ok {
			continue
		}
		if l.loans == 0 {
			l.close()
		}
		fd, err := bind(lent.addr, unix.SOCK_STREAM, lent.dualStack, l.Interface, as.ReusePort)
		l.loans++
		if err != nil {
			_ = s.endLoan(l)
			return -1, nil
		}
		if at := lent.addr.Addr().Unmap(); at.IsLoopback() {
			s.controls.tune(fd, at)
		}
		if rest != nil && l.loans == 1 {
			s.listenRest(l, *rest)
		}
		return fd, l
	}
	return -1, nil
}

// leadsTo tells whether a listener at an address inside would get the forward's
// clients.
func (l *openForward) servesGuest(guest netip.AddrPort) bool {
	port := l.To.Port()
	if port == 0 {
		port = l.Listen.Port()
	}
	to := l.To.Addr()
	return port == guest.Port() && !guest.Addr().IsLoopback() &&
		(!to.IsValid() || to.IsUnspecified() || guest.Addr().IsUnspecified() || to == guest.Addr())
}

// listenOn has a forward listen at a part of it. A family that is missing has no
// clients.
func (s *engine) listenRest(l *openForward, at listenSpec) {
	fd, err := bind(at.addr, unix.SOCK_STREAM, at.dualStack, l.Interface, false)
	if err != nil {
		return
	}
	if part, err := s.tcp.serve(l.Forward, fd, at); err == nil {
		l.tcp = append(l.tcp, part)
	}
}

// reclaim ends a loan, and has the forward listen again as it did after the last.
func (s *engine) endLoan(l *openForward) error {
	if s.forwards[l.key(l.Listen)] != l {
		return nil // it was closed
	}
	if l.loans > 1 {
		l.loans--
		return nil
	}
	if err := s.relisten(l); err != nil {
		return err
	}
	l.loans = 0
	return nil
}

// listenAgain has a forward listen as it did in the beginning.
func (s *engine) relisten(l *openForward) error {
	l.close()
	_, all, err := s.tcp.listen(l.Forward)
	if err == nil {
		l.tcp = []*tcpListener{all}
	}
	return err
}

// backlog of listening sockets; the kernel lowers it to net.core.somaxconn.
const backlog = 4096

func (l *tcpListener) close() {
	l.t.s.loop.timers.drop(&l.resumeTimer)
	l.t.s.loop.remove(l.handle)
	unix.Close(l.fd)
}

// acceptsPerRound bounds how long a rush of clients may keep others waiting.
const acceptsPerRound = 32

// rush is how soon after another a client comes in a rush: one that waits for an
// answer before its next connection takes longer.
const rushInterval = 20 * time.Microsecond

// ready implements source. The socket is level-triggered: what is left waits
// for the next round. So, outside of a rush, one client is taken, and nobody asks
// in vain for the next.
func (l *tcpListener) ready(uint32) {
	most, now := 1, l.t.s.loop.now
	if now-l.lastAccept < int64(rushInterval) {
		most = acceptsPerRound
	}
	l.lastAccept = now
	for range most {
		fd, from, errno := sys.AcceptNow(l.fd)
		if errno != 0 {
			if exhausted(errno) {
				l.pause()
			}
			return
		}
		if !l.accept(fd, from.AddrPort()) {
			abandon(fd)
		}
	}
}

// acceptAgain is how long clients wait for descriptors.
const acceptRetryDelay = 100 * time.Millisecond

// pause lets clients wait in the kernel's queue while there are no descriptors;
// without it the loop would turn in vain.
func (l *tcpListener) pause() {
	l.t.s.stats.OverLimit++
	if l.t.s.loop.modify(l.handle, l.fd, 0) == nil {
		l.t.s.loop.timers.set(&l.resumeTimer, l.t.s.loop.after(acceptRetryDelay))
	}
}

// client is a connection that the host has accepted for the guest.
type client struct {
	fd    int
	from  netip.AddrPort
	guest netip.AddrPort // where it is led to
	peer  netip.AddrPort // what it is called there
	costs account
}

func (l *tcpListener) accept(fd int, from netip.AddrPort) bool {
	t := l.t
	guest, shown, ok := t.s.guestEndpoint(l.forward, from)
	if !ok {
		return false
	}
	if shown, ok = t.freeClientAddr(guest, shown); !ok {
		return false
	}
	costs, ok := t.s.admit(tcpFlowCost)
	if !ok {
		return false
	}
	e := t.s.group.engineForClient()
	c := client{fd, from, guest, shown, costs}
	if e == t.s {
		t.callGuest(c)
		return true
	}
	if !e.loop.post(func() { e.tcp.callGuest(c) }) {
		costs.close()
		return false
	}
	return true
}

// abandon closes a client's socket so that it gets a RST.
func abandon(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(fd)
}

// vacant is the client's shown address with a port that no other connection to
// the guest's port uses: several clients may share the gateway's address.
func (t *tcpTable) freeClientAddr(guest, shown netip.AddrPort) (netip.AddrPort, bool) {
	const tries = 256
	for i := range uint16(tries) {
		port := shown.Port() + i*257
		if port < 1024 && i > 0 {
			continue
		}
		at := netip.AddrPortFrom(shown.Addr(), port)
		f := t.flows[keyOf(guest, at)]
		switch {
		case f == nil && t.s.group.otherOwner(t.s, ownerKey{keyOf(guest, at), true}) == nil:
			return at, true
		case f != nil && f.state == stateFinished:
			t.forget(f)
			return at, true
		}
	}
	return shown, false
}
