package supervisor

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// loan is a listener that the program has from us.
type loan struct {
	Loan
	inside netip.AddrPort // where the program's own was bound
	inner  int            // that one, which keeps others from its port
}

// bind carries out bind(2), on the program's own socket. Its port may have been
// kept for a listener that is gone by now.
func (s *Supervisor) bind() {
	c, ok := s.take()
	if !ok {
		return
	}
	raw, result := s.readAddress()
	if !s.lives() {
		unix.Close(c.fd)
		return
	}
	where, err := cookie(c.fd)
	owed, owes := s.debt(c)
	switch {
	case result != 0:
	case owes:
		result = owed
	case err == nil && where == s.host:
		result = unix.EINVAL // it has been connected
	case !c.from.KeptFromTCP:
		s.bindElsewhere(c)
		return
	default:
		if result = sys.BindRaw(c.fd, raw); result == unix.EADDRINUSE && s.collect() {
			result = sys.BindRaw(c.fd, raw)
		}
	}
	s.finish(c, result)
}

// bindElsewhere has bind(2) carried out with the caller's rights. It owns c's.
func (s *Supervisor) bindElsewhere(c socket) {
	raw, result := s.readAddress()
	alive := s.lives()
	if result == 0 && (c.fd < 0 || s.cfg.Bind == nil) {
		result = unix.EACCES
	}
	if !alive || result != 0 {
		s.reply(result)
		if c.fd >= 0 {
			unix.Close(c.fd)
		}
		return
	}
	b := Binding{TID: int(s.note.TID), Notifications: c.from.fd, ID: c.id, Socket: c.fd, Address: bytes.Clone(raw)}
	switch s.binds.wait(binding{c, b}) {
	case tooMany:
		s.finish(c, unix.EAGAIN)
	case first:
		s.waiting.Go(func() {
			for b, ok := s.binds.next(); ok; b, ok = s.binds.next() {
				s.bindAs(b)
			}
		})
	}
}

// bindAs carries out a call that has waited, if anybody still makes it.
func (s *Supervisor) bindAs(b binding) {
	defer b.drop()
	if !sys.NotificationLives(b.from.fd, b.id) {
		return
	}
	result, owed := s.debt(b.socket)
	if !owed {
		result = s.cfg.Bind(b.Binding)
	}
	if result != Left { // else nothing is owed to who calls again
		s.answer(b.socket, result)
	}
}

// binding is a call that waits to be carried out; it owns the socket's descriptor.
type binding struct {
	socket
	Binding
}

func (b binding) drop() {
	unix.Close(b.fd)
	b.from.release()
}

// maxBinds bounds threads that wait.
const maxBinds = 64

// binds are calls that are carried out one after the other: what is owed to the one
// before is known when the next has its turn.
type binds struct {
	mu    sync.Mutex
	queue []binding
	busy  bool // somebody calls next until there is none
}

// place is what a call's place in the queue means.
type place int

const (
	behind  place = iota
	first         // nobody is busy: the caller has to see to it that somebody is
	tooMany       // it has none
)

// wait has a call wait for its turn. A thread that calls again has left its call before,
// because of a signal, and that gives up its place: signals that come faster than calls
// are carried out don't make too many of them.
func (w *binds) wait(b binding) place {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = slices.DeleteFunc(w.queue, func(o binding) bool {
		left := o.TID == b.TID
		if left {
			o.drop()
		}
		return left
	})
	if len(w.queue) >= maxBinds {
		return tooMany
	}
	b.from.users.Add(1)
	w.queue = append(w.queue, b)
	if w.busy {
		return behind
	}
	w.busy = true
	return first
}

// next is the call that has waited longest.
func (w *binds) next() (b binding, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy = len(w.queue) > 0; !w.busy {
		return binding{}, false
	}
	b = w.queue[0]
	w.queue = slices.Delete(w.queue, 0, 1)
	return b, true
}

// listen carries out listen(2): on a socket of the host's where a published port
// leads to the program's.
func (s *Supervisor) listen() {
	c, ok := s.take()
	if !ok {
		return
	}
	backlog := int(int32(s.note.Args[1]))
	where, err := cookie(c.fd)
	switch {
	case !s.lives():
		unix.Close(c.fd)
	case c.udp:
		s.finish(c, unix.EOPNOTSUPP)
	case err == nil && where == s.host && !listens(c.fd):
		s.finish(c, unix.EINVAL)
	case err == nil && where == s.guest && s.lend(c, backlog):
	default:
		var result unix.Errno
		if err := unix.Listen(c.fd, backlog); err != nil {
			result = err.(unix.Errno)
		}
		s.finish(c, result)
	}
}

