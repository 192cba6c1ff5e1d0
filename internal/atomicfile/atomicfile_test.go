package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// content returns a write function for text that fails with err after half of it.
func content(text string, err error) func(io.Writer) error {
	return func(w io.Writer) error {
		if err != nil {
			text = text[:len(text)/2]
		}
		_, writeErr := io.WriteString(w, text)
		return errors.Join(writeErr, err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"one", "another"} {
		if err := Write(path, content(text, nil)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v, want %q", got, err, text)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestWriteFails: whatever fails, the old file stays and no other is left. The
// error names the file and the cause.
func TestWriteFails(t *testing.T) {
	for name, tt := range map[string]struct {
		file  string
		write func(io.Writer) error
		want  error
	}{
		"writer":            {"file", content("text", syscall.ENOSPC), syscall.ENOSPC},
		"missing directory": {"nowhere/file", content("text", nil), os.ErrNotExist},
		"path of directory": {"directory", content("text", nil), syscall.EEXIST},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "directory"), 0o755), os.WriteFile(filepath.Join(dir, "file"), []byte("old"), 0o644)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, tt.file)
			if err := Write(path, tt.write); !errors.Is(err, tt.want) || strings.Count(err.Error(), "\n") > 0 || !strings.HasPrefix(err.Error(), "write \""+path+"\": ") {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			entries, err := os.ReadDir(dir)
			if old, _ := os.ReadFile(filepath.Join(dir, "file")); err != nil || len(entries) != 2 || string(old) != "old" {
				t.Errorf("the directory holds %v, the file %q: %v", entries, old, err)
			}
		})
	}
}

// TestFullDisk writes more than a tmpfs holds.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	err := Write(filepath.Join(dir, "file"), content(strings.Repeat("x", 1<<20), nil))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), `/file": no space left on device`) {
		t.Errorf("got %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
