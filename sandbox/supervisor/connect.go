package supervisor

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// addressBytes is the longest address there is (struct sockaddr_storage).
const addressBytes = 128

// socket is the program's, in a call.
type socket struct {
	from     *source
	id       uint64 // of the call
	nr       int32
	fd       int // our duplicate; -1: none
	theirs   int // the program's descriptor
	task     *task
	about    descriptor
	udp      bool // else of TCP, or MPTCP
	family   int
	bound    bool // has a port or an address
	blocking bool
}

// take duplicates the socket that a call is about. Where ok is false the call has
// been dealt with: it is not about a socket that we judge.
func (s *Supervisor) take() (c socket, ok bool) {
	c.from, c.id, c.nr, c.theirs = s.from, s.note.ID, s.note.Nr, int(int32(s.note.Args[0]))
	fd, t, errno := s.duplicate(c.theirs)
	switch errno {
	case 0:
	case unix.EBADF:
		s.reply(unix.EBADF)
		return c, false
	default:
		c.fd = -1
		s.leave(c) // a program that we may not look into has no socket of the host's either
		return c, false
	}
	c.fd, c.task = fd, t
	proto, errno := sys.GetInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	c.udp = s.isUDP(proto)
	if errno == 0 && (isTCP(proto) || c.udp) {
		var at sys.Address
		if at, errno = sys.LocalAddress(fd); errno == 0 {
			own := at.AddrPort()
			c.family, c.bound = at.Family(), own.Port() != 0 || own.IsValid() && !own.Addr().IsUnspecified()
		}
	}
	if errno != 0 || c.family != unix.AF_INET && c.family != unix.AF_INET6 {
		s.leave(c)
		return c, false
	}
	if c.about, ok = t.describe(c.theirs); !ok {
		unix.Close(fd)
		s.reply(unix.EACCES) // nor may it be carried out by anybody
		return c, false
	}
	c.blocking = c.about.flags&unix.O_NONBLOCK == 0
	return c, true
}

// leave is for calls that are not about such a socket. It owns c's.
func (s *Supervisor) leave(c socket) {
	if c.nr == unix.SYS_BIND && !c.from.KeptFromTCP {
		s.bindElsewhere(c)
		return
	}
	if c.fd >= 0 {
		unix.Close(c.fd)
	}
	s.proceed()
}

// isTCP tells whether a protocol's sockets are ours to judge. In the place of an
// MPTCP socket comes one of TCP: the slower tiers speak no MPTCP toward the
// network either.
func isTCP(proto int) bool { return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_MPTCP }

// isUDP tells whether a protocol is UDP, and its sockets ours to judge as well.
func (s *Supervisor) isUDP(proto int) bool {
	return proto == unix.IPPROTO_UDP && s.cfg.JudgeUDP != nil
}

// readAddress copies the address of a call, once. What it was a moment later does
// not matter.
func (s *Supervisor) readAddress() ([]byte, unix.Errno) {
	size := int32(s.note.Args[2])
	if size < 0 || size > addressBytes {
		return nil, unix.EINVAL
	}
	raw := s.address[:size]
	return raw, sys.ReadMemory(int(s.note.TID), uintptr(s.note.Args[1]), raw)
}

// destination is an address for a socket of a family; ok is false for what is
// none, which the kernel has errors of its own for.
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
func (s *Supervisor) connect(ctx context.Context) {
	c, ok := s.take()
	if !ok {
		return
	}
	raw, errno := s.readAddress()
	if !s.lives() {
		unix.Close(c.fd)
		return
	}
	result, owed := s.debt(c)
	where, err := cookie(c.fd)
	switch {
	case owed:
		s.finish(c, result)
	case errno != 0:
		s.finish(c, errno)
	case err == nil && where == s.host && c.udp:
		s.connectElsewhere(c, raw)
	case err == nil && where == s.host:
		s.connectAgain(ctx, c, raw)
	default:
		if err != nil || where != s.guest {
			s.keeps(c, whyNamespace)
			s.perform(ctx, c, raw)
			return
		}
		if why := s.substitute(ctx, c, raw); why != "" {
			s.keeps(c, why)
			s.perform(ctx, c, raw)
		}
	}
}

