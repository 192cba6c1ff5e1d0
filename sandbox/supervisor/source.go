package supervisor

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// source is a filter whose calls come. It stays open while somebody has a call of
// its to answer.
type source struct {
	Program
	file  *os.File
	fd    int
	users atomic.Int32

	generation int32 // of its events
}

func (s *source) release() {
	if s.users.Add(-1) == 0 {
		s.file.Close()
	}
}

// Add supervises a program from now on. It is safe for concurrent use, before Run
// and while it runs. The error is the kernel's, and the program is not supervised.
func (s *Supervisor) Add(p Program) error {
	src := &source{Program: p, file: p.Notifications, fd: int(p.Notifications.Fd())}
	src.users.Store(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoll < 0 {
		src.release()
		return fmt.Errorf("supervise program: %w", os.ErrClosed)
	}
	sys.WakeHere(src.fd)
	var err error
	if src.generation, err = s.watch(src.fd); err != nil {
		src.release()
		return fmt.Errorf("supervise program: %w", err)
	}
	s.sources[src.fd] = src
	return nil
}

// watch has events of a descriptor come, by its number and a generation: the number
// may be another one's by the time.
func (s *Supervisor) watch(fd int) (generation int32, err error) {
	generation = s.generations.Add(1)
	return generation, unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: generation})
}

// serve deals with what a source has.
func (s *Supervisor) serve(ctx context.Context, fd int, generation int32, events uint32) {
	s.mu.Lock()
	s.from = s.sources[fd]
	s.mu.Unlock()
	switch {
	case s.from == nil, s.from.generation != generation: // of a waiter that was let go meanwhile
	case events&unix.EPOLLIN != 0:
		if sys.NextNotification(fd, &s.note) == 0 {
			s.handle(ctx)
		}
	case events&unix.EPOLLHUP != 0: // nobody is left who could call
		s.mu.Lock()
		delete(s.sources, fd)
		s.mu.Unlock()
		_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		s.from.release()
	}
}
