package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/sandbox"
)

// guestEnv is the environment variable that makes the test binary run one of guests.
const guestEnv = "CLEAT_TEST_GUEST"

func TestMain(m *testing.M) {
	sandbox.Init()
	if role, args := guestRole(); role != "" {
		play, ok := guests()[role]
		if !ok {
			fmt.Fprintln(os.Stderr, "unknown guest", role)
			os.Exit(1)
		}
		if err := play(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(lab.RunTests(m))
}

// guestRole returns the guest to run, from the environment, or from the arguments if a
// test does not control the environment.
func guestRole() (role string, args []string) {
	if len(os.Args) > 2 && os.Args[1] == "guest" {
		return os.Args[2], os.Args[3:]
	}
	return os.Getenv(guestEnv), os.Args[1:]
}

// guest returns a command that runs one of guests. Its output goes to out.
func guest(ctx context.Context, name string, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	cmd = exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), guestEnv+"="+name)
	out = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// testContext ends a test that hangs.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newNetwork(t *testing.T, cfg sandbox.Config) *sandbox.Network {
	t.Helper()
	n, err := sandbox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// runGuest runs a guest to its end and returns its output.
func runGuest(t *testing.T, cfg sandbox.Config, name string, args ...string) string {
	t.Helper()
	cmd, out := guest(testContext(t), name, args...)
	if err := newNetwork(t, cfg).Exec(testContext(t), cmd); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, out)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}