// finish answers a call and lets its socket go.
func (s *Supervisor) finish(c socket, result unix.Errno) {
	s.answer(c, result)
	unix.Close(c.fd)
}

// substitute connects a socket of the host's in the place of the program's, and
// answers. It tells why that can't be, with nothing done.
func (s *Supervisor) substitute(ctx context.Context, c socket, raw []byte) string {
	host, why := s.judge(raw, c)
	if why != "" {
		return why
	}
	if why := s.unfit(c); why != "" {
		return why
	}
	if p, ok := s.unparkOne(c, host); ok {
		if !s.install(ctx, c, p.fd, p.result) {
			s.park(c, p.fd, host, p.result)
			unix.Close(c.fd)
		}
		return ""
	}
	if c.udp {
		return s.replace(ctx, c, host, s.datagram[c.family])
	}
	return s.replace(ctx, c, host, s.own[c.family])
}

// replace makes a socket of the host's like c and connects it.
func (s *Supervisor) replace(ctx context.Context, c socket, host netip.AddrPort, fresh options) string {
	if c.family == unix.AF_INET && !host.Addr().Is4() {
		return whyHost
	}
	key := spareKey{c.family, c.kind(), host.Addr().Is4(), host.Addr().IsLoopback()}
	fd, ok := s.spare[key]
	if ok {
		delete(s.spare, key)
	} else {
		var err error
		if fd, err = s.cfg.Host.Socket(c.family, c.kind(), host.Addr()); err != nil {
			return whyHost
		}
	}
	if !s.copyAll(c.fd, fd, fresh, false) {
		unix.Close(fd)
		return whyOption
	}
	s.join(ctx, c, fd, host)
	// Until the next call there is time to make a socket for it.
	if fd, err := s.cfg.Host.Socket(c.family, c.kind(), host.Addr()); err == nil {
		s.spare[key] = fd
	}
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

// judge tells where the host's socket is to be connected to, or why there is to
// be none.
func (s *Supervisor) judge(raw []byte, c socket) (netip.AddrPort, string) {
	to, ok := destination(raw, c.family)
	if !ok {
		return to, whyAddress
	}
	judge := s.cfg.JudgeUDP
	if !c.udp {
		judge = s.cfg.Judge
		if at, ok := s.lent(to); ok {
			return at, ""
		}
	}
	if !s.routes.outside(to.Addr()) {
		return to, whyInside
	}
	host, ok := judge(to)
	if !ok {
		return to, whyPolicy
	}
	return host, ""
}

// unfit tells why a substitute for a socket would be less than the same.
func (s *Supervisor) unfit(c socket) string {
	switch {
	case c.about.flags&unix.O_ASYNC != 0:
		return whyAsync
	case c.bound:
		return whyBound
	case c.from.MayConfigureHost:
		return whyPrivileged
	case !c.udp && !s.fenced():
		return whyPorts
	case s.peculiar(c.fd):
		return whyOption
	}
	return s.entangled(c)
}

// join connects the host's socket and puts it in place. It owns fd.
func (s *Supervisor) join(ctx context.Context, c socket, fd int, host netip.AddrPort) {
	result := sys.ConnectNow(fd, address(host, c.family))
	if result == unix.EINPROGRESS {
		// A handshake on this host is over when connect returns, which asking tells.
		if again := probe(fd, c.family); again != unix.EALREADY {
			result = again
		}
	}
	if !c.udp && (result == 0 || result == unix.EINPROGRESS) {
		s.cfg.Host.Connected(fd, host.Addr())
		if s.fence(fd) != nil {
			result = unix.ENOBUFS
		}
	}
	if result != 0 && result != unix.EINPROGRESS {
		s.finish(c, result)
		unix.Close(fd)
		return
	}
	if !s.install(ctx, c, fd, result) {
		s.park(c, fd, host, result)
		unix.Close(c.fd)
	}
}

// install gives the program the host's socket, connected or about to be, and
// answers. It owns fd and c's, unless it fails.
func (s *Supervisor) install(ctx context.Context, c socket, fd int, result unix.Errno) bool {
	var waits *os.File
	if c.blocking {
		if result == unix.EINPROGRESS {
			waits = pollable(fd) // Go's poller takes it as long as it is non-blocking
		}
		sys.SetFlags(fd, unix.O_RDWR)
	}
	if sys.ReplaceDescriptor(c.from.fd, c.id, fd, c.theirs, c.about.flags&unix.O_CLOEXEC != 0) != 0 {
		if waits != nil {
			waits.Close()
		}
		if c.blocking {
			sys.SetFlags(fd, unix.O_RDWR|unix.O_NONBLOCK)
		}
		return false
	}
	if c.udp {
		s.count(&s.stats.Datagram)
	} else {
		s.count(&s.stats.Connected)
	}
	own := c.fd
	c.fd = fd
	if waits != nil {
		s.await(ctx, c, waits)
	} else {
		s.finish(c, result)
	}
	unix.Close(own) // the last of the program's own; it takes its time
	return true
}

// connectElsewhere carries out connect(2) on a UDP socket of the host's. It can't be
// one of the inside any more.
func (s *Supervisor) connectElsewhere(c socket, raw []byte) {
	if len(raw) >= 2 && native.Uint16(raw) == unix.AF_UNSPEC {
		s.finish(c, sys.ConnectWaiting(c.fd, raw))
		return
	}
	host, why := s.judge(raw, c)
	if why != "" || c.family == unix.AF_INET && !host.Addr().Is4() {
		s.finish(c, unix.EADDRNOTAVAIL)
		return
	}
	to := address(host, c.family)
	s.finish(c, sys.ConnectWaiting(c.fd, to.Raw()))
}

// connectAgain carries out connect(2) on a socket of the host's: the program asks
// what became of it, or wants it for another destination.
func (s *Supervisor) connectAgain(ctx context.Context, c socket, raw []byte) {
	if len(raw) >= 2 && native.Uint16(raw) == unix.AF_UNSPEC {
		s.finish(c, unix.EOPNOTSUPP) // nobody shall have one of the host's that is not connected
		return
	}
	if connecting(c.fd) {
		if !c.blocking {
			s.finish(c, unix.EALREADY)
			return
		}
		if unix.SetNonblock(c.fd, true) == nil {
			waits := pollable(c.fd)
			_ = unix.SetNonblock(c.fd, false)
			s.await(ctx, c, waits)
			return
		}
	}
	failed := sys.HasError(c.fd)
	result := probe(c.fd, c.family)
	if failed || slices.Contains(begun, result) {
		s.finish(c, result)
		return
	}
	// It failed before, and the program knows.
	if why := s.substituteAgain(ctx, c, raw); why != "" {
		s.keeps(c, why)
		s.finish(c, unix.EADDRNOTAVAIL)
	}
}

// substituteAgain is substitute for a socket of the host's that is not connected.
func (s *Supervisor) substituteAgain(ctx context.Context, c socket, raw []byte) string {
	host, why := s.judge(raw, c)
	if why != "" {
		return why
	}
	if !s.fenced() {
		return whyPorts
	}
	if why := s.entangled(c); why != "" {
		return why
	}
	return s.replace(ctx, c, host, s.ordinary[c.family])
}

// perform connects the program's own socket, in its own namespace.
func (s *Supervisor) perform(ctx context.Context, c socket, raw []byte) {
	if c.udp { // there is nothing to wait for
		s.finish(c, sys.ConnectWaiting(c.fd, raw))
		return
	}
	if c.blocking {
		// Nobody but the caller's thread can wait on a socket that is not connected,
		// so nobody notices.
		if err := unix.SetNonblock(c.fd, true); err != nil {
			s.finish(c, unix.ENOBUFS)
			return
		}
	}
	// The flag is the program's to change meanwhile: then this waits, and whoever
	// else of it wants a connection, until the network ends.
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) })
	result := sys.ConnectWaiting(c.fd, raw)
	stop()
	if !c.blocking {
		s.finish(c, result)
		return
	}
	if result == unix.EINPROGRESS || result == unix.EALREADY {
		waits := pollable(c.fd)
		_ = unix.SetNonblock(c.fd, false)
		s.await(ctx, c, waits)
		return
	}
	_ = unix.SetNonblock(c.fd, false)
	s.finish(c, result)
}

