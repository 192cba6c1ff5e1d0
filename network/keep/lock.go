package keep

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// ErrRunning means that another keeper has the state directory.
var ErrRunning = errors.New("a keeper is already running")

// State says whether a keeper has a state directory.
type State struct {
	Running  bool
	Starting bool // one is being started: see Starting
	PID      int  // of the keeper that runs; 0 if it is in another PID namespace, or has just begun
}

// The file keeper.lock is locked (flock(2)) by the keeper, so the kernel unlocks it when the
// keeper ends, however it does. It holds the keeper's process id, or else startingText.
func lockFile(store *attach.Store) string { return store.Path("keeper.lock") }

const (
	startingText = "starting"
	startWithin  = 5 * time.Second // after Starting; a keeper begins within some 10 ms, where systemd starts it within some 100
)

// StateOf returns the state of a directory's keeper. It changes nothing. What can't be read counts
// as no keeper.
func StateOf(store *attach.Store) State {
	f, err := os.Open(lockFile(store))
	if err != nil {
		return State{}
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	b, _ := io.ReadAll(io.LimitReader(f, 32))
	text := strings.TrimSpace(string(b))
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid, _ := strconv.Atoi(text)
		return State{Running: true, PID: pid}
	}
	info, err := f.Stat()
	return State{Starting: text == startingText && err == nil && time.Since(info.ModTime()) < startWithin}
}

// Starting announces that a keeper is about to be started, so that StateOf knows of it before
// it has the lock. It returns ErrRunning if a keeper runs.
func Starting(store *attach.Store) error {
	unlock, err := lock(store, startingText)
	if err == nil {
		unlock()
	}
	return err
}

// lockTries is how often a lock is tried for, 1 ms apart. StateOf holds it for some
// microseconds, which must not pass for a keeper.
const lockTries = 20

// lock takes the lock without waiting for its owner, and writes text into the file.
func lock(store *attach.Store, text string) (unlock func(), err error) {
	return takeLock(store, text, func(f *os.File) error {
		for try := 1; ; try++ {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			switch {
			case !errors.Is(err, unix.EWOULDBLOCK):
				return err
			case try == lockTries:
				return ErrRunning
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func ownPID() string { return strconv.Itoa(os.Getpid()) }

func takeLock(store *attach.Store, text string, take func(*os.File) error) (unlock func(), err error) {
	if err := store.Make(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(lockFile(store), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the keeper's lock: %w", err)
	}
	if err = take(f); err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteString(text + "\n")
	}
	if err != nil {
		f.Close()
		if !errors.Is(err, ErrRunning) {
			err = fmt.Errorf("take the keeper's lock: %w", err)
		}
		return nil, err
	}
	return func() { f.Close() }, nil
}
