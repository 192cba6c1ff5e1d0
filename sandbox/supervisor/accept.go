package supervisor

import (
	"maps"
	"net/netip"
	"sync"
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

// maxServers bounds the listeners that are remembered.
const maxServers = 4096

// maxWaiters bounds calls that wait for a client, each with a descriptor.
const maxWaiters = 1024

// servers are listeners of the program's own, by cookie.
type servers map[uint64]*server

type server struct {
	family  int
	offered bool // else its clients are not offered: no port leads there
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

	generation int32 // of its event
}

// mayAccept tells whether a program may get sockets of the host's by accept. Another
// one's listener may be any program's.
func (s *Supervisor) mayAccept(from *source) bool {
	return s.cfg.Ports != nil && s.cfg.Tell != nil && !from.KeptFromTCP && !from.MayConfigureHost
}

// offer has the clients of a listener offered to us.
func (s *Supervisor) offer(c socket) {
	id, err := socketCookie(c.fd)
	w, ok := listenerOf(c)
	if !s.mayAccept(c.from) || !ok || err != nil {
		return
	}
	l := s.servers[id]
	if l == nil {
		s.forgetServers()
		l = &server{}
		s.servers[id] = l
	}
	l.family, l.offered = c.family, s.cfg.Ports.Offer(w)
}

// forgetServers makes room for one more. Listeners that are gone are not told apart:
// those that are not are looked at again.
func (s *Supervisor) forgetServers() {
	if len(s.servers) < maxServers {
		return
	}
	used := map[*server]bool{}
	for _, a := range s.waiters {
		used[a.listener] = true
	}
	maps.DeleteFunc(s.servers, func(_ uint64, l *server) bool { return !used[l] && len(l.returned) == 0 })
}

// server is what is known of a listener; nil: it is none of TCP inside.
func (s *Supervisor) server(fd int) *server {
	id, err := socketCookie(fd)
	if err != nil {
		return nil
	}
	if l := s.servers[id]; l != nil {
		return l
	}
	proto, errno := sys.GetInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	where, err := cookie(fd)
	own, errno2 := sys.LocalAddress(fd)
	if errno != 0 || errno2 != 0 || err != nil || !isTCP(proto) || where != s.guest || !listens(fd) {
		return nil
	}
	s.offer(socket{from: s.from, fd: fd, family: own.Family()})
	return s.servers[id]
}

// accept carries out accept(2) on such a listener. On others the kernel does: no
// listener of a program's that is not KeptFromTCP is the host's.
func (s *Supervisor) accept() {
	n := &s.note
	flags := 0
	if n.Nr == unix.SYS_ACCEPT4 {
		flags = int(int32(n.Args[3]))
	}
	if !s.mayAccept(s.from) || flags&^(unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) != 0 {
		s.proceed()
		return
	}
	fd, _, errno := s.duplicate(int(int32(n.Args[0])))
	if errno != 0 {
		s.proceed()
		return
	}
	l := s.server(fd)
	if l == nil || !l.offered {
		unix.Close(fd)
		s.proceed()
		return
	}
	a := &acceptance{
		from: s.from, id: n.ID, tid: int(n.TID), fd: fd, listener: l,
		address: uintptr(n.Args[1]), size: uintptr(n.Args[2]), flags: flags,
	}
	a.blocking = !a.nonblocking()
	if s.try(a) {
		unix.Close(a.fd)
	} else {
		s.wait(a)
	}
	s.wake(l)
}

// wake has calls that wait take what was returned to their listener, of which no event
// tells.
func (s *Supervisor) wake(l *server) {
	for _, a := range s.waiters {
		if len(l.returned) == 0 {
			return
		}
		if a.listener == l {
			s.retry(a)
		}
	}
}

// nonblocking tells whether the listener is so now.
func (a *acceptance) nonblocking() bool {
	state, err := unix.FcntlInt(uintptr(a.fd), unix.F_GETFL, 0)
	return err != nil || state&unix.O_NONBLOCK != 0
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
	case result == unix.EMFILE, result == unix.ENFILE: // of ours
		_ = sys.ContinueNotification(a.from.fd, a.id)
		return true
	case result != 0:
		_ = sys.AnswerNotification(a.from.fd, a.id, result)
		return true
	}
	arrival, theirs, ok := s.arrived(a, own)
	switch {
	case !ok && s.give(a, own) != 0:
		a.listener.returned = append(a.listener.returned, returned{own, time.Now()})
		s.returned++
		return true
	case !ok:
	case s.give(a, theirs) != 0:
		arrival.Again()
		resetOnClose(own.fd) // nobody has heard of it
	default:
		arrival.Keep()
		unix.Close(theirs.fd)
		s.count(&s.stats.Accepted)
		resetOnClose(own.fd)
	}
	unix.Close(own.fd)
	return true
}

