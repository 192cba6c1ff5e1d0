package supervisor

import (
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// listen carries out listen(2): on a socket of the host's where a published port
// leads to the program's.
func (p *program) listen() {
	c, ok := p.take()
	if !ok {
		return
	}
	backlog := int(int32(p.note.Args[1]))
	where, err := cookie(c.fd)
	switch {
	case !p.lives():
		unix.Close(c.fd)
	case err != nil:
		p.finish(c, refusalFor(err))
	case c.udp:
		p.finish(c, unix.EOPNOTSUPP)
	case where == p.s.host && !listens(c.fd):
		p.finish(c, unix.EINVAL)
	case where == p.s.guest && p.lend(c, backlog):
	default:
		var result unix.Errno
		if err := unix.Listen(c.fd, backlog); err != nil {
			result = err.(unix.Errno)
		}
		p.finish(c, result)
	}
}

// listens reports whether a socket does (SO_ACCEPTCONN).
func listens(fd int) bool {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && n != 0
}

// lend gives the program a listener of the host's for its own, and answers. It
// reports whether it did.
func (p *program) lend(c socket, backlog int) bool {
	// A listener keeps its port when it is made an ordinary socket again, and could
	// connect by that: see proceed.
	if p.s.cfg.Ports == nil || !p.KeptFromTCP || p.MayConfigureHost || listens(c.fd) {
		return false
	}
	w, ok := listenerOf(c)
	if !ok || c.about.flags&unix.O_ASYNC != 0 || p.peculiar(c.fd) || p.entangled(c) != "" {
		return false
	}
	p.s.loans.collect()
	if p.s.loans.full() || !p.room() {
		return false
	}
	l, ok := p.s.cfg.Ports.Lend(w)
	if !ok {
		p.account.release(1)
		return false
	}
	if !p.copyAll(c.fd, l.FD, p.s.own[c.family], true) || p.s.fence.put(l.FD) != nil ||
		unix.SetNonblock(l.FD, !c.blocking) != nil || unix.Listen(l.FD, backlog) != nil || !p.lives() ||
		sys.ReplaceDescriptor(p.fd, c.id, l.FD, c.theirs, c.about.flags&unix.O_CLOEXEC != 0) != 0 {
		unix.Close(l.FD)
		p.account.release(1)
		p.s.loans.add(loan{Loan: l, inner: -1})
		p.s.loans.collect()
		return false
	}
	unix.Close(l.FD) // the program's is the only one: when it goes, the port is free
	l.FD = -1
	keepPort(c.fd)
	p.s.loans.add(loan{l, p.account, w.Inside, c.fd})
	p.s.count(&p.s.stats.Listening)
	p.reply(0)
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
