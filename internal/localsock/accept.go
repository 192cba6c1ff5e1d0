package localsock

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// The pause after a failed accept doubles from firstPause to longestPause, as that of
// net/http's Server does: a lack of descriptors costs one system call a second, and a
// server is back at most a second after the lack has ended.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = time.Second
)

// Accept returns the next connection that accept returns. It calls accept again, after a
// pause, where the error says nothing about the listener: a lack of descriptors, memory or
// buffers, or a client that has gone. Any other error ends it. When ctx ends during a pause
// or accept fails after that, the error is that of ctx; accept itself must be interrupted by
// the caller, who closes the listener.
func Accept[C any](ctx context.Context, accept func() (C, error)) (C, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		c, err := accept()
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		if !passes(err) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// passes reports whether accept may succeed later at the same listener. accept(2) lists
// errors of the new connection (from ECONNABORTED on) beside those of the process and of the
// system.
func passes(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EINTR, syscall.EAGAIN,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EPERM, syscall.EPROTO, syscall.ENETDOWN, syscall.ENOPROTOOPT,
		syscall.EHOSTDOWN, syscall.ENONET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
