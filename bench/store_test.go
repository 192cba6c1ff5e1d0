package bench

import (
	"os"
	"path/filepath"
	"testing"
)

// A link that somebody put into a directory for results before is not written through.
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
		t.Errorf("the other file has %q, %v", text, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, EnvironmentFile)); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}
