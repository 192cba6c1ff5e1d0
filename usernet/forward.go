package usernet

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// ErrNoForward is returned by Unforward for a port that is not forwarded.
var ErrNoForward = errors.New("no such port forward")

// forwardKey identifies an open forward.
type forwardKey struct {
	proto  packet.Protocol
	listen netip.AddrPort
	link   string
}

func (f Forward) key(listen netip.AddrPort) forwardKey {
	return forwardKey{f.Protocol, listen, f.Interface}
}

// openForward is a Forward with its sockets.
type openForward struct {
	Forward
	tcp      []*tcpListener
	closeUDP func()
	loans    int // sockets that other programs listen on in its place
	costs    account
}

// close closes the sockets. Connections that came in by them stay.
func (l *openForward) close() {
	for _, part := range l.tcp {
		part.remove()
		unix.Close(part.fd)
	}
	l.tcp = nil
	if l.closeUDP != nil {
		l.closeUDP()
	}
}

// Forward opens a port of the host and returns the address it listens on.
// Privileged ports need the privileges that the kernel demands. Forward may be
// called before Run.
func (s *Stack) Forward(f Forward) (at netip.AddrPort, err error) {
	e := s.group.engines[0]
	if callErr := e.call(func() { at, err = e.listen(f) }); callErr != nil {
		return netip.AddrPort{}, callErr
	}
	if err != nil {
		where := f.Listen.String()
		if !f.Listen.Addr().IsValid() {
			where = fmt.Sprintf("*:%d", f.Listen.Port())
		}
		return netip.AddrPort{}, fmt.Errorf("forward %s port %s: %w", f.Protocol, where, err)
	}
	return at, nil
}

// Unforward closes a port. Connections that came in by it stay, and a UDP port stays
// bound until its flows have ended. f.Listen is the address that Forward returned. The
// error is ErrNoForward if the port is not forwarded.
func (s *Stack) Unforward(f Forward) error {
	e := s.group.engines[0]
	return e.callError(func() error {
		l := e.forwards[f.key(f.Listen)]
		if l == nil {
			return ErrNoForward
		}
		l.close()
		l.costs.close()
		delete(e.forwards, f.key(f.Listen))
		return nil
	})
}

// Forwards returns the open ports, sorted by protocol, address and port.
func (s *Stack) Forwards() ([]Forward, error) {
	var all []Forward
	e := s.group.engines[0]
	err := e.call(func() {
		for _, l := range e.forwards {
			all = append(all, l.Forward)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Forward) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Listen.Compare(b.Listen), cmp.Compare(a.Interface, b.Interface))
	})
	return all, nil
}

// Loan is a forwarded port that another program listens on. The Stack does not
// see the connections to it.
type Loan struct {
	Forward Forward
	engine  *engine
	forward *openForward
}

// LoanConfig describes the socket to lend.
type LoanConfig struct {
	Family    int    // unix.AF_INET or AF_INET6
	V6Only    bool   // an IPv6 socket takes no IPv4 clients (IPV6_V6ONLY)
	ReusePort bool   // other sockets may listen on the same port (SO_REUSEPORT)
	MinPort   uint16 // lower ports are not lent
}

// Lend stops listening on a forward that leads to the given address in the guest,
// and returns a TCP socket bound where the forward has listened. If the forward is
// for both families and the socket for IPv4 only, the Stack goes on listening for
// IPv6. ok is false if no forward leads there, the port is lent already and
// as.ReusePort is not set, or the socket can't be made. The socket is non-blocking,
// does not listen yet, and belongs to the caller.
func (s *Stack) Lend(guest netip.AddrPort, as LoanConfig) (fd int, loan *Loan, ok bool) {
	e := s.group.engines[0]
	var l *openForward
	if e.call(func() { fd, l = e.lend(guest, as) }) != nil || l == nil {
		return -1, nil, false
	}
	return fd, &Loan{l.Forward, e, l}, true
}

// End makes the Stack listen again, unless the forward has other loans. The lent
// socket must be closed. Call End until it succeeds: its error wraps EADDRINUSE
// while another program has the port.
func (l *Loan) End() error {
	return l.engine.callError(func() error { return l.engine.endLoan(l.forward) })
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

// guestEndpoint returns where in the guest a client of a forward is sent to, and
// the address that the guest sees as the client's. That is the client's own,
// unless it would mean something else in the guest. ok is false if there is no
// such address.
func (s *engine) guestEndpoint(f Forward, client netip.AddrPort) (guest, peer netip.AddrPort, ok bool) {
	from, to, guest6 := client.Addr(), f.To.Addr(), s.group.guest6(s.cfg.Guest6)
	if !to.IsValid() || to.IsUnspecified() {
		if to = ofFamily(from, s.cfg.Guest4, guest6); !to.IsValid() {
			to = ofFamily(from, guest6, s.cfg.Guest4) // a guest with one family serves clients of both
		}
	}
	if from.Is4() != to.Is4() || from.IsLoopback() || from.IsUnspecified() || from.IsLinkLocalUnicast() || from == to || from == ofFamily(from, s.cfg.Guest4, guest6) {
		if alias := s.cfg.ClientAliases[from]; alias.IsValid() && alias.Is4() == to.Is4() {
			from = alias
		} else {
			from = s.gatewayFor(to)
		}
	}
	return netip.AddrPortFrom(to, f.To.Port()), netip.AddrPortFrom(from, client.Port()), from.IsValid()
}

// bindForward makes the socket that a forward listens on.
func bindForward(f Forward, kind int) (fd int, at netip.AddrPort, err error) {
	listen := f.Listen
	dual := !listen.Addr().IsValid() || listen.Addr() == netip.IPv6Unspecified()
	if !listen.Addr().IsValid() {
		listen = netip.AddrPortFrom(netip.IPv6Unspecified(), listen.Port())
	}
	if fd, err = bind(listen, kind, dual, f.Interface, false); errors.Is(err, unix.EAFNOSUPPORT) && dual {
		// The kernel has no IPv6.
		fd, err = bind(netip.AddrPortFrom(netip.IPv4Unspecified(), listen.Port()), kind, false, f.Interface, false)
	}
	if err != nil {
		return -1, at, err
	}
	own, errno := sys.LocalAddress(fd)
	if errno != 0 {
		unix.Close(fd)
		return -1, at, fmt.Errorf("read socket address: %w", errno)
	}
	return fd, netip.AddrPortFrom(f.Listen.Addr(), own.AddrPort().Port()), nil
}

// bind makes a non-blocking socket bound to an address. An IPv6 socket takes IPv4
// clients as well if dual is set.
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
