package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cleat/bench/cell"
)

// TestResultsThroughLinks checks that a symbolic link that somebody put into the
// directory before is not written through.
func TestResultsThroughLinks(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{EnvironmentFile + ".new", EnvironmentFile} {
		if err := os.Symlink(other, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.environment(Environment{}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "precious" {
		t.Errorf("the target of the link holds %q, %v", text, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, EnvironmentFile)); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestFullDisk checks that a full disk leaves no part of a line and no temporary
// file, and that errors name the file and the cause.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	s, err := newStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.add(cell.Sample{Work: "tcp"}); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, SamplesFile))
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 1<<20)
	for name, write := range map[string]func() error{
		SamplesFile:     func() error { return s.add(cell.Sample{Error: large}) },
		EnvironmentFile: func() error { return s.environment(Environment{Title: large}) },
	} {
		if err := write(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, SamplesFile)); err != nil || string(after) != string(before) {
		t.Errorf("a part of a line is left: %d bytes, was %d, %v", len(after), len(before), err)
	}
}