// next is the program's own socket of a client.
func (s *Supervisor) next(a *acceptance) (accepted, unix.Errno) {
	if l := a.listener; len(l.returned) > 0 {
		return s.unreturn(l), 0
	}
	if !a.nonblocking() {
		// Who accepts without asking us may be faster: it must not make us wait. The
		// program may clear the flag again at that moment. Then it loses its listener,
		// rather than have everybody wait for a client of its.
		if unix.SetNonblock(a.fd, true) != nil {
			return accepted{}, unix.ENOBUFS
		}
		defer func() { _ = unix.SetNonblock(a.fd, false) }()
		defer shutAfter(a.fd, acceptWithin)()
	}
	fd, peer, errno := sys.Accept(a.fd)
	return accepted{fd, peer}, errno
}

// acceptWithin is how long accepting without waiting can take at most.
const acceptWithin = 100 * time.Millisecond

// shutAfter has a listener accept nobody any more after a time, unless stop is called
// before.
func shutAfter(fd int, d time.Duration) (stop func()) {
	var mu sync.Mutex
	stopped := false
	timer := time.AfterFunc(d, func() {
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			_ = unix.Shutdown(fd, unix.SHUT_RD)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
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
func (s *Supervisor) give(a *acceptance, c accepted) unix.Errno {
	flags := unix.O_RDWR
	if a.flags&unix.SOCK_NONBLOCK != 0 {
		flags |= unix.O_NONBLOCK
	}
	sys.SetFlags(c.fd, flags)
	result := s.tell(a, &c.peer)
	if result == 0 {
		result = sys.AnswerDescriptor(a.from.fd, a.id, c.fd, a.flags&unix.SOCK_CLOEXEC != 0)
	}
	if result != 0 {
		sys.SetFlags(c.fd, unix.O_RDWR|unix.O_NONBLOCK)
		_ = sys.AnswerNotification(a.from.fd, a.id, result)
	}
	return result
}

// tell has the peer's address written where the caller wants it. A caller that leaves
// for a signal's handler at that moment, and from there for somewhere else than back,
// finds it on its stack.
func (s *Supervisor) tell(a *acceptance, peer *sys.Address) unix.Errno {
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
	return s.cfg.Tell(Telling{
		TID: a.tid, Notifications: a.from.fd, ID: a.id,
		At: a.address, What: raw[:min(int(room), len(raw))], SizeAt: a.size, Size: uint32(len(raw)),
	})
}

// wait has a call wait for a client. It owns a's descriptor.
func (s *Supervisor) wait(a *acceptance) {
	if len(s.waiters) >= maxWaiters {
		s.dropDead()
	}
	generation, err := s.watch(a.fd)
	if len(s.waiters) >= maxWaiters || err != nil {
		_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, a.fd, nil)
		unix.Close(a.fd)
		s.proceed()
		return
	}
	a.generation = generation
	a.from.users.Add(1)
	if tv, err := unix.GetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && (tv.Sec != 0 || tv.Usec != 0) {
		a.until = time.Now().Add(time.Duration(tv.Nano()))
	}
	s.waiters[a.fd] = a
}

// retry is for a call whose listener has somebody.
func (s *Supervisor) retry(a *acceptance) {
	if s.waiters[a.fd] == a && s.try(a) {
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
	unix.Close(a.fd)
	delete(s.waiters, a.fd)
	a.from.release()
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
			unix.Close(s.unreturn(l).fd)
		}
	}
}

// resetOnClose has closing a socket mean a RST to its peer.
func resetOnClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}
