package supervisor

import (
	"net/netip"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Reasons why a connection takes another tier. They are keys of Stats.Kept, and so of JSON
// output that scripts may read: don't change them.
const (
	whyUnknown    = "its descriptors can't be looked at"
	whyDuplicated = "the socket was duplicated"
	whyEpoll      = "the socket waits in an epoll instance already"
	whyBound      = "the socket is bound"
	whyOption     = "the socket has an option that can't be had on the host's"
	whyAsync      = "the socket sends signals"
	whyPolicy     = "the policy does not simply let it through"
	whyInside     = "the destination is inside"
	whyNamespace  = "the socket is of another network namespace"
	whyPrivileged = "the program may configure the host's network"
	whyPorts      = "the host's range of ports has changed, and no longer keeps its sockets from new ones"
	whyHost       = "the host's socket could not be made"
	whyAddress    = "the address is none that leads anywhere"
)

// replace connects a socket of the host, puts it in place of the program's socket, and
// answers the call. If that is not possible, it does nothing and returns the reason.
func (p *program) replace(c socket, raw []byte) string {
	host, why := p.judge(raw, c)
	if why != "" {
		return why
	}
	switch {
	case c.info.flags&unix.O_ASYNC != 0:
		return whyAsync
	case c.bound:
		return whyBound
	case p.MayConfigureHost:
		return whyPrivileged
	case !c.udp && !p.s.fence.effective():
		return whyPorts
	case p.uncopyable(c.fd):
		return whyOption
	}
	if why := p.shared(c); why != "" {
		return why
	}
	if k, ok := p.takeParked(c, host); ok {
		if !p.install(c, k.fd, k.result) {
			p.park(c, k.fd, host, k.result)
			unix.Close(c.fd)
		}
		return ""
	}
	if c.udp {
		return p.connectHost(c, host, p.s.udpDefaults[c.family])
	}
	return p.connectHost(c, host, p.s.guestDefaults[c.family])
}

// replaceAgain is replace for a socket of the host whose connect has failed.
func (p *program) replaceAgain(c socket, raw []byte) string {
	host, why := p.judge(raw, c)
	if why != "" {
		return why
	}
	if !p.s.fence.effective() {
		return whyPorts
	}
	if why := p.shared(c); why != "" {
		return why
	}
	return p.connectHost(c, host, p.s.hostDefaults[c.family])
}

// judge returns the address to which the host's socket connects, or the reason why the
// program keeps its own socket.
func (p *program) judge(raw []byte, c socket) (netip.AddrPort, string) {
	to, ok := destination(raw, c.family)
	if !ok {
		return to, whyAddress
	}
	judge := p.s.cfg.JudgeUDP
	if !c.udp {
		judge = p.s.cfg.Judge
		if at, ok := p.s.loans.hostAddr(to, p.s.routes); ok {
			return at, ""
		}
	}
	if !p.outside.get(to.Addr(), p.s.routes) {
		return to, whyInside
	}
	host, ok := judge(to)
	if !ok {
		return to, whyPolicy
	}
	return host, ""
}

// spareKey is the part of a destination on which an unconnected socket of the host
// depends.
type spareKey struct {
	family, kind  int
	to4, loopback bool
}

// connectHost connects a socket of the host in place of c and answers the call. It copies
// those options of c that differ from the defaults. If the socket can't be made or an
// option can't be copied, connectHost does nothing and returns the reason.
func (p *program) connectHost(c socket, host netip.AddrPort, defaults options) string {
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
	if !p.copyOptions(c.fd, fd, defaults, false) {
		unix.Close(fd)
		return whyOption
	}
	p.connectFD(c, fd, host)
	// The program runs now. Use the time to make a socket for the next connect.
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

// connectFD connects a socket of the host and installs it. It takes ownership of fd and
// c.fd.
func (p *program) connectFD(c socket, fd int, host netip.AddrPort) {
	result := sys.ConnectNow(fd, address(host, c.family))
	if result == unix.EINPROGRESS {
		// A handshake with an address of this host has ended when connect returns, and
		// probe returns its outcome.
		if again := probe(fd, c.family); again != unix.EALREADY {
			result = again
		}
	}
	if !c.udp && (result == 0 || result == unix.EINPROGRESS) {
		p.s.cfg.Host.Connected(fd, host.Addr())
		if p.s.fence.apply(fd) != nil {
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

// install gives the program the host's socket, whose connect has returned result, and
// answers the call. It takes ownership of fd and c.fd, unless it fails because the caller
// is gone.
func (p *program) install(c socket, fd int, result unix.Errno) bool {
	if c.blocking {
		_ = unix.SetNonblock(fd, false)
	}
	if sys.ReplaceDescriptor(p.fd, c.callID, fd, c.guestFD, c.info.flags&unix.O_CLOEXEC != 0) != 0 {
		if c.blocking {
			_ = unix.SetNonblock(fd, true)
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
	unix.Close(own) // the last reference to the program's socket: slow, so after the answer
	return true
}

// parkedFor is how long a connected socket waits for the program to repeat a connect that
// a signal has interrupted (SA_RESTART).
const parkedFor = time.Second

type parkedKey struct {
	tid     uint32
	guestFD int
	cookie  uint64
	host    netip.AddrPort
}

// parked is a socket of the host whose connect returned result.
type parked struct {
	fd     int
	result unix.Errno
	since  time.Time
}

// park keeps a socket whose call was interrupted. It takes ownership of fd.
func (p *program) park(c socket, fd int, host netip.AddrPort, result unix.Errno) {
	cookie, err := socketCookie(c.fd)
	if err != nil || !p.account.hold(1) {
		unix.Close(fd)
		return
	}
	p.parked.put(parkedKey{p.call.TID, c.guestFD, cookie, host}, parked{fd, result, time.Now()})
}

// takeParked returns the parked socket of a connect that the program repeats. The caller
// owns its descriptor.
func (p *program) takeParked(c socket, host netip.AddrPort) (parked, bool) {
	if p.parked.len() == 0 {
		return parked{}, false
	}
	cookie, err := socketCookie(c.fd)
	if err != nil {
		return parked{}, false
	}
	k, ok := p.parked.take(parkedKey{p.call.TID, c.guestFD, cookie, host})
	if ok {
		p.account.release(1)
	}
	return k, ok
}

// unpark closes the sockets parked before a time. Parked sockets are never read without
// being taken, so the table is ordered by age.
func (p *program) unpark(before time.Time) {
	for {
		_, k, ok := p.parked.oldest()
		if !ok || !k.since.Before(before) {
			return
		}
		p.parked.evict()
	}
}
