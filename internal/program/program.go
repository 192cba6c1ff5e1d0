// Package program finds other programs that Cleat runs: tc, ovs-vsctl, dockerd, iperf3.
// Debian keeps many of them in directories that only root's PATH has, but a command such
// as `cleat bench` needs no root. So each is looked up in PATH first, then in
// /usr/local/sbin, /usr/sbin and /sbin.
//
// Commands that a user names, as in `cleat run CMD`, are looked up in PATH alone, without
// this package.
package program

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// adminDirs hold the programs of system administrators (hier(7)).
var adminDirs = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// Find returns the path of the named program. The error wraps exec.ErrNotFound where
// there is none. A name with a slash is a path already.
func Find(name string) (string, error) { return FindIn(os.Getenv("PATH"), name) }

// FindIn is Find with another value of PATH. Relative directories in it are skipped.
func FindIn(path, name string) (string, error) {
	if strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	for _, dir := range dirs(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// FindBeside returns the path of the named program in the directory of this one, or as Find does.
func FindBeside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if file, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return file, nil
		}
	}
	return Find(name)
}

// Command is exec.Command for a program that Find finds. Where it does not, starting
// the command fails with exec.ErrNotFound.
func Command(name string, args ...string) *exec.Cmd {
	return found(exec.Command(name, args...), name)
}

// CommandContext is exec.CommandContext for a program that Find finds.
func CommandContext(ctx context.Context, name string, args ...string) *exec.Cmd {
	return found(exec.CommandContext(ctx, name, args...), name)
}

func found(cmd *exec.Cmd, name string) *exec.Cmd {
	if file, err := Find(name); err == nil {
		cmd.Path, cmd.Err = file, nil
	}
	return cmd
}

// SearchPath returns the PATH with the directories that Find adds to it, for programs
// that run further ones.
func SearchPath() string {
	return strings.Join(dirs(os.Getenv("PATH")), string(filepath.ListSeparator))
}

func dirs(path string) []string {
	all := filepath.SplitList(path)
	for _, dir := range adminDirs {
		if !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	return all
}
