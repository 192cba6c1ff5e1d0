package exit

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// Signalled is the cause of a context that a signal cancelled.
type Signalled struct{ Signal syscall.Signal }

func (s Signalled) Error() string { return fmt.Sprintf("stopped by signal: %s", s.Signal) }

// Interruptible returns a context that the first SIGINT or SIGTERM cancels, with a Signalled
// error as its cause. The signals then have their default action again, so that a second
// Ctrl-C ends the process at once.
//
// Inside a lab, SIGPIPE cancels the context as well if nobody reads standard output or error
// any more. Process 1 of a PID namespace can't die of SIGPIPE, and the Go runtime would exit
// with 2.
func Interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM)
	piped := make(chan os.Signal, 1)
	if _, inside := lab.Inside(); inside {
		signal.Notify(piped, syscall.SIGPIPE)
	}
	go func() {
		for {
			select {
			case s := <-caught:
				signal.Reset(syscall.SIGINT, syscall.SIGTERM)
				cancel(Signalled{s.(syscall.Signal)})
			case <-piped:
				if !outputClosed() {
					continue // a socket's peer is gone, and the write has returned the error
				}
				cancel(Signalled{syscall.SIGPIPE})
			case <-ctx.Done():
			}
			return
		}
	}()
	return ctx, func() { signal.Stop(caught); cancel(nil) }
}

// outputClosed reports whether nobody reads standard output or error.
func outputClosed() bool {
	fds := []unix.PollFd{{Fd: 1}, {Fd: 2}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 // poll reports POLLERR and POLLHUP without being asked
}
