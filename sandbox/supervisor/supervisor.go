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

	"golang.org/x/sys/unix"
)

// Supervisor carries out system calls for programs. Use New to make one.
type Supervisor struct {
	cfg     Config
	stop    int         // an eventfd that becomes readable when Run ends
	stopped atomic.Bool // Run ends or has ended

	// Set by New.
	guestNet, hostNet           uint64          // cookies of the network namespaces
	guestDefaults, hostDefaults map[int]options // of new TCP sockets, by family
	udpDefaults                 map[int]options // of new UDP sockets, by family
	anonInode                   uint64          // inode number of epoll instances

	routes *routes
	fence  fence
	loans  loans
	budget *budget

	programsDone sync.WaitGroup
	failed       chan error // the first error of a program

	mu       sync.Mutex
	closed   bool
	running  bool
	programs map[*program]bool
	stats    Stats
}

// maxPrograms bounds the programs, each of which has a thread. They share one network
// namespace. For comparison, a bridge of Docker has up to about a thousand containers.
const maxPrograms = 512

// ErrTooMany means that no more programs can be supervised at the moment.
var ErrTooMany = errors.New("too many supervised programs")

// ErrStuck means that a program blocks a thread of the supervisor, which waits for the
// program's memory or for a locked socket. The thread is abandoned. When the wait ends it
// frees its resources and does nothing else.
var ErrStuck = errors.New("a program blocks its supervisor thread")

// New inspects the sockets of cfg and reserves a port of the host. The error names the
// kernel feature that is missing. The caller must Close the Supervisor, whether or not it
// ran.
func New(cfg Config) (*Supervisor, error) {
	s := &Supervisor{
		cfg: cfg, stop: -1, guestDefaults: map[int]options{}, hostDefaults: map[int]options{}, udpDefaults: map[int]options{},
		loans: loans{added: make(chan struct{}, 1)}, fence: fence{host: cfg.Host}, budget: newBudget(cfg.Ledger),
		failed: make(chan error, 1), programs: map[*program]bool{}, stats: Stats{Kept: map[string]uint64{}},
	}
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, fmt.Errorf("supervise calls: %w", err)
	}
	return s, nil
}

func (s *Supervisor) prepare() error {
	err := checkInspection()
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
		if err := s.readDefaults(family, int(file.Fd())); err != nil {
			return err
		}
	}
	if s.anonInode, err = anonInode(); err != nil {
		return fmt.Errorf("make epoll instance: %w", err)
	}
	if err := s.fence.reserve(); err != nil {
		return err
	}
	s.routes, err = newRoutes(int(s.cfg.Routes.Fd()), int(s.cfg.RouteEvents.Fd()), s.cfg.Interface)
	return err
}

// readDefaults reads the default options of a family's sockets, in the programs' namespace
// and here, and the cookies of the two namespaces.
func (s *Supervisor) readDefaults(family, guestFD int) (err error) {
	s.guestDefaults[family] = readOptions(guestFD, family, false)
	if s.guestNet, err = netCookie(guestFD); err != nil {
		return fmt.Errorf("identify network namespace of the programs: %w", err)
	}
	tcp, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make TCP socket: %w", err)
	}
	defer unix.Close(tcp)
	udp, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make UDP socket: %w", err)
	}
	defer unix.Close(udp)
	s.hostDefaults[family], s.udpDefaults[family] = readOptions(tcp, family, false), readOptions(udp, family, true)
	if s.hostNet, err = netCookie(tcp); err != nil {
		return fmt.Errorf("identify network namespace of the host: %w", err)
	}
	return nil
}

// HostNet returns the cookie of the host's network namespace (SO_NETNS_COOKIE).
func (s *Supervisor) HostNet() uint64 { return s.hostNet }

// Add starts to supervise a program. It is safe for concurrent use, before and during Run.
// If it fails, with ErrTooMany or an error of the kernel, the program's stopped calls fail
// with ENOSYS.
func (s *Supervisor) Add(p Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := os.ErrClosed
	if !s.closed && !s.stopped.Load() {
		err = s.add(p)
	}
	if err != nil {
		p.Notifications.Close()
		return fmt.Errorf("supervise program: %w", err)
	}
	return nil
}

// add is called with mu held. It takes ownership of p.Notifications unless it fails.
func (s *Supervisor) add(cfg Program) error {
	if len(s.programs) >= maxPrograms {
		return ErrTooMany
	}
	account, ok := openAccount(s.budget)
	if !ok {
		return fmt.Errorf("%w: the limit of open files or memory is reached", ErrTooMany)
	}
	p, err := newProgram(s, cfg, account)
	if err != nil {
		account.close()
		return err
	}
	s.programs[p] = true
	if s.running {
		s.start(p)
	}
	return nil
}

// start runs a program's thread. It is called with mu held.
func (s *Supervisor) start(p *program) {
	s.programsDone.Go(func() {
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

// Run answers calls until ctx ends, and then returns nil. Each program has a thread. Calls
// made after Run has returned fail with ENOSYS. The error wraps ErrStuck if threads were
// abandoned.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	for p := range s.programs {
		s.start(p)
	}
	s.mu.Unlock()
	collect := time.NewTicker(collectEvery)
	collect.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.end()
		case err := <-s.failed:
			return errors.Join(err, s.end())
		case <-s.loans.added:
			collect.Reset(collectEvery)
		case <-collect.C:
			if s.loans.collect(); s.loans.len() == 0 {
				collect.Stop()
			}
		}
	}
}

const (
	// collectEvery is the interval at which closed listeners are looked for.
	collectEvery = 200 * time.Millisecond
	// endWithin is how long the programs' threads have to end.
	endWithin = time.Second
)

func (s *Supervisor) end() error {
	s.mu.Lock()
	s.stopped.Store(true)
	_, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	for p := range s.programs {
		go p.connecting.interrupt() // the program may block this call, too
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() { s.programsDone.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(endWithin):
		return ErrStuck
	}
}

// Close frees the resources of the Supervisor, except those of abandoned threads. It must
// not be called while Run runs.
func (s *Supervisor) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.stopped.Store(true)
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

// Stats returns the counters. It is safe for concurrent use.
func (s *Supervisor) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Kept = maps.Clone(s.stats.Kept)
	return stats
}

// countKept counts a TCP connection that takes another tier.
func (s *Supervisor) countKept(c socket, why string) {
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

// netCookie identifies the network namespace of a socket (SO_NETNS_COOKIE, Linux 5.14).
func netCookie(fd int) (uint64, error) {
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// socketCookie identifies a socket.
func socketCookie(fd int) (uint64, error) {
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
}
