package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Config says by what rules to supervise.
type Config struct {
	// Fresh4 and Fresh6 are TCP sockets of the program's network namespace that
	// nobody has changed: what they are like is not copied. Nil: none of the family.
	Fresh4, Fresh6 *os.File
	// Routes and News are NETLINK_ROUTE sockets of that namespace, and Interface the
	// device there that leads out.
	Routes, News *os.File
	Interface    string
	// Judge tells where the host's socket for a destination is to be connected to;
	// ok is false for a connection that must take the other tiers, such as one that
	// is refused. It is called by one goroutine and must not block.
	Judge func(destination netip.AddrPort) (host netip.AddrPort, ok bool)
	// JudgeUDP is Judge for UDP; nil: UDP sockets stay the program's own. With one of
	// the host's it can send to any address.
	JudgeUDP func(destination netip.AddrPort) (host netip.AddrPort, ok bool)
	// Host makes the host's sockets.
	Host Host
	// Ports are published ones; nil: none.
	Ports Ports
	// Bind carries out bind(2) for programs that are not kept from TCP
	// (Program.KeptFromTCP); nil: those may not bind anything. It is called by one
	// goroutine at a time. Left says that nothing was done.
	Bind func(Binding) unix.Errno
}

// Binding is a call of bind(2) to be made as the caller would have made it: with
// its credentials, root and working directory. What is read of it is its own if
// the notification lives after that.
type Binding struct {
	TID           int // the thread
	Notifications int
	ID            uint64
	Socket        int // a duplicate
	Address       []byte
}

// Left is what Config.Bind says of a caller that had left. bind(2) never does.
const Left = unix.Errno(0xffff)

// Program is what has a filter's notifications come.
type Program struct {
	// Notifications is the descriptor that AddNotifyFilter or an OCI runtime got,
	// for Filter or Profile. Add takes it over.
	Notifications *os.File
	// KeptFromTCP says that no thread of it can connect or bind TCP sockets
	// (Restrict). Of others no bind is ever continued, and none listens with a
	// socket of the host's.
	KeptFromTCP bool
	// MayConfigureHost says that it has capabilities which reach as far as the
	// host's network: with a socket of the host's it could change that. It gets none.
	MayConfigureHost bool
}

// Host makes sockets of the host.
type Host interface {
	// Socket makes a non-blocking socket of a family (unix.AF_INET, AF_INET6) and a
	// kind (SOCK_STREAM: of TCP, SOCK_DGRAM: of UDP) for an address, with what the
	// network's configuration says about such.
	Socket(family, kind int, to netip.Addr) (int, error)
	// Connected tunes a TCP socket whose connection has begun.
	Connected(fd int, to netip.Addr)
}

// Ports are those of the host that lead inside. A listener of the program's on
// such a port becomes one of the host's.
type Ports interface {
	// Lend makes the host's socket for a listener of the program's. It is bound, and
	// the caller's. ok is false where no port leads there, or such a socket can't be
	// had.
	Lend(Listener) (l Loan, ok bool)
}

// Listener is what the program's listening socket is like.
type Listener struct {
	Inside    netip.AddrPort // where it is bound
	Family    int            // unix.AF_INET or AF_INET6
	Only6     bool           // IPV6_V6ONLY
	ReusePort bool           // SO_REUSEPORT
}

// Loan is a listening socket of the host's that the program has.
type Loan struct {
	FD int
	At netip.AddrPort // where it is bound
	// Lives tells whether somebody still has the socket.
	Lives func() bool
	// End gives the port back when nobody has the socket any more. It is called until
	// it tells that it has.
	End func() bool
}

// Stats count what became of calls.
type Stats struct {
	Connected uint64            // on a socket of the host's
	Listening uint64            // listeners likewise
	Datagram  uint64            // UDP sockets that are the host's
	Kept      map[string]uint64 // connections on a socket of the program's, by why
}

// maxPending bounds calls that wait for a connection.
const maxPending = 4096

