package statedir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func openDir(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Prepare removes the files of earlier boots and keeps those of this one.
func TestPrepare(t *testing.T) {
	d := openDir(t)
	old := filepath.Join(d.Path("run"), "an-earlier-boot", "ops")
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Prepare([]string{"attachments"}, []string{"live", "ops"}); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{d.Path("attachments"), d.RunPath("live"), d.RunPath("ops")} {
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		}
		if err := os.WriteFile(d.RunPath("live", "x"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(old)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the earlier boot's files are still there: %v", err)
	}
}

func TestJSON(t *testing.T) {
	d := openDir(t)
	path := d.Path("networks", "lan.json")
	if v, err := ReadJSON[string](path); v != nil || err != nil {
		t.Errorf("missing file: got %v, %v", v, err)
	}
	if err := WriteJSON(path, "lan"); err != nil {
		t.Fatal(err)
	}
	if v, err := ReadJSON[string](path); err != nil || *v != "lan" {
		t.Errorf("got %v, %v", v, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("files: %v, %v", left, err)
	}
	if _, err := ReadJSON[int](path); err == nil {
		t.Error("a string was decoded as a number")
	}
	if err := errors.Join(Remove(path), Remove(path)); err != nil {
		t.Error(err)
	}
}

// A canceled Lock returns at once, and releases the lock that it may get later.
func TestLockCanceled(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Lock(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	unlock()
	if unlock, err = Lock(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}
