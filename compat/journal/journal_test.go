package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestStandardError(t *testing.T) {
	var out bytes.Buffer
	j := New(&out, "pasta", slog.LevelInfo)
	j.Infof("hello %d", 1)
	j.Warnf("two\nlines\n")
	l := j.Logger().With("host", "a b").WithGroup("flow")
	l.Warn("port is taken", "port", 22, "error", fmt.Errorf("in use"))
	l.Debug("nobody hears this")
	want := "pasta: hello 1\npasta: two\npasta: lines\npasta: port is taken host=\"a b\" flow.port=22 flow.error=\"in use\"\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// advised is an error with a hint.
type advised struct{ hint string }

func (advised) Error() string  { return "no room" }
func (a advised) Hint() string { return a.hint }

func TestDescribe(t *testing.T) {
	for _, r := range []struct {
		name string
		err  error
		want string
	}{
		{"plain", errors.New("no room"), "pasta: no room\n"},
		{"lines", errors.New("no room\nat all"), "pasta: no room\npasta:   at all\n"},
		{"a hint", fmt.Errorf("open it: %w", advised{"make room"}), "pasta: open it: no room\npasta: hint: make room\n"},
		{"a hint of two lines", advised{"make room\nor go"}, "pasta: no room\npasta: hint: make room\npasta: hint: or go\n"},
		{"a hint that is said", fmt.Errorf("%w (make room)", advised{"make room"}), "pasta: no room\npasta: hint: make room\n"},
		{"an empty hint", advised{}, "pasta: no room\n"},
	} {
		t.Run(r.name, func(t *testing.T) {
			if got := Describe("pasta", r.err); got != r.want {
				t.Errorf("%q, want %q", got, r.want)
			}
		})
	}
}

func TestFileForgetsItsBeginning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("from another run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	j := New(os.Stderr, "pasta", slog.LevelInfo)
	const limit = 1000
	j.ToFile(f, limit)
	stamped := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z line (\d+)$`)
	for i := range 200 {
		j.Infof("line %d", i)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > limit {
			t.Fatalf("after line %d the file has %d bytes", i, len(b))
		}
		lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if i == 0 && lines[0] != "from another run" {
			t.Fatalf("what was there is gone: %q", lines[0])
		}
		for n, line := range lines {
			want := fmt.Sprint(i - len(lines) + 1 + n)
			if m := stamped.FindStringSubmatch(line); (m == nil || m[1] != want) && line != "from another run" {
				t.Fatalf("after line %d, line %d of the file is %q", i, n, line)
			}
		}
		if i > 50 && len(b) < limit/3 {
			t.Fatalf("after line %d only %d bytes are left", i, len(b))
		}
	}
	j.Infof("%s", strings.Repeat("x", 2*limit))
	if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("xx")) {
		t.Errorf("a line beyond the limit was kept (%v)", err)
	}
}