// Supervisor carries out a program's calls. Make it with New.
type Supervisor struct {
	cfg   Config
	stop  int // an eventfd
	epoll int

	generations atomic.Int32 // of descriptors that were watched

	guest, host   uint64          // cookies of the network namespaces
	own, ordinary map[int]options // by family: of fresh TCP sockets there, and of the host's
	datagram      map[int]options // and of UDP's
	routes        *routes
	taken         int // a port that is nobody's to bind
	reserved      []int
	fenceTried    time.Time
	fenceHolds    bool
	tasks         map[uint32]*task
	programs      map[int]*program
	anonymous     uint64 // inode of epoll instances
	shuffles      uint64 // calls that change what sockets are known by
	lastShuffle   time.Time
	parked        map[parkedKey]parked
	loans         []loan
	collected     time.Time       // when it was last looked whether loans have ended
	rare          map[uint64]bool // sockets, by cookie, with options of that kind; true: that can't be copied
	spare         map[spareKey]int
	pending       atomic.Int64 // connects
	binds         binds
	waiting       sync.WaitGroup
	from          *source // whose call it is
	note          sys.Notification
	address       [addressBytes]byte
	mu            sync.Mutex
	sources       map[int]*source        // by descriptor
	owed          map[owedKey]unix.Errno // results that nobody took
	stats         Stats
}

// New looks at the sockets it was given and reserves a port. The error names what
// the kernel lacks. Close it, whether it ran or not.
func New(cfg Config) (*Supervisor, error) {
	s := &Supervisor{
		cfg: cfg, stop: -1, epoll: -1, sources: map[int]*source{},
		own: map[int]options{}, ordinary: map[int]options{}, datagram: map[int]options{}, rare: map[uint64]bool{},
		tasks: map[uint32]*task{}, programs: map[int]*program{}, parked: map[parkedKey]parked{}, owed: map[owedKey]unix.Errno{}, spare: map[spareKey]int{},
	}
	s.stats.Kept = map[string]uint64{}
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, fmt.Errorf("supervise calls: %w", err)
	}
	return s, nil
}

func (s *Supervisor) prepare() error {
	err := mayLook()
	if err != nil {
		return err
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make eventfd: %w", err)
	}
	for family, file := range map[int]*os.File{unix.AF_INET: s.cfg.Fresh4, unix.AF_INET6: s.cfg.Fresh6} {
		if file == nil {
			continue
		}
		s.own[family] = readOptions(int(file.Fd()), family, false)
		if s.guest, err = cookie(int(file.Fd())); err != nil {
			return fmt.Errorf("tell network namespaces apart: %w", err)
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make socket: %w", err)
		}
		s.ordinary[family] = readOptions(fd, family, false)
		s.host, err = cookie(fd)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("tell network namespaces apart: %w", err)
		}
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("make socket: %w", err)
		}
		s.datagram[family] = readOptions(fd, family, true)
		unix.Close(fd)
	}
	if s.anonymous, err = anonymousInode(); err != nil {
		return fmt.Errorf("make epoll instance: %w", err)
	}
	if err := s.reserve(); err != nil {
		return err
	}
	if s.routes, err = newRoutes(int(s.cfg.Routes.Fd()), int(s.cfg.News.Fd()), s.cfg.Interface); err != nil {
		return err
	}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("make epoll instance: %w", err)
	}
	_, err = s.watch(s.stop)
	return err
}

// Close frees what New made and Add took over. It must not run any more.
func (s *Supervisor) Close() {
	s.freePort()
	for _, fd := range []*int{&s.stop, &s.epoll} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.sources {
		src.release()
	}
	clear(s.sources)
}

// Stats are the counters. It is safe for concurrent use.
func (s *Supervisor) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.stats
	all.Kept = make(map[string]uint64, len(s.stats.Kept))
	for why, n := range s.stats.Kept {
		all.Kept[why] = n
	}
	return all
}

// Run answers calls until ctx ends (nil). It locks a thread. When it has
// returned, calls that it would have answered fail with ENOSYS once the
// Supervisor is closed.
func (s *Supervisor) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer context.AfterFunc(ctx, func() { _, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })()
	waitCtx, cancel := context.WithCancel(ctx)
	defer s.end()
	defer cancel()
	var events [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(s.epoll, events[:], s.patience())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for calls: %w", err)
		}
		calls := 0
		for _, e := range events[:max(n, 0)] {
			switch int(e.Fd) {
			case s.stop:
				return nil
			default:
				events[calls] = e
				calls++
			}
		}
		for _, e := range events[:calls] {
			s.serve(waitCtx, int(e.Fd), e.Pad, e.Events)
		}
		s.tidy()
	}
}

