// Package benchtest has what tests of package bench's rooms share.
package benchtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cleat/internal/program"
)

// Build builds cleat, and cleat-cni beside it, for the duration of a test. It returns the path of cleat;
// "" if there is no Go toolchain, as in a guest. Others are further programs, such as "cleat/cmd/cleat-node".
func Build(t *testing.T, others ...string) string {
	t.Helper()
	if _, err := program.Find("go"); err != nil {
		return ""
	}
	dir := t.TempDir()
	if err := BuildIn(dir, others...); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "cleat")
}

// BuildIn builds what Build builds in a directory.
func BuildIn(dir string, others ...string) error {
	compiler, err := program.Find("go")
	if err != nil {
		return err
	}
	args := append([]string{"build", "-o", dir + "/", "cleat/cmd/cleat", "cleat/cmd/cleat-cni"}, others...)
	cmd := exec.Command(compiler, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as in Makefile: containers have nothing else
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, out)
	}
	return nil
}

// NeedProgram is Build, and skips the test if there is no Go toolchain.
func NeedProgram(t *testing.T, others ...string) string {
	t.Helper()
	path := Build(t, others...)
	if path == "" {
		t.Skip("no Go toolchain to build the program")
	}
	return path
}

// Scratch returns a directory with a short path, until the test ends: the sockets of engines in it
// must fit the 108 bytes of an address (unix(7)).
func Scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
