package summary

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	oneSample  = `{"network":"veth","work":"tcp","block":1,"values":{"throughput":1}}` + "\n"
	oneSummary = `[{"network":"veth","metric":"throughput"}]`
)

// TestReadHostileDirectory checks that Read returns whatever the files of a
// directory are.
func TestReadHostileDirectory(t *testing.T) {
	fifo := func(t *testing.T, path string) {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sparse := func(size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(to string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		create func(t *testing.T, path string)
		want   string
	}{
		"pipe":           {fifo, "it is not a regular file"},
		"endless device": {link("/dev/zero"), "it is a symbolic link; copy the file itself there"},
		"link to a file": {link("/etc/hostname"), "it is a symbolic link; copy the file itself there"},
		"dangling link":  {link("/nonexistent"), "it is a symbolic link; copy the file itself there"},
		"directory":      {func(t *testing.T, path string) { os.Mkdir(path, 0o700) }, "it is a directory"},
		"a tebibyte":     {sparse(1 << 40), "larger than results are: 1099511627776 bytes"},
	} {
		for _, file := range []string{SamplesFile, JSONFile, CSVFile, EnvironmentFile} {
			t.Run(name+"/"+file, func(t *testing.T) {
				dir := t.TempDir()
				if file == EnvironmentFile {
					if err := os.WriteFile(filepath.Join(dir, SamplesFile), []byte(oneSample), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				path := filepath.Join(dir, file)
				tt.create(t, path)
				_, err := Read(dir)
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			})
		}
	}
}

// TestReadNamedLink checks that the user may name a symbolic link to a file.
func TestReadNamedLink(t *testing.T) {
	dir := t.TempDir()
	file, typed := filepath.Join(dir, "one.jsonl"), filepath.Join(dir, "two.jsonl")
	if err := errors.Join(os.WriteFile(file, []byte(oneSample), 0o600), os.Symlink("one.jsonl", typed)); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(typed); err != nil || len(r.Samples) != 1 {
		t.Errorf("%d samples, %v", len(r.Samples), err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero.jsonl")); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(filepath.Join(dir, "zero.jsonl")); err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
		t.Errorf("a link to a device: %v", err)
	}
}

// repeated reads a text many times without holding all of it in memory.
type repeated struct {
	text string
	left int
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for r.left > 0 && n+len(r.text) <= len(p) {
		n += copy(p[n:], r.text)
		r.left--
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestReadSamplesIsBounded(t *testing.T) {
	if _, err := ReadSamples(&repeated{"x", 2 * maxLineBytes}); !errors.Is(err, errTooLarge) {
		t.Errorf("a long line: %v", err)
	}
	if _, err := ReadSamples(&repeated{"\n", maxSamples + 1}); !errors.Is(err, errTooLarge) {
		t.Errorf("many lines: %v", err)
	}
	if r, err := ReadSamples(&repeated{oneSample, 10}); err != nil || len(r.Samples) != 10 {
		t.Errorf("%d samples, %v", len(r.Samples), err)
	}
}

// TestReadJSONStopsAtTheFirstError checks that each element is validated as it is
// read, so that 1 GB of nonsense takes no memory.
func TestReadJSONStopsAtTheFirstError(t *testing.T) {
	in := &repeated{"{},", 1 << 30}
	if _, err := ReadJSON(io.MultiReader(strings.NewReader("["), in)); err == nil || !strings.Contains(err.Error(), "element 1") {
		t.Errorf("got %v", err)
	}
	if in.left < 1<<29 {
		t.Error("most of it was read")
	}
	for text, good := range map[string]bool{oneSummary: true, "[]": true, "{}": false, "null": false, oneSummary[:20]: false, oneSummary[:len(oneSummary)-1]: false} {
		if got, err := ReadJSON(strings.NewReader(text)); (err == nil) != good {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// TestBoundedFile reads a file that has grown beyond its limit.
func TestBoundedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("123456"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]error{5: errTooLarge, 6: nil, 7: nil} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(&boundedFile{f, limit}); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", limit, err, want)
		}
		f.Close()
	}
}
