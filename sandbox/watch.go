package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watch tells when a process or a namespace is gone. The zero watch never does.
type watch struct {
	pid  *os.File // a pidfd
	path string   // of a namespace; "": none
	id   namespaceID
}

// namespaceID is what a namespace is known by: device and inode of its file.
type namespaceID struct{ dev, ino uint64 }

// watchEvery is how often a path is looked at. A namespace that is gone costs
// nobody anything, and no notice comes when a mount goes.
const watchEvery = time.Second

// process takes a pidfd over.
func (w *watch) process(pidfd int) error {
	// The runtime waits in its poller for descriptors that don't block.
	if err := unix.SetNonblock(pidfd, true); err != nil {
		unix.Close(pidfd)
		return fmt.Errorf("watch process: %w", err)
	}
	w.pid = os.NewFile(uintptr(pidfd), "pidfd")
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
	// A pidfd is readable once the process has ended (pidfd_open(2)).
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
		var st unix.Stat_t
		if err := unix.Stat(w.path, &st); err != nil || (namespaceID{st.Dev, st.Ino}) != w.id {
			return nil
		}
	}
}

func (w *watch) close() {
	if w.pid != nil {
		w.pid.Close()
	}
}

func idOf(fd int) (namespaceID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return namespaceID{}, fmt.Errorf("look at namespace: %w", err)
	}
	return namespaceID{st.Dev, st.Ino}, nil
}
