package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// ErrRunning says that a keeper has the state directory already.
var ErrRunning = errors.New("a keeper is running already")

// Running tells whether a keeper has the state directory, and its process id; 0:
// it is of another PID namespace, or just beginning.
func Running(store *attach.Store) (pid int, running bool) {
	unlock, err := lock(store, false)
	if err == nil {
		unlock()
	}
	if !errors.Is(err, ErrRunning) {
		return 0, false
	}
	text, _ := os.ReadFile(lockFile(store))
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, true
}

func lockFile(store *attach.Store) string { return filepath.Join(store.Dir(), "keeper.lock") }

// lock is let go when the process ends, however it does. Who becomes the keeper
// signs it.
func lock(store *attach.Store, sign bool) (unlock func(), err error) {
	f, err := openLock(store)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrRunning
		}
		return nil, fmt.Errorf("become the keeper: %w", err)
	}
	if sign {
		if err := signLock(f); err != nil {
			f.Close()
			return nil, err
		}
	}
	return func() { f.Close() }, nil
}

func openLock(store *attach.Store) (*os.File, error) {
	if err := store.Make(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(lockFile(store), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("become the keeper: %w", err)
	}
	return f, nil
}

func signLock(f *os.File) error {
	text := strconv.Itoa(os.Getpid()) + "\n"
	_, err := f.WriteAt([]byte(text), 0)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("become the keeper: %w", err)
	}
	return nil
}

// waitLock is lock once nobody else has it.
func waitLock(ctx context.Context, store *attach.Store) (unlock func(), err error) {
	f, err := openLock(store)
	if err != nil {
		return nil, err
	}
	if err := attach.WaitLock(ctx, f); err != nil {
		return nil, fmt.Errorf("become the keeper: %w", err)
	}
	if err := signLock(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
