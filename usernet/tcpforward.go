package usernet

import (
	"fmt"
	"net/netip"
	"time"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// tcpListener accepts clients of a forward.
type tcpListener struct {
	acceptor
	forward    Forward
	lastAccept int64 // when the socket was last readable, on the loop's clock
}

// listen opens a forward.
func (t *tcpTable) listen(f Forward) (at netip.AddrPort, l *tcpListener, err error) {
	fd, at, err := bindForward(f, unix.SOCK_STREAM)
	if err != nil {
		return at, nil, err
	}
	f.Listen = at
	l, err = t.serve(f, fd)
	return at, l, err
}

// serve listens on a bound socket, which covers all or a part of what the forward
// listens on. It owns fd.
func (t *tcpTable) serve(f Forward, fd int) (*tcpListener, error) {
	l := &tcpListener{forward: f}
	l.acceptor = acceptor{s: t.s, fd: fd, accept: l.acceptSome}
	if l.forward.To.Port() == 0 {
		l.forward.To = netip.AddrPortFrom(f.To.Addr(), f.Listen.Port())
	}
	t.s.tuneListener(fd)
	if err := unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := l.add(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return l, nil
}

// listenSpec is the address that a socket listens on.
type listenSpec struct {
	addr      netip.AddrPort
	dualStack bool // an IPv6 socket that takes IPv4 clients as well
}

// splitListen splits what a forward listens on into the part that a socket of the
// given family covers, and the rest, if any. IPv6 sockets take IPv4 clients as
// well unless only6 is set. ok is false if such a socket covers nothing of it.
func splitListen(at netip.AddrPort, family int, only6 bool) (lent listenSpec, rest *listenSpec, ok bool) {
	all4, all6 := netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
	dual := !at.Addr().IsValid() || at.Addr() == netip.IPv6Unspecified()
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

// lend stops listening on a forward that leads to guest, and returns a socket that
// is bound in its place and does not listen yet.
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

// servesGuest reports whether the forward's clients are sent to a listener at an
// address in the guest.
func (l *openForward) servesGuest(guest netip.AddrPort) bool {
	port := l.To.Port()
	if port == 0 {
		port = l.Listen.Port()
	}
	to := l.To.Addr()
	return port == guest.Port() && !guest.Addr().IsLoopback() &&
		(!to.IsValid() || to.IsUnspecified() || guest.Addr().IsUnspecified() || to == guest.Addr())
}

// listenRest listens on the part of a forward that a loan does not cover. If it
// fails, that family gets no clients.
func (s *engine) listenRest(l *openForward, spec listenSpec) {
	fd, err := bind(spec.addr, unix.SOCK_STREAM, spec.dualStack, l.Interface, false)
	if err != nil {
		return
	}
	if part, err := s.tcp.serve(l.Forward, fd); err == nil {
		l.tcp = append(l.tcp, part)
	}
}

// endLoan ends a loan. With the last one, the forward listens as it did at first.
func (s *engine) endLoan(l *openForward) error {
	if s.forwards[l.key(l.Listen)] != l {
		return nil // Unforward has closed it
	}
	if l.loans > 1 {
		l.loans--
		return nil
	}
	l.close()
	_, all, err := s.tcp.listen(l.Forward)
	if err != nil {
		return err
	}
	l.tcp, l.loans = []*tcpListener{all}, 0
	return nil
}

// backlog is how many connections wait at a listening socket to be accepted. The kernel
// lowers it to net.core.somaxconn.
const backlog = 4096

const (
	// acceptsPerRound bounds how long a rush of clients delays the rest of a round.
	acceptsPerRound = 32
	// rushInterval is the most time between two clients of a rush. A client that
	// waits for an answer before its next connection takes longer.
	rushInterval = 20 * time.Microsecond
	// acceptRetryDelay is how long clients wait while descriptors or memory are short.
	acceptRetryDelay = 100 * time.Millisecond
)

// acceptSome accepts a single client, except in a rush. That saves the call that
// finds no other client; clients that are left wait for the next round.
func (l *tcpListener) acceptSome() unix.Errno {
	most, now := 1, l.s.loop.now
	if now-l.lastAccept < int64(rushInterval) {
		most = acceptsPerRound
	}
	l.lastAccept = now
	return l.acceptUpTo(most, l.connect)
}

// client is a connection that the host has accepted for the guest.
type client struct {
	fd    int
	from  netip.AddrPort
	guest netip.AddrPort // where the connection is sent to
	peer  netip.AddrPort // the client's address as the guest sees it
	costs account
}

// connect opens a flow for an accepted client. If it returns true, the flow owns fd.
func (l *tcpListener) connect(fd int, from netip.AddrPort) bool {
	guest, peer, ok := l.s.guestEndpoint(l.forward, from)
	if !ok {
		return false
	}
	if peer, ok = l.s.tcp.freeClientAddr(guest, peer); !ok {
		return false
	}
	return l.s.onClientEngine(tcpFlowCost, func(e *engine, costs account) {
		e.tcp.callGuest(client{fd, from, guest, peer, costs})
	})
}

// abandon closes a client's socket so that the client gets a RST.
func abandon(fd int) {
	resetOnClose(fd, true)
	unix.Close(fd)
}

// freeClientAddr returns a client's address as the guest sees it, with a port that
// no other connection to the guest's port uses: several clients may share the
// gateway's address.
func (t *tcpTable) freeClientAddr(guest, peer netip.AddrPort) (netip.AddrPort, bool) {
	const tries = 256
	for i := range uint16(tries) {
		port := peer.Port() + i*257
		if port < 1024 && i > 0 {
			continue
		}
		at := netip.AddrPortFrom(peer.Addr(), port)
		f := t.flows[keyOf(guest, at)]
		switch {
		case f == nil && t.s.group.otherOwner(t.s, ownerKey{keyOf(guest, at), true}) == nil:
			return at, true
		case f != nil && f.state == stateFinished:
			t.forget(f)
			return at, true
		}
	}
	return peer, false
}
