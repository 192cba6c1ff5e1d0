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

// guestEnv makes the test binary play a guest's part.
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

// guestRole is the part to play: by the environment, or by arguments where a
// test has no say in that.
func guestRole() (role string, args []string) {
	if len(os.Args) > 2 && os.Args[1] == "guest" {
		return os.Args[2], os.Args[3:]
	}
	return os.Getenv(guestEnv), os.Args[1:]
}

// guest is a command that plays one of guests. What it prints is in out.
func guest(ctx context.Context, name string, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	cmd = exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), guestEnv+"="+name)
	out = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// patience ends a test that hangs; nothing is measured by it.
func patience(t *testing.T) context.Context {
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

// run runs a guest to its end and returns what it printed.
func run(t *testing.T, cfg sandbox.Config, name string, args ...string) string {
	t.Helper()
	cmd, out := guest(patience(t), name, args...)
	if err := newNetwork(t, cfg).Exec(patience(t), cmd); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, out)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}
