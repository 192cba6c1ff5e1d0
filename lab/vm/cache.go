package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a run that waits for the cache's lock tries again: flock can't be
// ended by a context.
const lockPoll = 200 * time.Millisecond

// CacheDir returns the directory of fetched kernels: cleat/vm in the user's cache
// directory.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "cleat", "vm"), nil
}

// cacheEntry returns the directory of a cache entry. If it does not exist, fill makes it.
// fill gets the directory to fill and one for temporary files. If it fails or is killed,
// there is no entry.
func cacheEntry(ctx context.Context, cache, name string, fill func(dir, scraps string) error) (string, error) {
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make cache %s: %w", cache, err)
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another run has filled it
	}
	// The holder of the lock owns every temporary directory. Existing ones are left from
	// runs that were killed.
	old, err := filepath.Glob(filepath.Join(cache, "tmp-*"))
	if err != nil {
		return "", err
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			return "", err
		}
	}
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	made, scraps := filepath.Join(tmp, "made"), filepath.Join(tmp, "scraps")
	for _, d := range []string{made, scraps} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	if err := fill(made, scraps); err != nil {
		return "", fmt.Errorf("fill cache entry %s: %w", dir, err)
	}
	return dir, os.Rename(made, dir)
}

// lockFile takes an exclusive lock on a file and returns a function that releases it.
func lockFile(ctx context.Context, name string) (func(), error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for lock %s: %w", name, ctx.Err())
		case <-tick.C:
		}
	}
}
