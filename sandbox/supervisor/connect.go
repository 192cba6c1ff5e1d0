package supervisor

import (
	"errors"
	"net/netip"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// addressBytes is the longest address there is (struct sockaddr_storage).
const addressBytes = 128

// socket is the program's, in a call.
type socket struct {
	id       uint64 // of the call
	nr       int32
	fd       int // our duplicate
	theirs   int // the program's descriptor
	task     *task
	about    descriptor
	udp      bool // else of TCP, or MPTCP
	family   int
	bound    bool // has a port or an address
	blocking bool
}

// take duplicates the socket that a call is about. Where ok is false the call has been
// dealt with: it is not about a socket that we judge, or that can't be found out. A call
// about a socket of which nothing is known is refused.
func (p *program) take() (c socket, ok bool) {
	c.id, c.nr, c.theirs = p.note.ID, p.note.Nr, int(int32(p.note.Args[0]))
	fd, t, err := p.duplicate(c.theirs)
	switch {
	case errors.Is(err, unix.EBADF):
		p.reply(unix.EBADF)
		return c, false
	case err != nil:
		p.reply(refusalFor(err))
		return c, false
	}
	c.fd, c.task = fd, t
	switch ours, err := p.identify(&c); {
	case errors.Is(err, unix.ENOTSOCK), errors.Is(err, unix.EBADF): // EBADF: opened with O_PATH
		p.finish(c, err.(unix.Errno))
		return c, false
	case err != nil:
		p.finish(c, refusalFor(err))
		return c, false
	case !ours:
		p.elsewhere(c)
		return c, false
	}
	if t.stranger {
		p.finish(c, unix.EACCES)
		return c, false
	}
	if c.about, err = p.describe(t, c.theirs); err != nil {
		p.finish(c, refusalFor(err))
		return c, false
	}
	c.blocking = c.about.flags&unix.O_NONBLOCK == 0
	return c, true
}

// identify finds out whether a socket is one that we judge, and what it is like. Without
// an error both answers are certain.
func (p *program) identify(c *socket) (ours bool, err error) {
	proto, errno := sys.GetInt(c.fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if errno != 0 {
		return false, errno
	}
	c.udp = p.isUDP(proto)
	if !isTCP(proto) && !c.udp {
		return false, nil
	}
	kind, errno := sys.GetInt(c.fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if errno != 0 {
		return false, errno
	}
	if kind != c.kind() {
		return false, nil // a raw one, or netlink's
	}
	at, errno := sys.LocalAddress(c.fd)
	if errno != 0 {
		return false, errno
	}
	own := at.AddrPort()
	c.family, c.bound = at.Family(), own.Port() != 0 || own.IsValid() && !own.Addr().IsUnspecified()
	return c.family == unix.AF_INET || c.family == unix.AF_INET6, nil
}

// elsewhere is for calls about sockets of other kinds. It owns c's descriptor.
func (p *program) elsewhere(c socket) {
	if c.nr == unix.SYS_BIND && !p.KeptFromTCP {
		p.bindElsewhere(c)
		return
	}
	unix.Close(c.fd)
	p.proceed()
}

// isTCP tells whether a protocol's sockets are ours to judge. In the place of an
// MPTCP socket comes one of TCP: the slower tiers speak no MPTCP toward the
// network either.
func isTCP(proto int) bool { return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_MPTCP }

// isUDP tells whether a protocol is UDP, and its sockets ours to judge as well.
func (p *program) isUDP(proto int) bool {
	return proto == unix.IPPROTO_UDP && p.s.cfg.JudgeUDP != nil
}

// readAddress copies the address of a call, once. What it was a moment later does
// not matter.
func (p *program) readAddress() ([]byte, unix.Errno) {
	size := int32(p.note.Args[2])
	if size < 0 || size > addressBytes {
		return nil, unix.EINVAL
	}
	raw := p.address[:size]
	return raw, sys.ReadMemory(int(p.note.TID), uintptr(p.note.Args[1]), raw)
}

// destination is an address for a socket of a family. ok is false for what is none: the
// kernel has errors of its own for that.
func destination(raw []byte, family int) (a netip.AddrPort, ok bool) {
	if len(raw) < 2 || int(native.Uint16(raw)) != family {
		return a, false
	}
	port := func() uint16 { return uint16(raw[2])<<8 | uint16(raw[3]) }
	switch {
	case family == unix.AF_INET && len(raw) >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port()), true
	case family == unix.AF_INET6 && len(raw) >= unix.SizeofSockaddrInet6:
		a := netip.AddrFrom16([16]byte(raw[8:24])).Unmap()
		return netip.AddrPortFrom(a, port()), native.Uint32(raw[24:]) == 0 // no scope
	}
	return a, false
}

// connect carries out connect(2).
func (p *program) connect() {
	c, ok := p.take()
	if !ok {
		return
	}
	raw, errno := p.readAddress()
	if !p.lives() {
		unix.Close(c.fd)
		return
	}
	result, owed := p.debt(c)
	where, err := cookie(c.fd)
	switch {
	case owed:
		p.finish(c, result)
	case errno != 0:
		p.finish(c, errno)
	case err != nil:
		p.finish(c, refusalFor(err))
	case where == p.s.host && c.udp:
		p.connectElsewhere(c, raw)
	case where == p.s.host:
		p.connectAgain(c, raw)
	case where != p.s.guest:
		p.s.keeps(c, whyNamespace)
		p.perform(c, raw)
	default:
		if why := p.substitute(c, raw); why != "" {
			p.s.keeps(c, why)
			p.perform(c, raw)
		}
	}
}

// finish answers a call and lets its socket go.
func (p *program) finish(c socket, result unix.Errno) {
	p.answer(c, result)
	unix.Close(c.fd)
}

// connectElsewhere carries out connect(2) on a UDP socket of the host's. It can't be
// one of the inside any more.
func (p *program) connectElsewhere(c socket, raw []byte) {
	if len(raw) >= 2 && native.Uint16(raw) == unix.AF_UNSPEC {
		p.finish(c, sys.ConnectWaiting(c.fd, raw))
		return
	}
	host, why := p.judge(raw, c)
	if why != "" || c.family == unix.AF_INET && !host.Addr().Is4() {
		p.finish(c, unix.EADDRNOTAVAIL)
		return
	}
	to := address(host, c.family)
	p.finish(c, sys.ConnectWaiting(c.fd, to.Raw()))
}

// connectAgain carries out connect(2) on a socket of the host's: the program asks
// what became of it, or wants it for another destination.
func (p *program) connectAgain(c socket, raw []byte) {
	if len(raw) >= 2 && native.Uint16(raw) == unix.AF_UNSPEC {
		p.finish(c, unix.EOPNOTSUPP) // no program gets one of the host's that is not connected
		return
	}
	if connecting(c.fd) {
		if c.blocking {
			p.await(c)
		} else {
			p.finish(c, unix.EALREADY)
		}
		return
	}
	failed := sys.HasError(c.fd)
	result := probe(c.fd, c.family)
	if failed || slices.Contains(begun, result) {
		p.finish(c, result)
		return
	}
	// It failed before, and the program knows.
	if why := p.substituteAgain(c, raw); why != "" {
		p.s.keeps(c, why)
		p.finish(c, unix.EADDRNOTAVAIL)
	}
}

// perform connects the program's own socket, in its own namespace.
func (p *program) perform(c socket, raw []byte) {
	if c.udp { // there is nothing to wait for
		p.finish(c, sys.ConnectWaiting(c.fd, raw))
		return
	}
	if c.blocking {
		// Nobody but the caller's thread can wait on a socket that is not connected,
		// so nobody notices.
		if err := unix.SetNonblock(c.fd, true); err != nil {
			p.finish(c, unix.ENOBUFS)
			return
		}
	}
	result := p.blocking.connect(c.fd, raw, &p.s.over)
	if c.blocking {
		_ = unix.SetNonblock(c.fd, false)
	}
	if c.blocking && (result == unix.EINPROGRESS || result == unix.EALREADY) {
		p.await(c)
		return
	}
	p.finish(c, result)
}

// connecting reports whether a socket's handshake is under way.
func connecting(fd int) bool {
	const synSent, synReceived = 2, 3 // TCP_SYN_SENT, TCP_SYN_RECV (include/net/tcp_states.h)
	var state [1]byte                 // tcp_info begins with it
	_, errno := sys.GetOption(fd, unix.IPPROTO_TCP, unix.TCP_INFO, state[:])
	return errno == 0 && (state[0] == synSent || state[0] == synReceived)
}

// probe is connect(2) with an address that leads nowhere: a socket that is
// connecting returns how that went, and forgets; a connected one EISCONN
// (__inet_stream_connect, net/ipv4/af_inet.c). The address is a whole one, since
// security modules refuse shorter ones (SELinux).
func probe(fd, family int) unix.Errno {
	to := netip.AddrFrom4([4]byte{224, 0, 0, 1}) // no TCP to multicast addresses
	if family == unix.AF_INET6 {
		to = netip.IPv6LinkLocalAllNodes()
	}
	nowhere := address(netip.AddrPortFrom(to, 1), family)
	return sys.ConnectWaiting(fd, nowhere.Raw())
}

// begun are results of probe that only a socket has which has been connecting.
var begun = []unix.Errno{0, unix.EALREADY, unix.EINPROGRESS, unix.EISCONN, unix.ECONNABORTED}

// address is where a socket of a family is to be connected to.
func address(to netip.AddrPort, family int) sys.Address {
	return sys.MakeAddress(to, family == unix.AF_INET6)
}
