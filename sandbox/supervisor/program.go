package supervisor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// program supervises the processes under one filter. Its thread, locked by run, owns all
// fields except those marked as safe for concurrent use. A program can block this thread
// through its memory or by locking a socket; it delays no other program by that.
type program struct {
	Program
	s       *Supervisor
	fd      int          // of Notifications
	users   atomic.Int32 // number of users of fd: run, and queued binds
	epoll   int
	account *account // safe for concurrent use

	call    sys.Notification // the current call
	address [addressBytes]byte

	threads    lru[uint32, *thread] // by thread id
	processes  map[int]*process     // by process id
	changes    uint64               // calls so far that duplicate descriptors or make epoll instances
	lastChange time.Time
	rare       rareSockets
	spare      map[spareKey]int // unconnected sockets of the host for the next connect
	parked     lru[parkedKey, parked]
	pending    pendingConnects
	outside    outsideCache
	binds      bindQueue       // safe for concurrent use
	connecting connectWatchdog // safe for concurrent use

	mu          sync.Mutex
	undelivered lru[resultKey, unix.Errno] // results of interrupted calls
}

// Limits of one program's tables. A full table drops its oldest entry.
const (
	maxThreads     = 64
	maxParked      = 64
	maxUndelivered = 256
	maxRare        = 512
	maxOutside     = 512
)

func newProgram(s *Supervisor, cfg Program, account *account) (*program, error) {
	p := &program{
		Program: cfg, s: s, fd: int(cfg.Notifications.Fd()), account: account,
		processes: map[int]*process{}, spare: map[spareKey]int{},
		pending: pendingConnects{byFD: map[int]*pendingConnect{}, byThread: map[uint32]*pendingConnect{}},
	}
	p.users.Store(1)
	p.threads = lru[uint32, *thread]{max: maxThreads, onDrop: p.closeThread}
	p.parked = lru[parkedKey, parked]{max: maxParked, onDrop: func(k parked) { p.closeHeld(k.fd) }}
	p.undelivered.max, p.rare.sockets.max, p.outside.answers.max = maxUndelivered, maxRare, maxOutside
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make epoll instance: %w", err)
	}
	sys.WakeHere(p.fd)
	for _, fd := range []int{p.fd, s.stop} {
		if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			unix.Close(p.epoll)
			return nil, fmt.Errorf("wait for calls: %w", err)
		}
	}
	return p, nil
}

// run answers the program's calls until all its processes have exited or the Supervisor
// ends. An error makes the Supervisor fail.
func (p *program) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer p.close()
	var events [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(p.epoll, events[:], p.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for calls: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if p.s.stopped.Load() {
				return nil
			}
			switch int(e.Fd) {
			case p.s.stop:
				return nil
			case p.fd:
				if e.Events&unix.EPOLLIN == 0 {
					return nil // EPOLLHUP or EPOLLERR: all processes have exited
				}
				if sys.NextNotification(p.fd, &p.call) == 0 {
					p.handle()
				}
			default:
				w := p.pending.byFD[int(e.Fd)]
				if w != nil && w.generation == e.Pad && !handshaking(w.fd) {
					p.complete(w, probe(w.fd, w.family))
				}
			}
		}
		if p.parked.len() > 0 {
			p.unpark(time.Now().Add(-parkedFor))
		}
		p.expire()
	}
}

// timeout returns how long to wait for a call, in milliseconds; -1 means forever.
func (p *program) timeout() int {
	at := p.pending.earliest
	if p.parked.len() > 0 {
		at = earlier(at, time.Now().Add(parkedFor))
	}
	if at.IsZero() {
		return -1
	}
	return max(0, int(time.Until(at).Milliseconds())+1)
}

// close frees the resources of the program's thread.
func (p *program) close() {
	for _, w := range p.pending.byFD {
		p.drop(w)
	}
	p.parked.clear()
	p.threads.clear()
	for _, fd := range p.spare {
		p.closeHeld(fd)
	}
	clear(p.spare)
	unix.Close(p.epoll)
	p.release()
	p.account.close()
}

// release gives up one use of Notifications, and closes them after the last.
func (p *program) release() {
	if p.users.Add(-1) == 0 {
		p.Notifications.Close()
	}
}

// closeHeld closes a descriptor that is charged to the program.
func (p *program) closeHeld(fd int) {
	unix.Close(fd)
	p.account.release(1)
}

// hold charges the program for one more descriptor. If its share is used up, hold first
// closes descriptors that only save time. It reports whether the descriptor is granted.
func (p *program) hold() bool {
	for !p.account.hold(1) {
		if !p.closeCached() {
			return false
		}
	}
	return true
}

