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

// The programs under test: cleat as it is shipped, and a build that accepts the suite's
// threads as those of a command (by a linker flag).
var (
	shipped  = build{"CLEAT", ""}
	commands = build{"CLEAT_COMMANDS", "-X cleat/sandbox.assumeLandlocked=yes"}
)

type build struct {
	env   string // environment variable with the path of an existing binary
	flags string // linker flags
}

func (b build) program(t *testing.T) string {
	t.Helper()
	if p := os.Getenv(b.env); p != "" {
		return p
	}
	p := filepath.Join(t.TempDir(), "cleat")
	cmd := exec.Command("go", "build", "-ldflags", b.flags, "-o", p, "cleat/cmd/cleat")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build cleat: %v: %s", err, out)
	}
	return p
}

// quick matches the fast cases.
const quick = "^(integrity|connect/[^n]|close|urgent|udp/[^m]|fragments|dns|mtu|forward|end)"

// TestCleat runs the suite on `cleat run`, in each tier.
func TestCleat(t *testing.T) {
	lab.Need(t)
	which := match(t)
	if testing.Short() && *cases == "" {
		which = regexp.MustCompile(quick)
	}
	onTAP := which // the link layer matters to the fast cases
	if *cases == "" && !settings().Long {
		onTAP = regexp.MustCompile(quick)
	}
	cleat := shipped.program(t)
	for _, tier := range []string{"tun", "splice"} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			usernettest.Run(t, usernettest.Cleat(cleat, tier), settings(), which)
		})
		t.Run(tier+" on a TAP", func(t *testing.T) {
			t.Parallel()
			usernettest.Run(t, usernettest.Cleat(cleat, tier, "--device", "tap"), settings(), onTAP)
		})
	}
	for _, s := range []struct {
		name     string
		program  string
		restrict func() (int, error)
	}{{"seccomp", commands.program(t), supervisor.Restrict}, {"containers", cleat, supervisor.InstallFilter}} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p, replaced := usernettest.SeccompTier(s.program, s.restrict)
			usernettest.Run(t, p, settings(), which)
			t.Run("replaced", func(t *testing.T) { // not if a single case runs
				if replaced() == 0 {
					t.Error("no socket was replaced: another tier was used")
				}
				t.Logf("%d sockets were replaced", replaced())
			})
		})
	}
}
