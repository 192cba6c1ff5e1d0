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

// watch tells when a process or a namespace is gone. The zero watch never does.
type watch struct {
	pidfd int
	pid   *os.File // an epoll instance with the pidfd in it; nil: no process
	path  string   // of a namespace; "": none
	id    namespaceID
}

// namespaceID is what a namespace is known by: device and inode of its file.
type namespaceID = supervisor.Namespace

// watchEvery is how often a path is looked at. A namespace that is gone costs
// nobody anything, and no notice comes when a mount goes.
const watchEvery = time.Second

// process takes a pidfd over. The runtime's poller waits for descriptors that
// don't block, but a pidfd must not be made such a one: package os may wait on a
// copy of it, and waitid(2) would then fail. An epoll instance around it may.
func (w *watch) process(pidfd int) error {
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
	w.pidfd, w.pid = pidfd, os.NewFile(uintptr(ep), "pidfd")
	return nil
}

// wait returns nil when the process or the namespace is gone, or ctx ends.
func (w *watch) wait(ctx context.Context) error {
	switch {
	case w.pid != nil:
		return w.waitProcess(ctx)
	case w.path != "":
		return w.waitPath(ctx)
	}
	<-ctx.Done()
	return nil
}

func (w *watch) waitProcess(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { w.pid.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := w.pid.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process: %w", err)
	}
	// A pidfd is readable once the process has ended (pidfd_open(2)), and an epoll
	// instance while it has something to tell.
	err = raw.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && ready > 0
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("watch process: %w", err)
	}
	return nil
}

func (w *watch) waitPath(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if w.gone() {
			return nil
		}
	}
}

// gone tells whether the path names the namespace no more. That it can't be
// looked at does not say so.
func (w *watch) gone() bool {
	var st unix.Stat_t
	err := unix.Stat(w.path, &st)
	if err != nil {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
	}
	return namespaceID{Dev: st.Dev, Ino: st.Ino} != w.id
}

func (w *watch) close() {
	if w.pid != nil {
		w.pid.Close()
		unix.Close(w.pidfd)
		w.pid = nil
	}
}

func idOf(fd int) (namespaceID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return namespaceID{}, fmt.Errorf("look at namespace: %w", err)
	}
	return namespaceID{Dev: st.Dev, Ino: st.Ino}, nil
}