// listens tells whether a socket does (SO_ACCEPTCONN).
func listens(fd int) bool {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && n != 0
}

// lend gives the program a listener of the host's for its own, and answers. It
// tells whether it did.
func (s *Supervisor) lend(c socket, backlog int) bool {
	// A listener keeps its port when it is made an ordinary socket again, and could
	// connect by that: see proceed.
	if s.cfg.Ports == nil || !c.from.KeptFromTCP || c.from.MayConfigureHost || listens(c.fd) {
		return false
	}
	w, ok := listenerOf(c)
	if !ok || c.about.flags&unix.O_ASYNC != 0 || s.peculiar(c.fd) || s.entangled(c) != "" {
		return false
	}
	s.collect()
	l, ok := s.cfg.Ports.Lend(w)
	if !ok {
		return false
	}
	if !s.copyAll(c.fd, l.FD, s.own[c.family], true) || s.fence(l.FD) != nil ||
		unix.SetNonblock(l.FD, !c.blocking) != nil || unix.Listen(l.FD, backlog) != nil ||
		sys.ReplaceDescriptor(c.from.fd, c.id, l.FD, c.theirs, c.about.flags&unix.O_CLOEXEC != 0) != 0 {
		unix.Close(l.FD)
		s.loans = append(s.loans, loan{Loan: l, inner: -1})
		s.collect()
		return false
	}
	unix.Close(l.FD) // the program's is the only one: when it goes, the port is free
	l.FD = -1
	keepPort(c.fd)
	s.loans = append(s.loans, loan{l, w.Inside, c.fd})
	s.count(&s.stats.Listening)
	s.reply(0)
	return true
}

// listenerOf is what a bound socket is like as a listener.
func listenerOf(c socket) (w Listener, ok bool) {
	at, errno := sys.LocalAddress(c.fd)
	flag := func(level, name int) bool {
		n, err := unix.GetsockoptInt(c.fd, level, name)
		return err == nil && n != 0
	}
	w = Listener{
		Inside: at.AddrPort(), Family: c.family,
		Only6: c.family == unix.AF_INET6 && flag(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY), ReusePort: flag(unix.SOL_SOCKET, unix.SO_REUSEPORT),
	}
	return w, errno == 0 && w.Inside.Port() != 0
}

// keepPort has a socket keep its port from others, as one that listens does: not
// shared by SO_REUSEADDR. To have listened once makes the kernel look closely
// (inet_csk_update_fastreuse, net/ipv4/inet_connection_sock.c).
func keepPort(fd int) {
	_ = sys.SetInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	_ = unix.Listen(fd, 0)
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
}

// collect ends loans whose socket nobody has any more, and tells whether there
// were any.
func (s *Supervisor) collect() bool {
	s.collected = time.Now()
	freed := false
	keep := s.loans[:0]
	for _, l := range s.loans {
		if l.inner >= 0 {
			if l.Lives() {
				keep = append(keep, l)
				continue
			}
			unix.Close(l.inner)
			l.inner, freed = -1, true
		}
		if !l.End() {
			keep = append(keep, l)
		}
	}
	clear(s.loans[len(keep):])
	s.loans = keep
	return freed
}

// lent is where the host's listener is that the program has for one of its own.
func (s *Supervisor) lent(to netip.AddrPort) (netip.AddrPort, bool) {
	for _, l := range s.loans {
		if l.inner < 0 || l.inside.Port() != to.Port() || !l.reaches(to.Addr(), s) || !l.Lives() {
			continue
		}
		at := l.At
		if at.Addr().IsUnspecified() {
			local := netip.IPv6Loopback()
			if to.Addr().Is4() {
				local = netip.AddrFrom4([4]byte{127, 0, 0, 1})
			}
			at = netip.AddrPortFrom(local, at.Port())
		}
		return at, true
	}
	return to, false
}

// reaches tells whether an address inside leads to the program's listener.
func (l *loan) reaches(a netip.Addr, s *Supervisor) bool {
	own := l.inside.Addr()
	if !own.IsUnspecified() {
		return own == a
	}
	return (own.Is6() || a.Is4()) && !s.routes.outside(a)
}
