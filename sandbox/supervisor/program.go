package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// program is a filter whose calls come. It has a thread of its own, which run locks, and
// all but what is said otherwise belongs to that: what a program makes a call wait for
// (its memory, a lock of its socket) waits here, and keeps no other program.
type program struct {
	Program
	s       *Supervisor
	fd      int          // of notifications
	users   atomic.Int32 // who may still answer a call: run, and calls of bind
	epoll   int
	account *account // safe for concurrent use

	note    sys.Notification // the call at hand
	address [addressBytes]byte

	tasks       lru[uint32, *task]
	processes   map[int]*process
	shuffles    uint64 // calls that change what sockets are known by
	lastShuffle time.Time
	rare        rareSockets
	spare       map[spareKey]int
	parked      lru[parkedKey, parked]
	waits       waits
	learned     learned
	binds       binds    // safe for concurrent use
	blocking    blocking // likewise

	mu   sync.Mutex
	owed lru[owedKey, unix.Errno] // results that nobody took
}

// Limits for one program, beside its account's. All tables drop the oldest entry.
const (
	maxTasks  = 64
	maxParked = 64
	maxOwed   = 256
	maxRare   = 512
	maxRoutes = 512
)

func newProgram(s *Supervisor, cfg Program, account *account) (*program, error) {
	p := &program{
		Program: cfg, s: s, fd: int(cfg.Notifications.Fd()), account: account,
		processes: map[int]*process{}, spare: map[spareKey]int{},
	}
	p.users.Store(1)
	p.tasks = lru[uint32, *task]{max: maxTasks, drop: func(_ uint32, t *task) { p.closeTask(t) }}
	p.parked = lru[parkedKey, parked]{max: maxParked, drop: func(_ parkedKey, k parked) { p.discard(k.fd) }}
	p.owed.max, p.rare.sockets.max, p.learned.outside.max = maxOwed, maxRare, maxRoutes
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

// run answers the program's calls until nobody is left who could make any, or the
// Supervisor ends. What it returns fails the Supervisor.
func (p *program) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer p.close()
	var events [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(p.epoll, events[:], p.patience())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for calls: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if p.s.over.Load() {
				return nil
			}
			switch int(e.Fd) {
			case p.s.stop:
				return nil
			case p.fd:
				if !p.serve(e.Events) {
					return nil
				}
			default:
				p.progress(int(e.Fd), e.Pad)
			}
		}
		p.tidy()
	}
}

// serve deals with what the notifications' descriptor has. It returns false when nobody
// is left who could call.
func (p *program) serve(events uint32) bool {
	if events&unix.EPOLLIN == 0 {
		return events&(unix.EPOLLHUP|unix.EPOLLERR) == 0
	}
	if sys.NextNotification(p.fd, &p.note) == 0 {
		p.handle()
	}
	return true
}

// patience is how long to wait for a call, in milliseconds.
func (p *program) patience() int {
	at, ok := p.waits.next()
	if p.parked.len() > 0 {
		if soon := time.Now().Add(parkedFor); !ok || soon.Before(at) {
			at, ok = soon, true
		}
	}
	if !ok {
		return -1
	}
	return max(0, int(time.Until(at).Milliseconds())+1)
}

// tidy gives back what was kept for calls that did not come, and answers those whose time
// is over.
func (p *program) tidy() {
	if p.parked.len() > 0 {
		p.unpark(time.Now().Add(-parkedFor))
	}
	p.expire()
}

// close frees what the program's thread has.
func (p *program) close() {
	p.waits.each(p.drop)
	p.parked.clear()
	p.tasks.clear()
	for _, fd := range p.spare {
		p.discard(fd)
	}
	clear(p.spare)
	unix.Close(p.epoll)
	p.release()
	p.account.close()
}

// release lets the notifications' descriptor go when nobody may answer any more.
func (p *program) release() {
	if p.users.Add(-1) == 0 {
		p.Notifications.Close()
	}
}

// discard closes a descriptor that was held beyond a call.
func (p *program) discard(fd int) {
	unix.Close(fd)
	p.account.release(1)
}

// room reports whether the program may hold one more descriptor, if need be in the place
// of one that is held to save time.
func (p *program) room() bool {
	for !p.account.hold(1) {
		if !p.giveUp() {
			return false
		}
	}
	return true
}

