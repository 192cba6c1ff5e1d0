package exit

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// The first signal cancels the context, and is the cause. A second one has its default
// action and ends the process at once.
func TestInterruptible(t *testing.T) {
	ctx, stop := Interruptible()
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if got := context.Cause(ctx); got != (Signalled{syscall.SIGINT}) {
		t.Errorf("cause %v", got)
	}
	if signal.Ignored(syscall.SIGINT) {
		t.Error("SIGINT is ignored after the first")
	}
}

func TestInterruptibleEndsUnsignalled(t *testing.T) {
	ctx, stop := Interruptible()
	stop()
	<-ctx.Done()
	if errors.As(context.Cause(ctx), new(Signalled)) {
		t.Errorf("cause %v without a signal", context.Cause(ctx))
	}
}
