package localsock

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestAccept(t *testing.T) {
	out := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	gone := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.ECONNABORTED)}
	closed := &net.OpError{Op: "accept", Err: net.ErrClosed}
	tests := []struct {
		name   string
		errors []error // of the calls in turn; then there is a connection
		want   error
		calls  int
	}{
		{"at once", nil, nil, 1},
		{"out of descriptors, then not", []error{out, out, gone}, nil, 4},
		{"closed", []error{closed}, net.ErrClosed, 1},
		{"out of descriptors, then closed", []error{out, closed}, net.ErrClosed, 2},
		{"another error", []error{syscall.EINVAL}, syscall.EINVAL, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				got, err := Accept(t.Context(), func() (string, error) {
					if calls++; calls <= len(tt.errors) {
						return "", tt.errors[calls-1]
					}
					return "client", nil
				})
				if !errors.Is(err, tt.want) || calls != tt.calls || err == nil && got != "client" {
					t.Errorf("%q, %v after %d calls, want error %v after %d", got, err, calls, tt.want, tt.calls)
				}
			})
		})
	}
}

// While nothing can be accepted, Accept does not keep a processor busy, and ends with ctx.
func TestAcceptEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*acceptAgain)
		defer cancel()
		calls := 0
		_, err := Accept(ctx, func() (struct{}, error) { calls++; return struct{}{}, syscall.ENFILE })
		if !errors.Is(err, context.DeadlineExceeded) || calls > 101 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}
