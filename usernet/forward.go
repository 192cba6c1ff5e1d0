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
type listener struct {
	Forward
	close func()
}

// forward is Stack.Forward.
func (s *engine) forward(f Forward) (netip.AddrPort, error) {
	var at netip.AddrPort
	var err error
	if callErr := s.call(func() { at, err = s.listen(f) }); callErr != nil {
		return netip.AddrPort{}, callErr
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("forward %s port %s: %w", f.Protocol, f.listens(), err)
	}
	return at, nil
}

// listens is where a forward listens, for messages.
func (f Forward) listens() string {
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
			delete(s.forwards, f.key(f.Listen))
			err = nil
		}
	})
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
	l := &listener{Forward: f}
	switch f.Protocol {
	case packet.TCP:
		at, l.close, err = s.tcp.listen(f)
	case packet.UDP:
		at, l.close, err = s.udp.listen(f)
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
func (s *engine) inside(f Forward, client netip.AddrPort) (guest, shown netip.AddrPort, ok bool) {
	to := f.To.Addr()
	if !to.IsValid() || to.IsUnspecified() {
		if to = s.guest(client.Addr()); !to.IsValid() {
			to = s.otherGuest(client.Addr()) // a guest of one family serves clients of both
		}
	}
	from := client.Addr()
	if from.Is4() != to.Is4() || from.IsLoopback() || from.IsUnspecified() || from.IsLinkLocalUnicast() || from == to || from == s.guest(from) {
		if shown := s.cfg.Shown[from]; shown.IsValid() && shown.Is4() == to.Is4() {
			from = shown
		} else {
			from = s.gateway(to)
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
	if fd, err = bind(listen, kind, dual, f.Interface); errors.Is(err, unix.EAFNOSUPPORT) && dual {
		// A kernel without IPv6.
		fd, err = bind(netip.AddrPortFrom(netip.IPv4Unspecified(), listen.Port()), kind, false, f.Interface)
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

func bind(at netip.AddrPort, kind int, dual bool, link string) (int, error) {
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
