package supervisor

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// addressBytes is the size of the longest address (struct sockaddr_storage).
const addressBytes = 128

// socket is a program's socket in a call.
type socket struct {
	callID   uint64
	nr       int32 // of the system call
	fd       int   // our duplicate
	guestFD  int   // the program's descriptor
	thread   *thread
	inet     bool // it is one that the supervisor may replace; the fields below are set
	info     descriptor
	udp      bool // otherwise it is TCP or MPTCP
	family   int
	bound    bool // to a port or an address
	blocking bool
}

func (c *socket) kind() int {
	if c.udp {
		return unix.SOCK_DGRAM
	}
	return unix.SOCK_STREAM
}

// lookUp duplicates and examines the socket of the current call. If ok is false, the call
// has been answered: it is continued since the socket is not one that the supervisor
// replaces, or refused since the socket can't be examined.
func (p *program) lookUp() (c socket, ok bool) {
	c.callID, c.nr, c.guestFD = p.call.ID, p.call.Nr, int(int32(p.call.Args[0]))
	var err error
	if c.fd, c.thread, err = p.duplicate(c.guestFD); err != nil {
		p.reply(errnoFor(err))
		return c, false
	}
	errno := p.identify(&c)
	switch {
	case errno != 0: // EBADF if it was opened with O_PATH
		p.finish(c, errnoFor(errno))
		return c, false
	case !c.inet && c.nr == unix.SYS_BIND && !p.Landlocked:
		return c, true
	case !c.inet:
		unix.Close(c.fd)
		p.continueCall()
		return c, false
	case c.thread.foreign:
		p.finish(c, unix.EACCES)
		return c, false
	}
	if c.info, err = p.describe(c.thread, c.guestFD); err != nil {
		p.finish(c, errnoFor(err))
		return c, false
	}
	c.blocking = c.info.flags&unix.O_NONBLOCK == 0
	return c, true
}

// identify finds out what kind of socket c is. Without an error, c.inet is certain.
func (p *program) identify(c *socket) unix.Errno {
	proto, errno := sys.GetInt(c.fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if errno != 0 {
		return errno
	}
	c.udp = p.isUDP(proto)
	if !isTCP(proto) && !c.udp {
		return 0
	}
	kind, errno := sys.GetInt(c.fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if errno != 0 || kind != c.kind() { // a raw socket, or one of netlink
		return errno
	}
	at, errno := sys.LocalAddress(c.fd)
	own := at.AddrPort()
	c.family, c.bound = at.Family(), own.Port() != 0 || own.IsValid() && !own.Addr().IsUnspecified()
	c.inet = errno == 0 && (c.family == unix.AF_INET || c.family == unix.AF_INET6)
	return errno
}

// isTCP reports whether a protocol is TCP or MPTCP. A TCP socket replaces an MPTCP socket:
// the slower tiers don't speak MPTCP toward the network either.
func isTCP(proto int) bool { return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_MPTCP }

// isUDP reports whether a protocol is UDP and UDP sockets are replaced.
func (p *program) isUDP(proto int) bool {
	return proto == unix.IPPROTO_UDP && p.s.cfg.JudgeUDP != nil
}

// readAddress copies the address argument of the current call, once: a later change by the
// program has no effect.
func (p *program) readAddress() ([]byte, unix.Errno) {
	size := int32(p.call.Args[2])
	if size < 0 || size > addressBytes {
		return nil, unix.EINVAL
	}
	raw := p.address[:size]
	return raw, sys.ReadMemory(int(p.call.TID), uintptr(p.call.Args[1]), raw)
}

// destination parses an address for a socket of a family. ok is false if it is not a
// destination; the kernel has an error for each such case.
func destination(raw []byte, family int) (a netip.AddrPort, ok bool) {
	if len(raw) < 2 || int(native.Uint16(raw)) != family {
		return a, false
	}
	switch {
	case family == unix.AF_INET && len(raw) >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), binary.BigEndian.Uint16(raw[2:])), true
	case family == unix.AF_INET6 && len(raw) >= unix.SizeofSockaddrInet6:
		a := netip.AddrFrom16([16]byte(raw[8:24])).Unmap()
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(raw[2:])), native.Uint32(raw[24:]) == 0 // no scope
	}
	return a, false
}

// isDisconnect reports whether connect(2) with this address dissolves the association.
func isDisconnect(raw []byte) bool { return len(raw) >= 2 && native.Uint16(raw) == unix.AF_UNSPEC }

