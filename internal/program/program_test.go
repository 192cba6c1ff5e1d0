package program

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ordinaryPath is what Debian's login(1) gives users other than root.
const ordinaryPath = "/usr/local/bin:/usr/bin:/bin"

// install puts an executable file of that name into a directory.
func install(t *testing.T, dir, name string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho "+file+"\n"), mode); err != nil {
		t.Fatal(err)
	}
	return file
}

// setAdminDirs replaces adminDirs by new directories during a test.
func setAdminDirs(t *testing.T) (first, second string) {
	t.Helper()
	old := adminDirs
	first, second = t.TempDir(), t.TempDir()
	adminDirs = []string{first, second}
	t.Cleanup(func() { adminDirs = old })
	return first, second
}

func TestFind(t *testing.T) {
	first, second := setAdminDirs(t)
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+ordinaryPath)
	t.Chdir(t.TempDir())
	install(t, ".", "cleat-local", 0o755)
	install(t, bin, "cleat-data", 0o644)
	for _, tt := range []struct{ name, want string }{
		{"cleat-both", install(t, bin, "cleat-both", 0o755)},
		{"cleat-first", install(t, first, "cleat-first", 0o755)},
		{"cleat-second", install(t, second, "cleat-second", 0o755)},
		{"cleat-data", install(t, second, "cleat-data", 0o755)}, // the one on the PATH can't be executed
		{bin + "/cleat-both", bin + "/cleat-both"},
		{"cleat-local", ""},
		{"cleat-missing", ""},
	} {
		install(t, second, "cleat-both", 0o755)
		got, err := Find(tt.name)
		if got != tt.want || (tt.want == "") != errors.Is(err, exec.ErrNotFound) {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
	if got, err := FindIn(".", "cleat-local"); err == nil {
		t.Errorf("a relative directory leads to %q", got)
	}
}

func TestCommand(t *testing.T) {
	_, second := setAdminDirs(t)
	t.Setenv("PATH", ordinaryPath)
	file := install(t, second, "cleat-admin", 0o755)
	for name, cmd := range map[string]*exec.Cmd{
		"Command": Command("cleat-admin"), "CommandContext": CommandContext(t.Context(), "cleat-admin"),
	} {
		out, err := cmd.Output()
		if err != nil || string(out) != file+"\n" || cmd.Args[0] != "cleat-admin" {
			t.Errorf("%s: %q as %q, %v", name, out, cmd.Args[0], err)
		}
	}
	if err := Command("cleat-missing").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a missing program: %v", err)
	}
}

func TestSearchPath(t *testing.T) {
	for path, want := range map[string]string{
		ordinaryPath:                         "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
		"/sbin:/usr/sbin:/bin":               "/sbin:/usr/sbin:/bin:/usr/local/sbin",
		"":                                   "/usr/local/sbin:/usr/sbin:/sbin",
		"/usr/local/sbin:/x:/usr/sbin:/sbin": "/usr/local/sbin:/x:/usr/sbin:/sbin",
	} {
		t.Setenv("PATH", path)
		if got := SearchPath(); got != want {
			t.Errorf("PATH=%s: %s, want %s", path, got, want)
		}
	}
}
