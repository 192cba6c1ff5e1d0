package supervisor

import (
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// listen carries out listen(2). If a published port leads to the program's socket, the
// program gets a listening socket of the host.
func (p *program) listen() {
	c, ok := p.lookUp()
	if !ok {
		return
	}
	backlog := int(int32(p.call.Args[1]))
	where, err := netCookie(c.fd)
	switch {
	case !p.waiting():
		unix.Close(c.fd)
	case err != nil:
		p.finish(c, errnoFor(err))
	case c.udp:
		p.finish(c, unix.EOPNOTSUPP)
	case where == p.s.hostNet && !hasFlag(c.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN):
		p.finish(c, unix.EINVAL)
	case where == p.s.guestNet && p.lend(c, backlog):
	default:
		var result unix.Errno
		if err := unix.Listen(c.fd, backlog); err != nil {
			result = err.(unix.Errno)
		}
		p.finish(c, result)
	}
}

func hasFlag(fd, level, name int) bool {
	n, errno := sys.GetInt(fd, level, name)
	return errno == 0 && n != 0
}

// lend replaces the program's socket with a listening socket of the host and answers the
// call. It reports whether it did so.
func (p *program) lend(c socket, backlog int) bool {
	// A listener keeps its port when it becomes an ordinary socket again, and could then
	// connect by a continued call (continueCall). Landlock prevents that.
	if p.s.cfg.Lend == nil || !p.Landlocked || p.MayConfigureHost || hasFlag(c.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN) {
		return false
	}
	at, errno := sys.LocalAddress(c.fd)
	w := Listener{
		Inside: at.AddrPort(), Family: c.family,
		Only6:     c.family == unix.AF_INET6 && hasFlag(c.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY),
		ReusePort: hasFlag(c.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT),
	}
	if errno != 0 || w.Inside.Port() == 0 || c.info.flags&unix.O_ASYNC != 0 || p.uncopyable(c.fd) || p.shared(c) != "" {
		return false
	}
	p.s.loans.collect()
	if p.s.loans.len() >= maxLoans || !p.hold() {
		return false
	}
	l, ok := p.s.cfg.Lend(w)
	if !ok {
		p.account.release(1)
		return false
	}
	if !p.copyOptions(c.fd, l.FD, p.s.guestDefaults[c.family], true) || p.s.fence.apply(l.FD) != nil ||
		unix.SetNonblock(l.FD, !c.blocking) != nil || unix.Listen(l.FD, backlog) != nil || !p.waiting() ||
		sys.ReplaceDescriptor(p.fd, c.callID, l.FD, c.guestFD, c.info.flags&unix.O_CLOEXEC != 0) != 0 {
		unix.Close(l.FD)
		p.account.release(1)
		p.s.loans.add(loan{Loan: l, inner: -1})
		p.s.loans.collect()
		return false
	}
	unix.Close(l.FD) // only the program keeps it open, so that the port is free when it exits
	l.FD = -1
	keepPort(c.fd)
	p.s.loans.add(loan{l, p.account, w.Inside, c.fd})
	p.s.count(&p.s.stats.Listening)
	p.reply(0)
	return true
}

// keepPort makes a socket keep its port for itself, as a listener does: SO_REUSEADDR does
// not share it. The kernel checks for conflicts strictly only after a listen
// (inet_csk_update_fastreuse, net/ipv4/inet_connection_sock.c).
func keepPort(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	_ = unix.Listen(fd, 0)
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
}