func (p *program) connect() {
	c, ok := p.lookUp()
	if !ok {
		return
	}
	raw, errno := p.readAddress()
	if !p.waiting() {
		unix.Close(c.fd)
		return
	}
	result, repeated := p.undeliveredResult(c)
	where, err := netCookie(c.fd)
	switch {
	case repeated:
		p.finish(c, result)
	case errno != 0:
		p.finish(c, errno)
	case err != nil:
		p.finish(c, errnoFor(err))
	case where == p.s.hostNet && c.udp:
		p.reconnectUDP(c, raw)
	case where == p.s.hostNet:
		p.reconnect(c, raw)
	case where != p.s.guestNet:
		p.s.countKept(c, whyNamespace)
		p.connectOwn(c, raw)
	default:
		if why := p.replace(c, raw); why != "" {
			p.s.countKept(c, why)
			p.connectOwn(c, raw)
		}
	}
}

// finish answers a call and closes its socket.
func (p *program) finish(c socket, result unix.Errno) {
	p.answer(c, result)
	unix.Close(c.fd)
}

// reconnectUDP carries out connect(2) on a UDP socket of the host. The socket can't reach
// addresses inside any more.
func (p *program) reconnectUDP(c socket, raw []byte) {
	if isDisconnect(raw) {
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

// reconnect carries out connect(2) on a TCP socket of the host: the program asks for the
// outcome of its connect, or connects the socket anew after a failure.
func (p *program) reconnect(c socket, raw []byte) {
	if isDisconnect(raw) {
		p.finish(c, unix.EOPNOTSUPP) // a program never gets an unconnected socket of the host
		return
	}
	if handshaking(c.fd) {
		if c.blocking {
			p.await(c)
		} else {
			p.finish(c, unix.EALREADY)
		}
		return
	}
	failed := sys.HasError(c.fd)
	result := probe(c.fd, c.family)
	if failed || slices.Contains(connectOutcomes, result) {
		p.finish(c, result)
		return
	}
	// The earlier connect failed, and the program has been told.
	if why := p.replaceAgain(c, raw); why != "" {
		p.s.countKept(c, why)
		p.finish(c, unix.EADDRNOTAVAIL)
	}
}

// connectOwn connects the program's own socket, in its own namespace.
func (p *program) connectOwn(c socket, raw []byte) {
	if c.udp { // connect of a UDP socket does not block
		p.finish(c, sys.ConnectWaiting(c.fd, raw))
		return
	}
	if c.blocking {
		// The program does not notice: only the calling thread can use a socket that is
		// not connected yet.
		if err := unix.SetNonblock(c.fd, true); err != nil {
			p.finish(c, unix.ENOBUFS)
			return
		}
	}
	result := p.connecting.connect(c.fd, raw, &p.s.stopped)
	if c.blocking {
		_ = unix.SetNonblock(c.fd, false)
	}
	if c.blocking && (result == unix.EINPROGRESS || result == unix.EALREADY) {
		p.await(c)
		return
	}
	p.finish(c, result)
}

func handshaking(fd int) bool {
	const synSent, synReceived = 2, 3 // TCP_SYN_SENT, TCP_SYN_RECV (include/net/tcp_states.h)
	var state [1]byte                 // the first field of tcp_info
	_, errno := sys.GetOption(fd, unix.IPPROTO_TCP, unix.TCP_INFO, state[:])
	return errno == 0 && (state[0] == synSent || state[0] == synReceived)
}

// probe calls connect(2) with an unreachable address. On a socket whose connect has ended
// it returns the outcome and clears it; on a connected socket it returns EISCONN
// (__inet_stream_connect, net/ipv4/af_inet.c). The address is complete, since security
// modules such as SELinux refuse shorter ones.
func probe(fd, family int) unix.Errno {
	to := netip.AddrFrom4([4]byte{224, 0, 0, 1}) // TCP does not connect to multicast addresses
	if family == unix.AF_INET6 {
		to = netip.IPv6LinkLocalAllNodes()
	}
	multicast := address(netip.AddrPortFrom(to, 1), family)
	return sys.ConnectWaiting(fd, multicast.Raw())
}

// connectOutcomes are the results of probe on a socket that has been connecting.
var connectOutcomes = []unix.Errno{0, unix.EALREADY, unix.EINPROGRESS, unix.EISCONN, unix.ECONNABORTED}

// address converts a destination for a socket of a family.
func address(to netip.AddrPort, family int) sys.Address {
	return sys.MakeAddress(to, family == unix.AF_INET6)
}