// giveUp closes a descriptor that is held to save time. It reports whether there was one.
func (p *program) giveUp() bool {
	for key, fd := range p.spare {
		delete(p.spare, key)
		p.discard(fd)
		return true
	}
	return p.tasks.evict()
}

// handle deals with one call.
func (p *program) handle() {
	p.waits.left(p.note.TID, p.drop)
	if p.note.Arch != sys.NativeArch {
		p.reply(unix.ENOSYS)
		return
	}
	switch p.note.Nr {
	case unix.SYS_CONNECT:
		p.connect()
	case unix.SYS_BIND:
		p.bind()
	case unix.SYS_LISTEN:
		p.listen()
	case unix.SYS_SETSOCKOPT:
		p.setsockopt()
	default:
		if !isOurs(p.note.Nr) {
			p.reply(unix.ENOSYS) // x32, for one
			return
		}
		// One that changes what a socket is known by: it connects and binds nothing,
		// whatever its arguments become.
		p.shuffles++
		p.lastShuffle = time.Now()
		p.proceed()
	}
}

// proceed has the kernel carry the call out, with whatever its arguments have become by
// then. It is for calls that do no harm to any socket, and for calls about a socket that
// is known to be neither TCP's nor, where that matters, UDP's (elsewhere). Should another
// thread have put such a one in its place meanwhile, the program may not connect or bind
// it (KeptFromTCP), or gets nothing by it: to connect and to listen takes a port, and only
// bind finds one.
func (p *program) proceed() { _ = sys.ContinueNotification(p.fd, p.note.ID) }

// reply has the call return 0, or fail.
func (p *program) reply(result unix.Errno) {
	_ = sys.AnswerNotification(p.fd, p.note.ID, result)
}

// lives reports whether the caller still waits, and may be served.
func (p *program) lives() bool {
	return !p.s.over.Load() && sys.NotificationLives(p.fd, p.note.ID)
}

// answer has the call return. A result that nobody takes, because a signal has come
// between, is owed to the same call when it is made again. It is safe for concurrent use.
func (p *program) answer(c socket, result unix.Errno) {
	if sys.AnswerNotification(p.fd, c.id, result) == 0 {
		return
	}
	if cookie, err := socketCookie(c.fd); err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.owed.put(owedKey{cookie, c.nr}, result)
	}
}

// owedKey names a socket, and what was called.
type owedKey struct {
	cookie uint64
	nr     int32
}

// debt is the result that is owed to the caller. It is safe for concurrent use.
func (p *program) debt(c socket) (unix.Errno, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed.len() == 0 {
		return 0, false
	}
	cookie, err := socketCookie(c.fd)
	if err != nil {
		return 0, false
	}
	return p.owed.take(owedKey{cookie, c.nr})
}

// blocking is a socket of the program's on which its thread may block. It is safe for
// concurrent use.
type blocking struct {
	mu sync.Mutex
	fd int // 0: none
}

// notBlocked is how long connect(2) may take that does not wait.
const notBlocked = 50 * time.Millisecond

// connect is connect(2) on a socket that does not block. That is the program's to change
// meanwhile, so the call is ended when it takes too long: the program has chosen to lose
// the connection.
func (b *blocking) connect(fd int, to []byte, over *atomic.Bool) unix.Errno {
	b.set(fd)
	defer b.set(0)
	defer time.AfterFunc(notBlocked, b.interrupt).Stop()
	if over.Load() {
		return unix.EINTR
	}
	return sys.ConnectWaiting(fd, to)
}

func (b *blocking) set(fd int) {
	b.mu.Lock()
	b.fd = fd
	b.mu.Unlock()
}

// interrupt ends a call that blocks.
func (b *blocking) interrupt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd > 0 {
		_ = unix.Shutdown(b.fd, unix.SHUT_RDWR)
	}
}

var errNoRoom = errors.New("the program's share of descriptors is in use")

// ours reports whether an error is of this process, which lacks descriptors or memory,
// and says nothing about the program.
func ours(errno unix.Errno) bool {
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN:
		return true
	}
	return false
}

// refusalFor is what a call fails with where an error kept us from finding out what it is
// about. Nothing is carried out then.
func refusalFor(err error) unix.Errno {
	var errno unix.Errno
	if errors.Is(err, errNoRoom) || errors.As(err, &errno) && ours(errno) || errors.Is(err, os.ErrDeadlineExceeded) {
		return unix.EAGAIN
	}
	return unix.EACCES
}
