package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// watch waits for the end of a process or a namespace. The zero watch waits for its context.
type watch struct {
	pidfd int
	epoll *os.File             // epoll instance that contains pidfd; nil: no process
	path  string               // of a namespace; "": none
	id    supervisor.Namespace // that path leads to
}

// watchInterval is how often a path is checked. The kernel sends no event when a mount goes,
// and a network whose namespace is gone costs nothing.
const watchInterval = time.Second

// setProcess makes w watch a process, and takes ownership of its pidfd.
//
// Go's network poller waits only for non-blocking descriptors. The pidfd itself must not become
// one: package os may use a duplicate of it, and waitid(2) would then fail. So the poller gets
// an epoll instance that contains the pidfd.
func (w *watch) setProcess(pidfd int) error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
	if err == nil {
		err = unix.SetNonblock(ep, true)
	}
	if err != nil {
		closeAll([]int{ep, pidfd})
		return fmt.Errorf("watch process: %w", err)
	}
	w.pidfd, w.epoll = pidfd, os.NewFile(uintptr(ep), "pidfd")
	return nil
}

// wait returns nil when the process, the namespace or ctx has ended.
func (w *watch) wait(ctx context.Context) error {
	switch {
	case w.epoll != nil:
		return w.waitProcess(ctx)
	case w.path != "":
		w.waitPath(ctx)
	default:
		<-ctx.Done()
	}
	return nil
}

func (w *watch) waitProcess(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { w.epoll.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process: %w", err)
	}
	// A pidfd is readable once its process has ended (pidfd_open(2)), and an epoll instance
	// while it has an event.
	err = raw.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && ready > 0
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("watch process: %w", err)
	}
	return nil
}

func (w *watch) waitPath(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// A path that can't be checked counts as still there.
			id, err := supervisor.NamespaceAt(w.path)
			if err == nil && id != w.id || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
				return
			}
		}
	}
}

func (w *watch) close() {
	if w.epoll != nil {
		w.epoll.Close()
		unix.Close(w.pidfd)
		w.epoll = nil
	}
}
