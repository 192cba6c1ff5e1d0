package keep

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A program counts as replaced when another file has its name, is executable, and does not grow any
// more.
func TestUntilReplaced(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		change func(path string) error // once the program runs
		want   bool
	}{
		"nothing":        {func(string) error { return nil }, false},
		"gone":           {os.Remove, false},
		"replaced":       {func(path string) error { return replace(path, 0o755) }, true},
		"not executable": {func(path string) error { return replace(path, 0o644) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte("old"), 0o755); err != nil {
				t.Fatal(err)
			}
			file, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(path); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := program{path, file}.untilReplaced(t.Context())
				defer cancel(nil)
				time.Sleep(upgradeInterval + time.Second)
				if ctx.Err() != nil {
					t.Error("it counts as replaced at the first look")
				}
				time.Sleep(upgradeInterval)
				if got := errors.Is(context.Cause(ctx), errUpgraded); got != c.want {
					t.Errorf("replaced: %t, want %t", got, c.want)
				}
			})
		})
	}
}

// A file that is still being written does not count.
func TestUntilComplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := replace(path, 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := program{path, file}.untilReplaced(t.Context())
		defer cancel(nil)
		time.Sleep(upgradeInterval / 2) // so that it grows between two looks
		for size := int64(10); size < 15; size++ {
			time.Sleep(upgradeInterval)
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			if ctx.Err() != nil {
				t.Fatalf("it counts as replaced while it grows, with %d bytes", size)
			}
		}
		time.Sleep(2*upgradeInterval + time.Second)
		if !errors.Is(context.Cause(ctx), errUpgraded) {
			t.Error("it does not count as replaced when it is complete")
		}
	})
}

// replace replaces a file by another one.
func replace(path string, mode os.FileMode) error {
	if err := os.WriteFile(path+".new", []byte("new"), mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
