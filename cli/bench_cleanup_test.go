package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchCommand starts an experiment that is long enough to be interrupted, over networks
// with links, rules, helper programs and servers.
func benchCommand(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "cleat"), "bench", "quick",
		"--networks", "loopback,veth,bridge-nf,published-host,tun", "--repeat", "100", "--out", dir)
	cmd.Stderr = &bytes.Buffer{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// needUserLab skips the test, with the reason, if the machine refuses labs.
func needUserLab(t *testing.T) {
	t.Helper()
	out, err := exec.Command(filepath.Join(binDir, "cleat"), "bench", "list", "--json").CombinedOutput()
	if err != nil {
		t.Skipf("no lab: %s", out)
	}
}

// traces returns what a run could leave behind: processes of the program, namespaces of
// processes, mounts and links.
func traces(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if exe, err := os.Readlink(p + "/exe"); err == nil && strings.HasPrefix(exe, binDir) {
			found[fmt.Sprintf("process %s: %s", p, exe)] = true
		}
		for _, kind := range []string{"net", "mnt", "pid", "user"} {
			// Other tests on this machine create namespaces as well; settled waits for
			// the end of those.
			if ns, err := os.Readlink(p + "/ns/" + kind); err == nil {
				found[ns] = true
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		found["mount "+line] = true
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		found["link "+l.Name] = true
	}
	return found
}

// settled waits until there are no traces that were not there before. Other programs on
// the machine may add some in the meantime, so it waits long.
func settled(t *testing.T, before map[string]bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var left []string
		for trace := range traces(t) {
			if !before[trace] {
				left = append(left, trace)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestKillLeavesNothing kills the program that the user started, and nothing else, at
// moments at which different things exist.
func TestKillLeavesNothing(t *testing.T) {
	needUserLab(t)
	for _, tt := range []struct {
		name string
		when func(dir string) bool
	}{
		{"at once", func(string) bool { return true }},
		{"when the directory is there", func(dir string) bool { return exists(filepath.Join(dir, "samples.jsonl")) }},
		{"when the host is described", func(dir string) bool { return exists(filepath.Join(dir, "environment.json")) }},
		{"at the first sample", func(dir string) bool { return sampleCount(dir) >= 1 }},
		{"at the tenth sample", func(dir string) bool { return sampleCount(dir) >= 10 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := traces(t)
			dir := filepath.Join(t.TempDir(), "out")
			cmd := benchCommand(t, dir)
			waitFor(t, cmd, func() bool { return tt.when(dir) })
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() // the error says that it was killed
			settled(t, before)
		})
	}
}

// TestInterruptKeepsWhatWasMeasured sends SIGINT. The samples so far are kept, marked as
// partial, with a report.
func TestInterruptKeepsWhatWasMeasured(t *testing.T) {
	needUserLab(t)
	before := traces(t)
	dir := filepath.Join(t.TempDir(), "out")
	cmd := benchCommand(t, dir)
	waitFor(t, cmd, func() bool { return sampleCount(dir) >= 12 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("exit after Ctrl-C: %v, want 130\n%s", err, cmd.Stderr)
	}
	var env struct{ Partial bool }
	text, err := os.ReadFile(filepath.Join(dir, "environment.json"))
	if err == nil {
		err = json.Unmarshal(text, &env)
	}
	if err != nil || !env.Partial {
		t.Errorf("environment.json: partial is %v, %v; want true", env.Partial, err)
	}
	for _, name := range []string{"summary.json", "summary.csv", "report.html"} {
		if !exists(filepath.Join(dir, name)) {
			t.Errorf("%s is missing", name)
		}
	}
	settled(t, before)
}

func waitFor(t *testing.T, cmd *exec.Cmd, ready func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ready() {
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("the run did not get there:\n%s", cmd.Stderr)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func sampleCount(dir string) int {
	text, _ := os.ReadFile(filepath.Join(dir, "samples.jsonl"))
	return bytes.Count(text, []byte("\n"))
}
