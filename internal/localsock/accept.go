package localsock

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"
)

// acceptAgain is how long Accept waits after an error that may pass. Connections wait in
// the kernel's queue meanwhile.
const acceptAgain = 50 * time.Millisecond

// passing are errors of accept(2) that say nothing about the listener: the process or the
// kernel is out of descriptors or memory, or the client has gone.
var passing = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED, syscall.EPROTO, syscall.EINTR,
}

// Accept returns the next connection of a listener, whose method accept is. After an error
// that may pass it tries again until ctx ends. Other errors, and that of a listener that was
// closed, are returned.
func Accept[C any](ctx context.Context, accept func() (C, error)) (C, error) {
	for {
		c, err := accept()
		if err == nil || !slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) }) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case <-time.After(acceptAgain):
		}
	}
}
