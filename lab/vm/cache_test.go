package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestEntryIsFilledOnce(t *testing.T) {
	cache := t.TempDir()
	var fills atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			dir, err := cacheEntry(t.Context(), cache, "a", func(dir, scraps string) error {
				fills.Add(1)
				return os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("filled %d times", n)
	}
}

func TestEntryIsCompleteOrMissing(t *testing.T) {
	cache := t.TempDir()
	if err := os.Mkdir(filepath.Join(cache, "tmp-killed"), 0o755); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	_, err := cacheEntry(t.Context(), cache, "a", func(dir, scraps string) error {
		os.WriteFile(filepath.Join(dir, "half"), nil, 0o644)
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || filepath.Base(left[0]) != "lock" {
		t.Errorf("left behind: %v", left)
	}
}

func TestLockWaitEndsWithContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(ctx, name); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
