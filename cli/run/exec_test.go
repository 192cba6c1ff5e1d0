package run

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cleat/cli/exit"
	"cleat/cli/hint"
)

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o755, "data": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("PATH", dir+"/bin:/bin")
	for _, tt := range []struct {
		name, program string
		code          int // 0: found
	}{
		{"in PATH", "sh", 0},
		{"by path", "./good", 0},
		{"not in PATH", "good", exit.NotFound},
		{"no such path", "./nosuch", exit.NotFound},
		{"no such directory", "nosuch/good", exit.NotFound},
		{"not executable", "./data", exit.NotExecutable},
		{"a directory", "./", exit.NotExecutable},
		{"empty", "", exit.NotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := LookUp(tt.program)
			var coded exit.Error
			if tt.code == 0 && err != nil || tt.code != 0 && (!errors.As(err, &coded) || coded.Code != tt.code) {
				t.Errorf("error %v, want exit code %d", err, tt.code)
			}
		})
	}
	t.Setenv("PATH", ".:/bin")
	if _, err := LookUp("good"); !strings.Contains(strings.Join(hint.All(err), ""), "./good") {
		t.Errorf("a program in the current directory: %v without the hint", err)
	}
}

func TestExitOf(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   error
	}{
		{"true", nil}, {"exit 7", exit.Status(7)}, {"kill -TERM $$", exit.Status(143)}, {"kill -9 $$", exit.Status(137)},
	} {
		if got := exitOf(exec.Command("sh", "-c", tt.script).Run()); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.script, got, tt.want)
		}
	}
}

func TestInForeground(t *testing.T) {
	for _, tt := range []struct {
		name, stat string
		want       bool
	}{
		{"in front", "7 (a) b) S 1 7 6 34816 7 0", true},
		{"behind", "7 (cleat) S 1 7 6 34816 6 0", false},
		{"no terminal", "7 (cleat) S 1 7 6 0 -1 0", false},
		{"cut short", "7 (cleat) S 1", false},
		{"empty", "", false},
	} {
		if got := inForeground([]byte(tt.stat)); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
