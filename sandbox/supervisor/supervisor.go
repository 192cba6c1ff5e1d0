package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Supervisor carries out programs' calls. Make it with New.
type Supervisor struct {
	cfg  Config
	stop int         // an eventfd that can be read from the end on
	over atomic.Bool // Run has ended, or ends

	// What New has found out.
	guest, host   uint64          // cookies of the network namespaces
	own, ordinary map[int]options // by family: of fresh TCP sockets there, and of the host's
	datagram      map[int]options // and of UDP's
	anonymous     uint64          // inode of epoll instances

	routes *routes
	fence  fence
	loans  loans
	budget *budget

	working sync.WaitGroup // programs that run
	failed  chan error     // the first error of theirs

	mu       sync.Mutex
	closed   bool
	running  bool
	programs map[*program]bool
	stats    Stats
}

// maxPrograms bounds the programs, each of which has a thread. Docker's default is a
// thousand containers on a bridge; here they share one network namespace.
const maxPrograms = 512

// ErrTooMany means that no more programs can be supervised for now.
var ErrTooMany = errors.New("too many programs are supervised already")

// ErrStuck means that a program keeps a thread of ours waiting, for its memory or for a
// socket that is locked meanwhile. Such a thread is left behind: it does nothing more, and
// frees what it has when the wait is over.
var ErrStuck = errors.New("a program keeps its supervisor waiting")

// New looks at the sockets it was given and reserves a port. The error names what
// the kernel lacks. Close it, whether it ran or not.
func New(cfg Config) (*Supervisor, error) {
	s := &Supervisor{
		cfg: cfg, stop: -1, own: map[int]options{}, ordinary: map[int]options{}, datagram: map[int]options{},
		budget: newBudget(cfg.Ledger), failed: make(chan error, 1), programs: map[*program]bool{},
		stats: Stats{Kept: map[string]uint64{}},
	}
	s.loans.began = make(chan struct{}, 1)
	s.fence.host = cfg.Host
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
		if err := s.compare(family, int(file.Fd())); err != nil {
			return err
		}
	}
	if s.anonymous, err = anonymousInode(); err != nil {
		return fmt.Errorf("make epoll instance: %w", err)
	}
	if err := s.fence.reserve(); err != nil {
		return err
	}
	s.routes, err = newRoutes(int(s.cfg.Routes.Fd()), int(s.cfg.News.Fd()), s.cfg.Interface)
	return err
}

// compare reads what fresh sockets of a family are like, inside and here.
func (s *Supervisor) compare(family, inside int) error {
	s.own[family] = readOptions(inside, family, false)
	var err error
	if s.guest, err = cookie(inside); err != nil {
		return fmt.Errorf("tell network namespaces apart: %w", err)
	}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make socket: %w", err)
		}
		if kind == unix.SOCK_STREAM {
			s.ordinary[family] = readOptions(fd, family, false)
			s.host, err = cookie(fd)
		} else {
			s.datagram[family] = readOptions(fd, family, true)
		}
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("tell network namespaces apart: %w", err)
		}
	}
	return nil
}

// Add supervises a program from now on. It is safe for concurrent use, before Run
// and while it runs. After an error, which wraps ErrTooMany or is the kernel's, the
// program is not supervised: calls that the filter stops fail with ENOSYS.
func (s *Supervisor) Add(p Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := os.ErrClosed
	if !s.closed && !s.over.Load() {
		err = s.add(p)
	}
	if err != nil {
		p.Notifications.Close()
		return fmt.Errorf("supervise program: %w", err)
	}
	return nil
}

// add is Add with mu held. It takes the descriptor over where it succeeds.
func (s *Supervisor) add(p Program) error {
	if len(s.programs) >= maxPrograms {
		return ErrTooMany
	}
	account, ok := openAccount(s.budget)
	if !ok {
		return fmt.Errorf("%w: the limit of open files or memory is reached", ErrTooMany)
	}
	one, err := newProgram(s, p, account)
	if err != nil {
		account.close()
		return err
	}
	s.programs[one] = true
	if s.running {
		s.begin(one)
	}
	return nil
}

// begin has a program's calls answered from now on. mu is held.
func (s *Supervisor) begin(p *program) {
	s.working.Go(func() {
		err := p.run()
		s.mu.Lock()
		delete(s.programs, p)
		s.mu.Unlock()
		if err != nil {
			select {
			case s.failed <- err:
			default:
			}
		}
	})
}

// Run answers calls until ctx ends (nil). Each program has a thread. Calls that come
// after Run fail with ENOSYS. ErrStuck is among the errors where threads are left behind.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	for p := range s.programs {
		s.begin(p)
	}
	s.mu.Unlock()
	look := time.NewTicker(lookAround)
	defer look.Stop()
	look.Stop()
	var err error
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case err = <-s.failed:
			ended = true
		case <-s.loans.began:
			look.Reset(lookAround)
		case <-look.C:
			if s.loans.collect(); s.loans.none() {
				look.Stop()
			}
		}
	}
	return errors.Join(err, s.end())
}

// lookAround is how often listeners that programs have are looked for.
const lookAround = 200 * time.Millisecond

// letGo is how long programs' threads have to end.
const letGo = time.Second

// end ends all programs.
func (s *Supervisor) end() error {
	s.mu.Lock()
	s.over.Store(true)
	_, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	for p := range s.programs {
		go p.blocking.interrupt() // which the program may keep waiting, too
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() { s.working.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(letGo):
		return ErrStuck
	}
}

// Close frees what New made and Add took over, but for what threads that were left behind
// still have. Run must not run any more.
func (s *Supervisor) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.over.Store(true)
	s.fence.free()
	if s.stop >= 0 {
		unix.Close(s.stop)
	}
	s.loans.abandon()
	if s.running {
		return
	}
	for p := range s.programs {
		p.close()
	}
	clear(s.programs)
}

// Stats are the counters. It is safe for concurrent use.
func (s *Supervisor) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.stats
	all.Kept = maps.Clone(s.stats.Kept)
	return all
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

// cookie identifies a socket's network namespace (SO_NETNS_COOKIE, Linux 5.14).
func cookie(fd int) (uint64, error) {
	c, errno := sys.GetUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errno != 0 {
		return 0, errno
	}
	return c, nil
}

// socketCookie identifies a socket.
func socketCookie(fd int) (uint64, error) {
	c, errno := sys.GetUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if errno != 0 {
		return 0, errno
	}
	return c, nil
}
