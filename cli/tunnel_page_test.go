package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cleat/cli/exit"
	"cleat/tunnel/spec"
)

// TestTunnelPage executes the console blocks of doc/tunnel.md in order, in a directory
// that has the page's YAML blocks as files, named by their first lines. A command that
// shows errors must exit with 2. Warnings about devices depend on the machine and are
// ignored. Warnings about forwarding must be there where forwarding is off.
func TestTunnelPage(t *testing.T) {
	page, dir := tunnelPage(t), t.TempDir()
	files := regexp.MustCompile("(?ms)^```yaml\n# (\\S+)\n.*?^```").FindAllStringSubmatch(page, -1)
	if len(files) < 2 {
		t.Fatalf("the page has %d files", len(files))
	}
	for _, f := range files {
		text := strings.TrimSuffix(strings.TrimPrefix(f[0], "```yaml\n"), "```")
		if err := os.WriteFile(filepath.Join(dir, f[1]), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	forwarding, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range consoleBlocks(page) {
		for _, c := range block {
			if strings.TrimSpace(string(forwarding)) != "0" {
				c.output = slices.DeleteFunc(c.output, func(l string) bool { return strings.Contains(l, ": warning: forwarding is off") })
			}
			want := 0
			if strings.Contains(strings.Join(c.output, "\n"), " error: ") {
				want = exit.Usage
			}
			out, err := shell(c.line, dir).CombinedOutput()
			if got := exitCode(err); got != want {
				t.Errorf("%s: %v, want exit code %d\n%s", c.line, err, want, out)
			}
			c.compare(t, deviceWarnings.ReplaceAll(out, nil))
		}
	}
}

var deviceWarnings = regexp.MustCompile(`(?m)^.*: warning: (no )?(device|address) .*\n`)

// exitCode returns the exit code of a command, or -1 if it did not run.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

func tunnelPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../doc/tunnel.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTunnelPageHasEveryKey compares the tables of the page with the keys of a tunnel
// file, which the checker lists for each unknown key.
func TestTunnelPageHasEveryKey(t *testing.T) {
	const text = "x: 1\nreorder: {x: 1}\nkey: {x: 1}\ncompat: {x: 1}\npaths:\n  - {x: 1}\n"
	noKeys := func(string) (io.ReadCloser, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }
	file, err := spec.Load(strings.NewReader(text), "f.yaml", noKeys)
	if err != nil {
		t.Fatal(err)
	}
	_, reference, _ := strings.Cut(tunnelPage(t), "\n## The file\n")
	var places []int
	for _, f := range file.Findings {
		if f.Message != `unknown key "x"` {
			continue
		}
		places = append(places, f.Line)
		for key := range strings.SplitSeq(f.Allowed, ", ") {
			if !strings.Contains(reference, "\n| `"+key+"` |") {
				t.Errorf("doc/tunnel.md has no row for %q (line %d)", key, f.Line)
			}
		}
	}
	if !slices.Equal(places, []int{1, 2, 3, 4, 6}) {
		t.Errorf("keys are known for lines %v", places)
	}
}

// TestTunnelPageHasEveryMetric compares the page's table with the metrics that package
// tunnel/control records.
func TestTunnelPageHasEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../tunnel/control/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(tunnelPage(t), "\n### Metrics\n")
	table, _, _ = strings.Cut(table, "\n## ")
	all := regexp.MustCompile(`(?m)^# TYPE cleat_tunnel_(\S+)`).FindAllSubmatch(text, -1)
	for _, m := range all {
		if !strings.Contains(table, "\n| `"+string(m[1])+"` |") {
			t.Errorf("doc/tunnel.md has no row for %q", m[1])
		}
	}
	if rows := strings.Count(table, "\n| `"); rows != len(all) {
		t.Errorf("doc/tunnel.md has %d rows for %d metrics", rows, len(all))
	}
}
