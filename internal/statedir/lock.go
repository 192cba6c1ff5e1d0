package statedir

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock waits for the exclusive lock on a directory and returns the function that releases
// it.
func Lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	switch err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = WaitLock(ctx, f)
	case err != nil:
		f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// WaitLock blocks in the kernel until this process holds the lock (flock(2)) on f. On error
// it closes f. If ctx ends first, a goroutine keeps waiting and releases the lock as soon as
// it gets it.
func WaitLock(ctx context.Context, f *os.File) error {
	locked := make(chan error, 1)
	go func() {
		for {
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
				locked <- err
				return
			}
		}
	}()
	select {
	case err := <-locked:
		if err != nil {
			f.Close()
		}
		return err
	case <-ctx.Done():
		go func() { <-locked; f.Close() }()
		return ctx.Err()
	}
}
