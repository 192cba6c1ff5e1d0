package sandbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"cleat/lab"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// nsProcess is a process in namespaces of its own. It dials when its stdin ends.
type nsProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bytes.Buffer
}

func startNSProcess(t *testing.T, flags uintptr, args ...string) *nsProcess {
	t.Helper()
	cmd, out := guest(testContext(t), "wait", args...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		// The test's user is not mapped, and neither is root.
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1234, HostID: 0, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 1234, HostID: 0, Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() { w.Close(); cmd.Wait() })
	return &nsProcess{cmd, w, out}
}

func TestJoin(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	byPID := func(p *nsProcess) sandbox.Namespace { return sandbox.Namespace{PID: p.cmd.Process.Pid} }
	byPath := func(p *nsProcess) sandbox.Namespace {
		return sandbox.Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", p.cmd.Process.Pid)}
	}
	tests := []struct {
		name  string
		flags uintptr
		ns    func(*nsProcess) sandbox.Namespace
	}{
		{"process in a user namespace of its own", unix.CLONE_NEWUSER | unix.CLONE_NEWNET, byPID},
		{"path, with a user namespace of its own", unix.CLONE_NEWUSER | unix.CLONE_NEWNET, byPath},
		{"process in our user namespace", unix.CLONE_NEWNET, byPID},
		{"user namespace given by path", unix.CLONE_NEWUSER | unix.CLONE_NEWNET, func(p *nsProcess) sandbox.Namespace {
			ns := byPath(p)
			ns.UserNSPath = fmt.Sprintf("/proc/%d/ns/user", p.cmd.Process.Pid)
			return ns
		}},
		{"our user namespace, skipped", unix.CLONE_NEWNET, func(p *nsProcess) sandbox.Namespace {
			ns := byPath(p)
			ns.SkipUserNS = true
			return ns
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := startNSProcess(t, tt.flags, "tcp", server.String())
			n := newNetwork(t, sandbox.Config{})
			if err := n.Join(testContext(t), tt.ns(p)); err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() { result <- n.Run(testContext(t)) }()
			p.stdin.Close()
			if err := p.cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, p.out)
			}
			if got := p.out.String(); got != "ready\nhello\n" {
				t.Errorf("the process printed %q", got)
			}
			// The namespace has ended, so Run ends.
			if err := <-result; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

func TestJoinReplacesTUN(t *testing.T) {
	fakeInternet(t)
	p := startNSProcess(t, unix.CLONE_NEWNET)
	first := newNetwork(t, sandbox.Config{})
	ns := sandbox.Namespace{PID: p.cmd.Process.Pid}
	if err := first.Join(testContext(t), ns); err != nil {
		t.Fatal(err)
	}
	if err := newNetwork(t, sandbox.Config{}).Join(testContext(t), ns); err == nil || !strings.Contains(err.Error(), `create device "cleat0"`) {
		t.Errorf("second device of the same name: got error %v", err)
	}
	if err := newNetwork(t, sandbox.Config{ReplaceTUN: true}).Join(testContext(t), ns); err != nil {
		t.Error(err)
	}
	if err := newNetwork(t, sandbox.Config{ReplaceTUN: true, Interface: "lo"}).Join(testContext(t), ns); err == nil || !strings.Contains(err.Error(), "not a TUN or TAP") {
		t.Errorf("replacing a link of another kind: got error %v", err)
	}
}

func TestJoinInvalidNamespace(t *testing.T) {
	lab.Need(t)
	for name, ns := range map[string]sandbox.Namespace{
		"neither":             {},
		"both":                {PID: 1, Path: "/proc/self/ns/net"},
		"no such process":     {PID: 1 << 30},
		"not a namespace":     {Path: "/etc/passwd"},
		"wrong kind":          {Path: "/proc/self/ns/user"},
		"wrong kind of owner": {Path: "/proc/self/ns/net", UserNSPath: "/proc/self/ns/net"},
	} {
		t.Run(name, func(t *testing.T) {
			err := newNetwork(t, sandbox.Config{}).Join(testContext(t), ns)
			if err == nil {
				t.Error("Join succeeded")
			}
		})
	}
}

// The process's own namespace is refused: its default route would lead back to itself.
func TestJoinOwnNamespace(t *testing.T) {
	lab.Need(t)
	for name, ns := range map[string]sandbox.Namespace{
		"process": {PID: os.Getpid()},
		"path":    {Path: "/proc/self/ns/net"},
	} {
		t.Run(name, func(t *testing.T) {
			err := newNetwork(t, sandbox.Config{}).Join(testContext(t), ns)
			var setup *sandbox.SetupError
			if !errors.As(err, &setup) || setup.Hint() == "" || !strings.Contains(err.Error(), "own network namespace") {
				t.Errorf("got error %v, want one with a hint", err)
			}
		})
	}
}
