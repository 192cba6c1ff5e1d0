package supervisor

import (
	"net/netip"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// substitute connects a socket of the host's in the place of the program's, and
// answers. It returns why that can't be, with nothing done, or "".
func (p *program) substitute(c socket, raw []byte) string {
	host, why := p.judge(raw, c)
	if why != "" {
		return why
	}
	if why := p.unfit(c); why != "" {
		return why
	}
	if k, ok := p.unparkOne(c, host); ok {
		if !p.install(c, k.fd, k.result) {
			p.park(c, k.fd, host, k.result)
			unix.Close(c.fd)
		}
		return ""
	}
	if c.udp {
		return p.replace(c, host, p.s.datagram[c.family])
	}
	return p.replace(c, host, p.s.own[c.family])
}

// substituteAgain is substitute for a socket of the host's that is not connected.
func (p *program) substituteAgain(c socket, raw []byte) string {
	host, why := p.judge(raw, c)
	if why != "" {
		return why
	}
	if !p.s.fence.holds() {
		return whyPorts
	}
	if why := p.entangled(c); why != "" {
		return why
	}
	return p.replace(c, host, p.s.ordinary[c.family])
}

// replace makes a socket of the host's like c and connects it.
func (p *program) replace(c socket, host netip.AddrPort, fresh options) string {
	if c.family == unix.AF_INET && !host.Addr().Is4() {
		return whyHost
	}
	key := spareKey{c.family, c.kind(), host.Addr().Is4(), host.Addr().IsLoopback()}
	fd, ok := p.spare[key]
	if ok {
		delete(p.spare, key)
		p.account.release(1)
	} else {
		var err error
		if fd, err = p.s.cfg.Host.Socket(c.family, c.kind(), host.Addr()); err != nil {
			return whyHost
		}
	}
	if !p.copyAll(c.fd, fd, fresh, false) {
		unix.Close(fd)
		return whyOption
	}
	p.join(c, fd, host)
	// Until the next call there is time to make a socket for it.
	if !p.account.hold(1) {
		return ""
	}
	spare, err := p.s.cfg.Host.Socket(c.family, c.kind(), host.Addr())
	if err != nil {
		p.account.release(1)
		return ""
	}
	p.spare[key] = spare
	return ""
}

// spareKey is what a socket of the host's depends on before it is connected.
type spareKey struct {
	family, kind  int
	to4, loopback bool
}

// kind is the socket's type.
func (c *socket) kind() int {
	if c.udp {
		return unix.SOCK_DGRAM
	}
	return unix.SOCK_STREAM
}

// judge returns where the host's socket is to be connected to, or why there is to
// be none.
func (p *program) judge(raw []byte, c socket) (netip.AddrPort, string) {
	to, ok := destination(raw, c.family)
	if !ok {
		return to, whyAddress
	}
	judge := p.s.cfg.JudgeUDP
	if !c.udp {
		judge = p.s.cfg.Judge
		if at, ok := p.s.loans.lent(to, p.s.routes); ok {
			return at, ""
		}
	}
	if !p.outside(to.Addr()) {
		return to, whyInside
	}
	host, ok := judge(to)
	if !ok {
		return to, whyPolicy
	}
	return host, ""
}

// learned is what a program has learned about routes.
type learned struct {
	state   uint64 // of the routes
	outside lru[netip.Addr, bool]
}

// outside is routes.outside, remembered until the routes change.
func (p *program) outside(a netip.Addr) bool {
	if now := p.s.routes.state(); now != p.learned.state {
		p.learned.state = now
		p.learned.outside.clear()
	}
	is, ok := p.learned.outside.get(a)
	if !ok {
		is = p.s.routes.outside(a)
		p.learned.outside.put(a, is)
	}
	return is
}

// unfit returns why a substitute for a socket would be less than the same, or "".
func (p *program) unfit(c socket) string {
	switch {
	case c.about.flags&unix.O_ASYNC != 0:
		return whyAsync
	case c.bound:
		return whyBound
	case p.MayConfigureHost:
		return whyPrivileged
	case !c.udp && !p.s.fence.holds():
		return whyPorts
	case p.peculiar(c.fd):
		return whyOption
	}
	return p.entangled(c)
}

// join connects the host's socket and puts it in place. It owns fd.
func (p *program) join(c socket, fd int, host netip.AddrPort) {
	result := sys.ConnectNow(fd, address(host, c.family))
	if result == unix.EINPROGRESS {
		// A handshake on this host is over when connect returns, which asking tells.
		if again := probe(fd, c.family); again != unix.EALREADY {
			result = again
		}
	}
	if !c.udp && (result == 0 || result == unix.EINPROGRESS) {
		p.s.cfg.Host.Connected(fd, host.Addr())
		if p.s.fence.put(fd) != nil {
			result = unix.ENOBUFS
		}
	}
	if result != 0 && result != unix.EINPROGRESS {
		p.finish(c, result)
		unix.Close(fd)
		return
	}
	if !p.install(c, fd, result) {
		p.park(c, fd, host, result)
		unix.Close(c.fd)
	}
}

// install gives the program the host's socket, connected or about to be, and
// answers. It owns fd and c's, unless it fails.
func (p *program) install(c socket, fd int, result unix.Errno) bool {
	if c.blocking {
		sys.SetFlags(fd, unix.O_RDWR)
	}
	if sys.ReplaceDescriptor(p.fd, c.id, fd, c.theirs, c.about.flags&unix.O_CLOEXEC != 0) != 0 {
		if c.blocking {
			sys.SetFlags(fd, unix.O_RDWR|unix.O_NONBLOCK)
		}
		return false
	}
	if c.udp {
		p.s.count(&p.s.stats.Datagram)
	} else {
		p.s.count(&p.s.stats.Connected)
	}
	own := c.fd
	c.fd = fd
	if c.blocking && result == unix.EINPROGRESS {
		p.await(c)
	} else {
		p.finish(c, result)
	}
	unix.Close(own) // the last of the program's own; it takes its time
	return true
}

// parkedFor is how long a connection waits for its call to be made again: a
// signal came between, whose handler restarts it (SA_RESTART).
const parkedFor = time.Second

// parkedKey names a call.
type parkedKey struct {
	tid    uint32
	theirs int
	cookie uint64
	host   netip.AddrPort
}

type parked struct {
	fd     int
	result unix.Errno
	since  time.Time
}

// park keeps a socket whose call went away. It owns fd.
func (p *program) park(c socket, fd int, host netip.AddrPort, result unix.Errno) {
	id, err := socketCookie(c.fd)
	if err != nil || !p.account.hold(1) {
		unix.Close(fd)
		return
	}
	p.parked.put(parkedKey{p.note.TID, c.theirs, id, host}, parked{fd, result, time.Now()})
}

// unparkOne finds the socket of a call that is made again.
func (p *program) unparkOne(c socket, host netip.AddrPort) (parked, bool) {
	if p.parked.len() == 0 {
		return parked{}, false
	}
	id, err := socketCookie(c.fd)
	if err != nil {
		return parked{}, false
	}
	k, ok := p.parked.take(parkedKey{p.note.TID, c.theirs, id, host})
	if ok {
		p.account.release(1)
	}
	return k, ok
}

// unpark closes what was parked before a time. Nothing looks at parked sockets without
// taking them, so the oldest come first.
func (p *program) unpark(before time.Time) {
	for {
		_, k, ok := p.parked.oldest()
		if !ok || !k.since.Before(before) {
			return
		}
		p.parked.evict()
	}
}
