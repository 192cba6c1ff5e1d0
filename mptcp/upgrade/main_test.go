package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/lab"
	"cleat/mptcp/upgrade"
)

// guestEnv makes the test binary a guest program, selected by name.
const guestEnv = "CLEAT_TEST_GUEST"

// execEnv makes the test binary become the program in its arguments: "exec" or "strict".
const execEnv = "CLEAT_TEST_EXEC"

func TestMain(m *testing.M) {
	upgrade.Init()
	if how := os.Getenv(execEnv); how != "" {
		os.Unsetenv(execEnv)
		path, err := exec.LookPath(os.Args[1])
		if err == nil {
			err = upgrade.Exec(upgrade.Config{Path: path, Args: os.Args[1:], Strict: how == "strict"})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
	if name := os.Getenv(guestEnv); name != "" {
		if err := guests[name](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(lab.RunTests(m))
}

// upgraded returns a program that becomes another one, as users start it.
func upgraded(ctx context.Context, how string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), execEnv+"="+how)
	return cmd
}

// guest returns the command line of a guest.
func guest(name string) []string { return []string{"env", guestEnv + "=" + name, self()} }

// self returns the path of the test binary, for other programs to start.
func self() string {
	path, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	return path
}

// need skips if there is no lab, no MPTCP in it, or the kernel is too old.
func need(t *testing.T) {
	t.Helper()
	lab.Need(t)
	if err := upgrade.Check(); err != nil {
		t.Skip(err)
	}
	out, err := upgraded(t.Context(), "exec", "true").CombinedOutput()
	for _, why := range []error{upgrade.ErrOldKernel, upgrade.ErrOtherSupervisor, sys.ErrSeccompArch} {
		if strings.Contains(string(out), why.Error()) {
			t.Skip(why)
		}
	}
	if err != nil {
		t.Fatalf("become true: %v: %s", err, out)
	}
}

// patience ends a test that hangs; nothing is measured by it.
func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// code returns an exit code as shells report it.
func code(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}
