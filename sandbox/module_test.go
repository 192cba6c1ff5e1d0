package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Another module builds against the public API without network access, and works. It
// requires what this module requires: to find that out by itself, go would need the go.mod
// file of every module in the graph, and the cache holds only those of modules in use.
func TestExternalModule(t *testing.T) {
	fakeInternet(t)
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, filepath.Join(dir, "main.go"), "testdata/user/main.go", "", "")
	copyFile(t, filepath.Join(dir, "go.mod"), "../go.mod", "module cleat\n",
		"module example.org/user\n\nrequire cleat v0.0.0\n\nreplace cleat => "+root+"\n")
	copyFile(t, filepath.Join(dir, "go.sum"), "../go.sum", "", "")
	build := exec.Command("go", "build", "-o", "user", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := serveAndClose(t, "hello")
	out, err := exec.CommandContext(testContext(t), filepath.Join(dir, "user"), server).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "container read \"hello\"\nhost saw tcp " + server + "\n"
	if string(out) != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
}

func copyFile(t *testing.T, to, from, old, replacement string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if old != "" {
		text = strings.ReplaceAll(text, old, replacement)
	}
	if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
