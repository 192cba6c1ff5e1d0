package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzRead opens journals with arbitrary content: complete records stay, partial ones are cut off,
// and appended records can be read.
func FuzzRead(f *testing.F) {
	f.Add([]byte("{\"a\":1}\n{\"b\":2}\n"))
	f.Add([]byte("{\"a\":1}\n{\"torn"))
	f.Add([]byte("\n\nnot json\n\xff\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "journal")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		before, damaged := Read(path)
		j, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if err := j.Append(map[string]string{"new": "\n\x00"}); err != nil {
			t.Fatal(err)
		}
		after, err := Read(path)
		if (err == nil) != (damaged == nil) || len(after) != len(before)+1 || !bytes.Equal(after[len(before)], []byte(`{"new":"\n\u0000"}`)) {
			t.Errorf("%q: %d records before, %q after, %v", text, len(before), after, err)
		}
		for i := range before {
			if !bytes.Equal(before[i], after[i]) {
				t.Errorf("%q: record %d was %q and is %q", text, i, before[i], after[i])
			}
		}
	})
}