// pollable gives a duplicate of a non-blocking descriptor to Go's poller.
func pollable(fd int) *os.File {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(own), "connection")
}

// await answers a blocking connect when the connection is there or has failed, as
// long as the socket's SO_SNDTIMEO allows. It owns c's descriptor and waits.
func (s *Supervisor) await(ctx context.Context, c socket, waits *os.File) {
	if waits == nil {
		s.finish(c, unix.EAGAIN)
		return
	}
	ok := s.later(c, func() {
		stop := context.AfterFunc(ctx, func() { _ = waits.SetWriteDeadline(time.Unix(1, 0)) })
		defer stop()
		if tv, err := unix.GetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO); err == nil && (tv.Sec != 0 || tv.Usec != 0) {
			_ = waits.SetWriteDeadline(time.Now().Add(time.Duration(tv.Nano())))
		}
		raw, err := waits.SyscallConn()
		if err == nil {
			err = raw.Write(func(uintptr) bool { return !connecting(c.fd) })
		}
		waits.Close()
		switch {
		case ctx.Err() != nil: // nobody is answered any more
		case err != nil:
			s.answer(c, unix.EINPROGRESS)
		default:
			s.answer(c, probe(c.fd, c.family))
		}
	})
	if !ok {
		waits.Close()
	}
}

