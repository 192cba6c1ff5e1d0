package usernettest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"cleat/lab"
	"cleat/sandbox/supervisor"
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

// quick are the cases that take no time.
const quick = "^(integrity|connect/[^n]|close|urgent|udp/[^m]|fragments|dns|mtu|forward|end)"

// TestCleat runs the suite on `cleat run`, in each tier.
func TestCleat(t *testing.T) {
	lab.Need(t)
	which := match(t)
	if testing.Short() && *cases == "" {
		which = regexp.MustCompile(quick)
	}
	cleat := program(t)
	for _, tier := range []string{"tun", "splice"} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			usernettest.Run(t, usernettest.Cleat(cleat, tier), settings(), which)
		})
	}
	for _, s := range []struct {
		name, how string
		restrict  func() (int, error)
	}{{"seccomp", ",landlock", supervisor.Restrict}, {"containers", "", supervisor.Contain}} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p, replaced := usernettest.Supervised(cleat, s.how, s.restrict)
			usernettest.Run(t, p, settings(), which)
			if replaced() == 0 && !t.Skipped() {
				t.Error("no socket was replaced: this has been another tier")
			}
			t.Logf("%d sockets were replaced", replaced())
		})
	}
}