// closeCached closes the descriptors of one cache entry. It reports whether there was one.
func (p *program) closeCached() bool {
	for key, fd := range p.spare {
		delete(p.spare, key)
		p.closeHeld(fd)
		return true
	}
	return p.threads.evict()
}

func (p *program) handle() {
	if old := p.pending.byThread[p.call.TID]; old != nil {
		p.drop(old) // a signal interrupted that call
	}
	if p.call.Arch != sys.NativeArch {
		p.reply(unix.ENOSYS)
		return
	}
	switch p.call.Nr {
	case unix.SYS_CONNECT:
		p.connect()
	case unix.SYS_BIND:
		p.bind()
	case unix.SYS_LISTEN:
		p.listen()
	case unix.SYS_SETSOCKOPT:
		p.setsockopt()
	default:
		if !slices.ContainsFunc(supervisedCalls, func(c call) bool { return c.nr == uint32(p.call.Nr) }) {
			p.reply(unix.ENOSYS) // for example a call of x32
			return
		}
		// The call duplicates a descriptor or makes an epoll instance. It connects and
		// binds nothing, even if its arguments change.
		p.changes++
		p.lastChange = time.Now()
		p.continueCall()
	}
}

// continueCall makes the kernel carry out the current call, whose arguments may have
// changed in the meantime. It is used for calls that are harmless to any socket, and for
// calls about a socket that is neither TCP nor, if it matters, UDP. If another thread has
// put a TCP socket under that descriptor by then, Landlock keeps the program from
// connecting or binding it. A program that is not Landlocked gains nothing: connect and
// listen need a port, and only bind, which is never continued for it, could choose one.
func (p *program) continueCall() { _ = sys.ContinueNotification(p.fd, p.call.ID) }

// reply makes the current call return 0 or fail with result.
func (p *program) reply(result unix.Errno) {
	_ = sys.AnswerNotification(p.fd, p.call.ID, result)
}

// waiting reports whether the caller still waits, and the Supervisor still runs.
func (p *program) waiting() bool {
	return !p.s.stopped.Load() && sys.NotificationLives(p.fd, p.call.ID)
}

// answer makes a call return. If a signal has interrupted the call, answer saves the
// result for when the program repeats it. It is safe for concurrent use.
func (p *program) answer(c socket, result unix.Errno) {
	if sys.AnswerNotification(p.fd, c.callID, result) == 0 {
		return
	}
	if cookie, err := socketCookie(c.fd); err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.undelivered.put(resultKey{cookie, c.nr}, result)
	}
}

// resultKey identifies a call by its socket and system call number.
type resultKey struct {
	cookie uint64
	nr     int32
}

// undeliveredResult returns and removes the result of an interrupted call that the program
// repeats. It is safe for concurrent use.
func (p *program) undeliveredResult(c socket) (unix.Errno, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.undelivered.len() == 0 {
		return 0, false
	}
	cookie, err := socketCookie(c.fd)
	if err != nil {
		return 0, false
	}
	return p.undelivered.take(resultKey{cookie, c.nr})
}

// connectWatchdog ends a connect(2) on a program's socket that blocks. It is safe for
// concurrent use.
type connectWatchdog struct {
	mu sync.Mutex
	fd int // 0 if there is no connect
}

// connectWithin is how long a non-blocking connect(2) may take.
const connectWithin = 50 * time.Millisecond

// connect calls connect(2) on a non-blocking socket. The program can make the socket
// blocking at any time. The call is then ended by shutting down the socket: the program
// has caused the loss of its own connection.
func (w *connectWatchdog) connect(fd int, to []byte, stopped *atomic.Bool) unix.Errno {
	w.set(fd)
	defer w.set(0)
	defer time.AfterFunc(connectWithin, w.interrupt).Stop()
	if stopped.Load() {
		return unix.EINTR
	}
	return sys.ConnectWaiting(fd, to)
}

func (w *connectWatchdog) set(fd int) {
	w.mu.Lock()
	w.fd = fd
	w.mu.Unlock()
}

func (w *connectWatchdog) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd > 0 {
		_ = unix.Shutdown(w.fd, unix.SHUT_RDWR)
	}
}

var errNoDescriptors = errors.New("the program's share of descriptors is used up")

// errnoFor returns the error of a call whose socket can't be examined because of err. Such
// a call is not carried out.
func errnoFor(err error) unix.Errno {
	if errors.Is(err, errNoDescriptors) {
		return unix.EAGAIN
	}
	var errno unix.Errno
	errors.As(err, &errno)
	switch errno {
	case unix.EBADF, unix.ENOTSOCK: // the call would fail with it anyway
		return errno
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN: // the supervisor lacks resources
		return unix.EAGAIN
	}
	return unix.EACCES
}
