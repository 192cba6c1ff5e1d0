package usernettest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cleat/lab"
	"cleat/usernet/usernettest"
)

// program builds cleat as it is shipped, or takes the one that CLEAT names.
func program(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CLEAT"); p != "" {
		return p
	}
	p := filepath.Join(t.TempDir(), "cleat")
	cmd := exec.Command("go", "build", "-o", p, "cleat/cmd/cleat")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build cleat: %v: %s", err, out)
	}
	return p
}

// TestCleat runs the suite on `cleat run`.
func TestCleat(t *testing.T) {
	lab.Need(t)
	usernettest.Run(t, usernettest.Cleat(program(t)), settings(), match(t))
}
