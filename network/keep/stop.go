package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// Intervals of Stop.
const (
	stopWithin = 30 * time.Second // a task may be waiting for a DHCP server, which takes ten seconds
	stopPoll   = 10 * time.Millisecond
)

// Stop ends the keeper of a state directory, if one runs, and waits for its end. Links stay. It also
// ends one that waits to take over, and one that is about to start.
func Stop(ctx context.Context, store *attach.Store) error {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	for {
		s := StateOf(store)
		switch {
		case !s.Running && !s.Starting:
			return nil
		case s.PID != 0: // the lock is its own, so no other process has its id
			if err := unix.Kill(s.PID, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("stop the keeper, process %d: %w", s.PID, os.NewSyscallError("kill", err))
			}
		}
		select {
		case <-time.After(stopPoll):
		case <-ctx.Done():
			return fmt.Errorf("stop the keeper: process %d has not ended: %w", s.PID, context.Cause(ctx))
		}
	}
}