// later has a goroutine answer a call. It owns c's descriptor. Where too many are
// answered so already it says that, and ok is false.
func (s *Supervisor) later(c socket, answer func()) (ok bool) {
	if s.pending.Add(1) > maxPending {
		s.pending.Add(-1)
		s.finish(c, unix.EAGAIN)
		return false
	}
	c.from.users.Add(1)
	s.waiting.Go(func() {
		defer s.pending.Add(-1)
		defer c.from.release()
		defer unix.Close(c.fd)
		answer()
	})
	return true
}

// connecting tells whether a socket's handshake is under way.
func connecting(fd int) bool {
	const synSent, synReceived = 2, 3 // TCP_SYN_SENT, TCP_SYN_RECV (include/net/tcp_states.h)
	var state [1]byte                 // tcp_info begins with it
	_, errno := sys.GetOption(fd, unix.IPPROTO_TCP, unix.TCP_INFO, state[:])
	return errno == 0 && (state[0] == synSent || state[0] == synReceived)
}

// probe is connect(2) with an address that leads nowhere: a socket that is
// connecting tells how that went, and forgets; a connected one EISCONN
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
func (s *Supervisor) park(c socket, fd int, host netip.AddrPort, result unix.Errno) {
	id, err := socketCookie(c.fd)
	if err != nil || len(s.parked) >= maxPending {
		unix.Close(fd)
		return
	}
	key := parkedKey{s.note.TID, c.theirs, id, host}
	if p, ok := s.parked[key]; ok {
		unix.Close(p.fd)
	}
	s.parked[key] = parked{fd, result, time.Now()}
}

// unparkOne finds the socket of a call that is made again.
func (s *Supervisor) unparkOne(c socket, host netip.AddrPort) (parked, bool) {
	if len(s.parked) == 0 {
		return parked{}, false
	}
	id, err := socketCookie(c.fd)
	if err != nil {
		return parked{}, false
	}
	key := parkedKey{s.note.TID, c.theirs, id, host}
	p, ok := s.parked[key]
	delete(s.parked, key)
	return p, ok
}

// unpark closes what was parked before a time.
func (s *Supervisor) unpark(before time.Time) {
	for key, p := range s.parked {
		if p.since.Before(before) {
			unix.Close(p.fd)
			delete(s.parked, key)
		}
	}
}
