package overlay

import (
	"os"
	"testing"
)

// TestPutAside checks that a restore that was interrupted, and is tried again, keeps the former registry.
func TestPutAside(t *testing.T) {
	d := dir(t.TempDir())
	log := "/member/wal/0.wal"
	must(t, os.MkdirAll(d.path(registryDir)+"/member/wal", 0o700))
	must(t, os.WriteFile(d.path(registryDir)+log, []byte("former"), 0o600))
	for range 2 {
		must(t, d.putAside())
		if text, err := os.ReadFile(d.path(oldRegistry) + log); err != nil || string(text) != "former" {
			t.Errorf("the former registry is %q, %v", text, err)
		}
		if _, err := os.Stat(d.path(registryDir)); !os.IsNotExist(err) {
			t.Errorf("its directory is there still: %v", err)
		}
	}
}
