package localsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// failing is an accept that fails with each error in turn, then returns 7.
func failing(errs ...error) func() (int, error) {
	return func() (int, error) {
		if len(errs) == 0 {
			return 7, nil
		}
		err := errs[0]
		errs = errs[1:]
		return 0, err
	}
}

func TestAcceptRetriesErrorsThatPass(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPROTO} {
		err := &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", errno)}
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			c, err := Accept(t.Context(), failing(err, fmt.Errorf("wrapped: %w", err), err))
			if c != 7 || err != nil {
				t.Errorf("%v: got %d, %v", errno, c, err)
			}
			if took := time.Since(start); took != (1+2+4)*firstPause {
				t.Errorf("%v: three failures cost %v", errno, took)
			}
		})
	}
}

func TestAcceptReturnsOtherErrors(t *testing.T) {
	for _, want := range []error{net.ErrClosed, syscall.EBADF, syscall.EINVAL} {
		if _, err := Accept(t.Context(), failing(want)); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// The pause is bounded, and the end of the context ends it.
func TestAcceptPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start, tries := time.Now(), 0
		_, err := Accept(ctx, func() (int, error) { tries++; return 0, syscall.EMFILE })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if tries < 60 || tries > 80 {
			t.Errorf("%d tries in a minute", tries)
		}
	})
}

// Serve serves no more clients at once than its limit. The end of the context closes the
// connections, and Serve waits for the calls of handle.
func TestServe(t *testing.T) {
	for _, byContext := range []bool{true, false} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		entered, handled, served := make(chan struct{}, 3), 0, make(chan error, 1)
		go func() {
			served <- Serve(ctx, l, 1, func(c net.Conn) {
				entered <- struct{}{}
				io.Copy(io.Discard, c)
				handled++ // no lock: the limit is 1
			})
		}()
		var clients []net.Conn
		for range 3 {
			c, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			clients = append(clients, c)
		}
		<-entered
		time.Sleep(20 * time.Millisecond)
		if len(entered) > 0 {
			t.Error("two clients are served at once")
		}
		clients[0].Close()
		<-entered
		if byContext {
			cancel()
		} else {
			l.Close()
			clients[1].Close()
		}
		if err := <-served; err != nil || handled != 2 {
			t.Errorf("by context %v: %d calls returned, %v", byContext, handled, err)
		}
		if _, err := clients[1].Read(make([]byte, 1)); byContext && !errors.Is(err, io.EOF) {
			t.Errorf("the connection is not closed: %v", err)
		}
	}
}
