package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// groupsLeft returns the control groups of labs that have ended, on the whole machine.
// Those of running labs, of other tests, are locked in one hierarchy.
func groupsLeft(t *testing.T) []string {
	t.Helper()
	var found []string
	alive := map[string]bool{} // by name of the group
	for _, pattern := range []string{"/sys/fs/cgroup/cleat-bench.*", "/sys/fs/cgroup/*/cleat-bench.*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			found = append(found, path)
			alive[filepath.Base(path)] = alive[filepath.Base(path)] || locked(path)
		}
	}
	return slices.DeleteFunc(found, func(path string) bool { return alive[filepath.Base(path)] })
}

// locked reports whether a process holds a lock on a directory.
func locked(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false // it was removed
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// contained starts an experiment whose ends run in containers, and waits until they do.
// It skips the test, with the reason, if that is impossible.
func contained(t *testing.T, runtime, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "cleat"), "bench", "quick", "--only", "network=loopback,work=tcp", "--runtime", runtime,
		"--duration", "10ms", "--repeat", "1000", "--out", dir)
	cmd.Stderr = &bytes.Buffer{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, cmd, func() bool { return sampleCount(dir) >= 1 })
	if text, _ := os.ReadFile(filepath.Join(dir, "samples.jsonl")); bytes.Contains(text, []byte(`"absent":`)) {
		cmd.Process.Kill()
		cmd.Wait()
		t.Skipf("no containers of %s: %s", runtime, cmd.Stderr)
	}
	return cmd
}

// TestContainersLeaveNothing ends experiments whose ends run in containers, by SIGKILL
// and by SIGINT. Empty control groups of a killed experiment are removed by the next one.
func TestContainersLeaveNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	needUserLab(t)
	before := traces(t)
	engineFiles := []string{"/run/docker", "/run/containerd", "/run/libpod", "/etc/docker/key.json", "/opt/containerd", "/var/lib/docker"}
	for _, path := range engineFiles {
		before[path] = exists(path)
	}
	t.Run("killed", func(t *testing.T) {
		for _, runtime := range []string{"docker", "podman"} {
			t.Run(runtime, func(t *testing.T) {
				t.Parallel()
				cmd := contained(t, runtime, filepath.Join(t.TempDir(), "killed"))
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				cmd.Wait() // the error says that it was killed
			})
		}
	})
	settled(t, before)
	t.Run("the next experiment", func(t *testing.T) {
		cmd := contained(t, "docker", filepath.Join(t.TempDir(), "interrupted"))
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("exit after Ctrl-C: %v, want 130\n%s", err, cmd.Stderr)
		}
		settled(t, before)
		if left := groupsLeft(t); len(left) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
	})
	for _, path := range engineFiles {
		if exists(path) && !before[path] {
			t.Errorf("left behind: %s", path)
		}
	}
}
