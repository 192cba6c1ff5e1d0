package mptcp

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// FuzzState reads damaged state files. A state that can be read can be written.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"boot":"b","inode":1}`))
	f.Add([]byte(`null`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		state := &file{path: filepath.Join(dir, "state.json"), boot: "b"}
		if err := os.WriteFile(state.path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := state.read()
		if err != nil || s == nil {
			return
		}
		if _, err := json.Marshal(s); err != nil {
			t.Error(err)
		}
	})
}