// lookAround is how often a Supervisor that has something to give back looks
// whether it may.
const lookAround = 200 * time.Millisecond

// patience is how long to wait for a call, in milliseconds.
func (s *Supervisor) patience() int {
	if len(s.parked) == 0 && len(s.loans) == 0 {
		return -1
	}
	return int(lookAround.Milliseconds())
}

// tidy gives back what was kept for calls that did not come, or that nobody makes any
// more.
func (s *Supervisor) tidy() {
	if len(s.parked) > 0 {
		s.unpark(time.Now().Add(-parkedFor))
	}
	if len(s.loans) > 0 && time.Since(s.collected) >= lookAround {
		s.collect()
	}
}

// end waits for those who wait, and closes everything.
func (s *Supervisor) end() {
	s.waiting.Wait()
	s.unpark(time.Now().Add(time.Hour))
	for _, l := range s.loans {
		if l.inner >= 0 {
			unix.Close(l.inner)
		}
	}
	s.loans = nil
	for _, t := range s.tasks {
		t.close()
	}
	for _, fd := range s.spare {
		unix.Close(fd)
	}
}

// handle deals with one call.
func (s *Supervisor) handle(ctx context.Context) {
	if s.note.Arch != sys.NativeArch {
		s.reply(unix.ENOSYS)
		return
	}
	switch s.note.Nr {
	case unix.SYS_CONNECT:
		s.connect(ctx)
	case unix.SYS_BIND:
		s.bind()
	case unix.SYS_LISTEN:
		s.listen()
	case unix.SYS_SETSOCKOPT:
		s.setsockopt()
	default:
		if !isOurs(s.note.Nr) {
			s.reply(unix.ENOSYS) // x32, for one
			return
		}
		// One that changes what a socket is known by.
		s.shuffles++
		s.lastShuffle = time.Now()
		s.proceed()
	}
}

// proceed lets the kernel carry the call out, which is not about a TCP socket; if
// it should have become so, the program may not (KeptFromTCP), or gets nothing by
// it: to connect and to listen takes a port, and only bind finds one.
func (s *Supervisor) proceed() { _ = sys.ContinueNotification(s.from.fd, s.note.ID) }

// reply has the call return 0, or fail.
func (s *Supervisor) reply(result unix.Errno) {
	_ = sys.AnswerNotification(s.from.fd, s.note.ID, result)
}

// lives tells whether the caller still waits.
func (s *Supervisor) lives() bool { return sys.NotificationLives(s.from.fd, s.note.ID) }

// answer has the call return. What nobody takes, because a signal has come
// between, is owed to the same call when it is made again.
func (s *Supervisor) answer(c socket, result unix.Errno) {
	if sys.AnswerNotification(c.from.fd, c.id, result) == 0 {
		return
	}
	if cookie, err := socketCookie(c.fd); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.owed) >= maxPending {
			clear(s.owed)
		}
		s.owed[owedKey{cookie, c.nr}] = result
	}
}

// owedKey names a socket, and what was called.
type owedKey struct {
	cookie uint64
	nr     int32
}

// debt is the result that is owed to who makes a call again.
func (s *Supervisor) debt(c socket) (unix.Errno, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.owed) == 0 {
		return 0, false
	}
	cookie, err := socketCookie(c.fd)
	if err != nil {
		return 0, false
	}
	key := owedKey{cookie, c.nr}
	result, ok := s.owed[key]
	delete(s.owed, key)
	return result, ok
}

// keeps counts a connection that takes another tier.
func (s *Supervisor) keeps(c socket, why string) {
	if c.udp {
		return
	}
	s.mu.Lock()
	s.stats.Kept[why]++
	s.mu.Unlock()
}

func (s *Supervisor) count(n *uint64) {
	s.mu.Lock()
	*n++
	s.mu.Unlock()
}

// cookie tells a socket's network namespace (SO_NETNS_COOKIE, Linux 5.14).
func cookie(fd int) (uint64, error) {
	c, errno := sys.GetUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errno != 0 {
		return 0, errno
	}
	return c, nil
}

// socketCookie tells sockets apart.
func socketCookie(fd int) (uint64, error) {
	c, errno := sys.GetUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if errno != 0 {
		return 0, errno
	}
	return c, nil
}
