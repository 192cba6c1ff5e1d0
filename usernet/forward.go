package usernet

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// ErrNoForward says that there is no such forward.
var ErrNoForward = errors.New("no such port forward")

// forwardKey is what a forward is found by.
type forwardKey struct {
	proto  packet.Protocol
	listen netip.AddrPort
	link   string
}

func (f Forward) key(listen netip.AddrPort) forwardKey {
	return forwardKey{f.Protocol, listen, f.Interface}
}

// listener is an open forward.
type openForward struct {
	Forward
	tcp      []*tcpListener
	closeUDP func()
	loans    int // sockets of somebody else's that listen in its place
	costs    account
}

// close has it listen no more.
func (l *openForward) close() {
	for _, part := range l.tcp {
		part.close()
	}
	l.tcp = nil
	if l.closeUDP != nil {
		l.closeUDP()
	}
}

// forward is Stack.Forward.
func (s *engine) forward(f Forward) (netip.AddrPort, error) {
	var at netip.AddrPort
	var err error
	if callErr := s.call(func() { at, err = s.listen(f) }); callErr != nil {
		return netip.AddrPort{}, callErr
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("forward %s port %s: %w", f.Protocol, f.listenText(), err)
	}
	return at, nil
}

// listens is where a forward listens, for messages.
func (f Forward) listenText() string {
	if f.Listen.Addr().IsValid() {
		return f.Listen.String()
	}
	return fmt.Sprintf("*:%d", f.Listen.Port())
}

// unforward is Stack.Unforward.
func (s *engine) unforward(f Forward) error {
	err := ErrNoForward
	callErr := s.call(func() {
		if l := s.forwards[f.key(f.Listen)]; l != nil {
			l.close()
			l.costs.close()
			delete(s.forwards, f.key(f.Listen))
			err = nil
		}
	})
	return errors.Join(callErr, err)
}

// Loan is a port of a forward's that somebody else listens on: connections to it
// are theirs, and none of the Stack's.
type Loan struct {
	Forward Forward
	engine  *engine
	forward *openForward
}

// LoanConfig says what socket is wanted.
type LoanConfig struct {
	Family    int    // unix.AF_INET or AF_INET6
	V6Only    bool   // of IPv6, for IPv6's clients alone (IPV6_V6ONLY)
	ReusePort bool   // beside others at the same port (SO_REUSEPORT)
	MinPort   uint16 // ports below are not lent
}

// Lend makes a TCP socket, bound where a forward to a guest's address listens, and
// has the Stack listen there no more; what an IPv4 socket does not cover of a
// forward for both families stays. ok is false where there is no such forward, it
// is lent already, or no such socket can be had. The socket is non-blocking, does
// not listen yet, and is the caller's.
func (s *Stack) Lend(guest netip.AddrPort, as LoanConfig) (fd int, loan *Loan, ok bool) {
	e := s.group.engines[0]
	var l *openForward
	if e.call(func() { fd, l = e.lend(guest, as) }) != nil || l == nil {
		return -1, nil, false
	}
	return fd, &Loan{l.Forward, e, l}, true
}

// End has the Stack listen again, when no other loan of the forward's is left: the
// sockets must be closed. Call it until it succeeds. The error wraps
// EADDRINUSE where somebody has taken the port; End can be tried again.
func (l *Loan) End() error {
	var err error
	callErr := l.engine.call(func() { err = l.engine.endLoan(l.forward) })
	return errors.Join(callErr, err)
}

// listForwards is Stack.Forwards.
func (s *engine) listForwards() ([]Forward, error) {
	var all []Forward
	err := s.call(func() {
		for _, l := range s.forwards {
			all = append(all, l.Forward)
		}
	})
	slices.SortFunc(all, func(a, b Forward) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Listen.Compare(b.Listen), cmp.Compare(a.Interface, b.Interface))
	})
	return all, err
}

func (s *engine) listen(f Forward) (at netip.AddrPort, err error) {
	l := &openForward{Forward: f, costs: account{ledger: s.group.ledger}}
	if !l.costs.charge(forwardCost) {
		return at, unix.EMFILE
	}
	defer func() {
		if err != nil {
			l.costs.close()
		}
	}()
	switch f.Protocol {
	case packet.TCP:
		var all *tcpListener
		at, all, err = s.tcp.listen(f)
		l.tcp = []*tcpListener{all}
	case packet.UDP:
		at, l.closeUDP, err = s.udp.listen(f)
	default:
		err = errors.New("only TCP and UDP have ports")
	}
	if err != nil {
		return at, err
	}
	l.Listen = at
	s.forwards[f.key(at)] = l
	return at, nil
}

// inside is where in the guest a client of a forward is led to, and the address
// that stands for the client there: its own, unless that would mean something
// else inside.
func (s *engine) guestEndpoint(f Forward, client netip.AddrPort) (guest, shown netip.AddrPort, ok bool) {
	to := f.To.Addr()
	if !to.IsValid() || to.IsUnspecified() {
		if to = s.guestFor(client.Addr()); !to.IsValid() {
			to = s.otherGuest(client.Addr()) // a guest of one family serves clients of both
		}
	}
	from := client.Addr()
	if from.Is4() != to.Is4() || from.IsLoopback() || from.IsUnspecified() || from.IsLinkLocalUnicast() || from == to || from == s.guestFor(from) {
		if shown := s.cfg.ClientAliases[from]; shown.IsValid() && shown.Is4() == to.Is4() {
			from = shown
		} else {
			from = s.gatewayFor(to)
		}
	}
	return netip.AddrPortFrom(to, f.To.Port()), netip.AddrPortFrom(from, client.Port()), from.IsValid()
}

// otherGuest is the guest's address of the other family.
func (s *engine) otherGuest(a netip.Addr) netip.Addr {
	if a.Is4() {
		return s.cfg.Guest6
	}
	return s.cfg.Guest4
}

// bindForward makes the socket that a forward listens on.
func bindForward(f Forward, kind int) (fd int, at netip.AddrPort, err error) {
	listen := f.Listen
	dual := !listen.Addr().IsValid() || listen.Addr() == netip.IPv6Unspecified()
	if !listen.Addr().IsValid() {
		listen = netip.AddrPortFrom(netip.IPv6Unspecified(), listen.Port())
	}
	if fd, err = bind(listen, kind, dual, f.Interface, false); errors.Is(err, unix.EAFNOSUPPORT) && dual {
		// A kernel without IPv6.
		fd, err = bind(netip.AddrPortFrom(netip.IPv4Unspecified(), listen.Port()), kind, false, f.Interface, false)
	}
	if err != nil {
		return -1, at, err
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return -1, at, fmt.Errorf("read own address: %w", err)
	}
	at = netip.AddrPortFrom(f.Listen.Addr(), addrPort(own).Port())
	return fd, at, nil
}

func bind(at netip.AddrPort, kind int, dual bool, link string, reusePort bool) (int, error) {
	family := unix.AF_INET6
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if family == unix.AF_INET6 {
		only := 1
		if dual {
			only = 0
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil && reusePort {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	if err == nil && link != "" {
		err = unix.BindToDevice(fd, link)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
