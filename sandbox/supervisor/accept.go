package supervisor

import (
	"net/netip"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Arrival is a client of a published port whose server has accepted it, and whose
// socket on the host is the caller's. Exactly one of Keep, Splice and Again is to be
// called.
type Arrival interface {
	// Socket is connected and non-blocking, of a family (unix.AF_INET, AF_INET6), and
	// its client's address is so on the host.
	Socket() (fd, family int, client netip.AddrPort)
	// Keep says that the server has the socket. The caller closes its own descriptor.
	Keep()
	// Splice has the bytes moved to the socket that the server has of its own.
	Splice()
	// Again has the server connected to once more, as if it had not accepted.
	Again()
}

// maxServers bounds the listeners whose clients are looked at; more than that have
// theirs as everybody has.
const maxServers = 4096

// maxWaiters bounds calls that wait for a client, each with a descriptor.
const maxWaiters = 1024

// servers are listeners of the program's own that published ports lead to, by cookie.
type servers map[uint64]*server

type server struct {
	family int
	// returned are sockets that were accepted for calls which had gone by then.
	returned []returned
}

type returned struct {
	accepted
	since time.Time
}

// accepted is a socket of the program's own, or the host's.
type accepted struct {
	fd   int
	peer sys.Address
}

// returnedFor is how long such a socket waits for the next call.
const returnedFor = 10 * time.Second

// acceptance is a call of accept(2).
type acceptance struct {
	from     *source
	id       uint64
	tid      int
	fd       int // a duplicate of the listener
	listener *server
	address  uintptr // where the client's address goes to; 0: nowhere
	size     uintptr // where its size is
	flags    int     // accept4(2)'s
	blocking bool
	until    time.Time // SO_RCVTIMEO; zero: for ever
}

// offer has the clients of a listener offered to us, if it is one that may get
// sockets of the host's.
func (s *Supervisor) offer(c socket) {
	if s.cfg.Ports == nil || c.from.KeptFromTCP || c.from.MayConfigureHost || len(s.servers) >= maxServers {
		return
	}
	w, ok := listenerOf(c)
	id, err := socketCookie(c.fd)
	if !ok || err != nil || !s.cfg.Ports.Offer(w) {
		return
	}
	if s.servers[id] == nil {
		s.servers[id] = &server{family: c.family}
	}
}

// accept carries out accept(2) on such a listener. On others the kernel does: no
// listener of a program's that is not KeptFromTCP is the host's.
func (s *Supervisor) accept() {
	n := &s.note
	flags := 0
	if n.Nr == unix.SYS_ACCEPT4 {
		flags = int(int32(n.Args[3]))
	}
	if len(s.servers) == 0 || s.from.KeptFromTCP || flags&^(unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) != 0 {
		s.proceed()
		return
	}
	fd, _, errno := s.duplicate(int(int32(n.Args[0])))
	if errno != 0 {
		s.proceed()
		return
	}
	id, err := socketCookie(fd)
	l := s.servers[id]
	if err != nil || l == nil {
		sys.CloseNow(fd)
		s.proceed()
		return
	}
	state, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	a := &acceptance{
		from: s.from, id: n.ID, tid: int(n.TID), fd: fd, listener: l,
		address: uintptr(n.Args[1]), size: uintptr(n.Args[2]), flags: flags, blocking: err == nil && state&unix.O_NONBLOCK == 0,
	}
	if s.try(a) {
		sys.CloseNow(a.fd)
		return
	}
	s.wait(a)
}

// try takes a client, and tells whether the call is over.
func (s *Supervisor) try(a *acceptance) (over bool) {
	if !sys.NotificationLives(a.from.fd, a.id) {
		return true
	}
	own, result := s.next(a)
	switch {
	case result == unix.EAGAIN && a.blocking:
		return false
	case result != 0:
		_ = sys.AnswerNotification(a.from.fd, a.id, result)
		return true
	}
	arrival, theirs, ok := s.arrived(a, own)
	switch {
	case !ok && a.give(own) != 0:
		a.listener.returned = append(a.listener.returned, returned{own, time.Now()})
		s.returned++
		return true
	case !ok:
	case a.give(theirs) != 0:
		arrival.Again()
		resetOnClose(own.fd) // nobody has heard of it
	default:
		arrival.Keep()
		sys.CloseNow(theirs.fd)
		s.count(&s.stats.Accepted)
		resetOnClose(own.fd)
	}
	sys.CloseNow(own.fd)
	return true
}

// next is the program's own socket of a client.
func (s *Supervisor) next(a *acceptance) (accepted, unix.Errno) {
	if l := a.listener; len(l.returned) > 0 {
		return s.unreturn(l), 0
	}
	if a.blocking {
		// Who accepts without asking us may be faster: it must not make us wait.
		if unix.SetNonblock(a.fd, true) != nil {
			return accepted{}, unix.ENOBUFS
		}
		defer func() { _ = unix.SetNonblock(a.fd, false) }()
	}
	fd, peer, errno := sys.AcceptNow(a.fd)
	return accepted{fd, peer}, errno
}

// arrived is the host's socket for the program's own, if it may have it.
func (s *Supervisor) arrived(a *acceptance, own accepted) (arrival Arrival, theirs accepted, ok bool) {
	at, errno := sys.LocalAddress(own.fd)
	if errno != 0 {
		return nil, theirs, false
	}
	if arrival, ok = s.cfg.Ports.Take(at.AddrPort(), own.peer.AddrPort()); !ok {
		return nil, theirs, false
	}
	fd, family, client := arrival.Socket()
	fresh := s.own[family]
	rare := s.isRare(a.fd) // what the listener was given its clients have
	if family != a.listener.family || !s.fenced() || s.peculiar(a.fd) ||
		!copyOptions(own.fd, fd, fresh.plain, true) || !copyBuffers(own.fd, fd) || rare && !copyOptions(own.fd, fd, fresh.rare, true) ||
		s.fence(fd) != nil {
		arrival.Splice()
		return nil, theirs, false
	}
	return arrival, accepted{fd, address(client, family)}, true
}

// give gives the caller a socket that was accepted for it, and its peer's address.
// The call is over then. Where the result is not 0 the caller has not got it.
func (a *acceptance) give(c accepted) unix.Errno {
	flags := unix.O_RDWR
	if a.flags&unix.SOCK_NONBLOCK != 0 {
		flags |= unix.O_NONBLOCK
	}
	sys.SetFlagsNow(c.fd, flags)
	result := a.tell(&c.peer)
	if result == 0 {
		result = sys.AnswerDescriptor(a.from.fd, a.id, c.fd, a.flags&unix.SOCK_CLOEXEC != 0)
	}
	if result != 0 {
		sys.SetFlagsNow(c.fd, unix.O_RDWR|unix.O_NONBLOCK)
		_ = sys.AnswerNotification(a.from.fd, a.id, result)
	}
	return result
}

// tell writes the peer's address where the caller wants it. A caller that leaves
// for a signal's handler between our look and the writing, and from there for
// somewhere else than back, finds it on its stack.
func (a *acceptance) tell(peer *sys.Address) unix.Errno {
	if a.address == 0 {
		return 0
	}
	var size [4]byte
	if errno := sys.ReadMemory(a.tid, a.size, size[:]); errno != 0 {
		return errno
	}
	room := int32(native.Uint32(size[:]))
	if room < 0 {
		return unix.EINVAL
	}
	raw := peer.Raw()
	native.PutUint32(size[:], uint32(len(raw)))
	if !sys.NotificationLives(a.from.fd, a.id) {
		return unix.ENOENT
	}
	if errno := sys.WriteMemory(a.tid, a.address, raw[:min(int(room), len(raw))]); errno != 0 {
		return errno
	}
	return sys.WriteMemory(a.tid, a.size, size[:])
}

// wait has a call wait for a client. It owns a's descriptor.
func (s *Supervisor) wait(a *acceptance) {
	if len(s.waiters) >= maxWaiters {
		s.dropDead()
	}
	if len(s.waiters) >= maxWaiters || s.watch(a.fd) != nil {
		sys.CloseNow(a.fd)
		s.proceed()
		return
	}
	if tv, err := unix.GetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && (tv.Sec != 0 || tv.Usec != 0) {
		a.until = time.Now().Add(time.Duration(tv.Nano()))
	}
	s.waiters[a.fd] = a
}

// retry is for a call whose listener has somebody.
func (s *Supervisor) retry(a *acceptance) {
	if s.try(a) {
		s.unwait(a)
	}
}

// dropDead lets go the listeners of calls that nobody makes any more.
func (s *Supervisor) dropDead() {
	for _, a := range s.waiters {
		late := !a.until.IsZero() && time.Now().After(a.until)
		if late {
			_ = sys.AnswerNotification(a.from.fd, a.id, unix.EAGAIN)
		}
		if late || !sys.NotificationLives(a.from.fd, a.id) {
			s.unwait(a)
		}
	}
}

// unwait ends waiting. Closing a duplicate of ours would not end it.
func (s *Supervisor) unwait(a *acceptance) {
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, a.fd, nil)
	sys.CloseNow(a.fd)
	delete(s.waiters, a.fd)
}

// unreturn takes a server's oldest socket out.
func (s *Supervisor) unreturn(l *server) accepted {
	r := l.returned[0]
	l.returned = l.returned[1:]
	s.returned--
	return r.accepted
}

// dropReturned closes what no call has come for since a time.
func (s *Supervisor) dropReturned(before time.Time) {
	for _, l := range s.servers {
		for len(l.returned) > 0 && l.returned[0].since.Before(before) {
			sys.CloseNow(s.unreturn(l).fd)
		}
	}
}

// resetOnClose has closing a socket mean a RST to its peer.
func resetOnClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}
