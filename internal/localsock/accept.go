package localsock

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// After a failed accept, the pause doubles from firstPause to longestPause, as in
// net/http's Server: a lack of descriptors costs one system call a second, and the server
// is back at most a second after the lack has ended.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = time.Second
)

// Accept calls accept until it returns a connection. It retries after a pause if the
// error says nothing about the listener: a lack of descriptors, memory or buffers, or a
// client that has gone. Any other error is returned. If ctx ends during a pause, or
// accept fails after ctx has ended, Accept returns the error of ctx. To interrupt accept
// itself, the caller closes the listener.
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

// passes reports whether accept may succeed later on the same listener. accept(2) lists
// errors of the new connection (from ECONNABORTED on) besides those of the process and
// the system.
func passes(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EINTR, syscall.EAGAIN,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EPERM, syscall.EPROTO, syscall.ENETDOWN, syscall.ENOPROTOOPT,
		syscall.EHOSTDOWN, syscall.ENONET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT,
	}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// Serve accepts connections and calls handle for each, in a goroutine of its own. At most limit
// are served at once; further clients wait in the listener's queue. A connection is closed when
// handle returns or ctx ends. Serve returns nil once ctx has ended or l is closed, after all
// calls of handle have returned. It closes l.
func Serve(ctx context.Context, l net.Listener, limit int, handle func(net.Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, limit)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := Accept(ctx, l.Accept)
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		serving.Go(func() {
			defer func() { <-slots }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			handle(c)
		})
	}
}
