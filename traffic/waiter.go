package traffic

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// waiter waits until a descriptor is ready or its context ends. It sleeps meanwhile, as a hundred idle servers on one
// machine must: waitFD looks at its context twenty times a second. One goroutine uses it.
type waiter struct {
	ctx  context.Context
	wake int // an eventfd that is ready once the context has ended
	stop func() bool
	done chan struct{} // closed after the eventfd was written to
}

func newWaiter(ctx context.Context) (*waiter, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	w := &waiter{ctx: ctx, wake: fd, done: make(chan struct{})}
	w.stop = context.AfterFunc(ctx, func() {
		defer close(w.done)
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // any number, in eight bytes (eventfd(2))
	})
	return w, nil
}

func (w *waiter) close() {
	if !w.stop() {
		<-w.done
	}
	unix.Close(w.wake)
}

// wait waits until fd is ready for events.
func (w *waiter) wait(fd int, events int16) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(w.wake), Events: unix.POLLIN}}
	for {
		if err := context.Cause(w.ctx); err != nil {
			return err
		}
		_, err := unix.Poll(fds, -1)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for a socket: %w", err)
		case fds[0].Revents != 0:
			return nil
		}
	}
}
