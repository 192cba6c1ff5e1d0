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

// lodger is a process in namespaces of its own, which dials when its stdin ends.
type lodger struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bytes.Buffer
}

func newLodger(t *testing.T, flags uintptr, args ...string) *lodger {
	t.Helper()
	cmd, out := guest(patience(t), "wait", args...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		// Neither we nor root are anybody in there.
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1234, HostID: 0, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 1234, HostID: 0, Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() { w.Close(); cmd.Wait() })
	return &lodger{cmd, w, out}
}

func TestJoin(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	byPID := func(l *lodger) sandbox.Namespace { return sandbox.Namespace{PID: l.cmd.Process.Pid} }
	byPath := func(l *lodger) sandbox.Namespace {
		return sandbox.Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", l.cmd.Process.Pid)}
	}
	tests := []struct {
		name  string
		flags uintptr
		ns    func(*lodger) sandbox.Namespace
	}{
		{"process in a user namespace of its own", unix.CLONE_NEWUSER | unix.CLONE_NEWNET, byPID},
		{"path, with a user namespace of its own", unix.CLONE_NEWUSER | unix.CLONE_NEWNET, byPath},
		{"process in our user namespace", unix.CLONE_NEWNET, byPID},
		{"user namespace given by path", unix.CLONE_NEWUSER | unix.CLONE_NEWNET, func(l *lodger) sandbox.Namespace {
			ns := byPath(l)
			ns.UserNSPath = fmt.Sprintf("/proc/%d/ns/user", l.cmd.Process.Pid)
			return ns
		}},
		{"our user namespace, said so", unix.CLONE_NEWNET, func(l *lodger) sandbox.Namespace {
			ns := byPath(l)
			ns.SkipUserNS = true
			return ns
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLodger(t, tt.flags, "tcp", server.String())
			n := newNetwork(t, sandbox.Config{})
			if err := n.Join(patience(t), tt.ns(l)); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- n.Run(patience(t)) }()
			l.stdin.Close()
			if err := l.cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, l.out)
			}
			if got := l.out.String(); got != "ready\nhello\n" {
				t.Errorf("got %q", got)
			}
			// The namespace is gone, so the network ends.
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

func TestJoinReplacesADevice(t *testing.T) {
	world(t)
	l := newLodger(t, unix.CLONE_NEWNET)
	first := newNetwork(t, sandbox.Config{})
	ns := sandbox.Namespace{PID: l.cmd.Process.Pid}
	if err := first.Join(patience(t), ns); err != nil {
		t.Fatal(err)
	}
	if err := newNetwork(t, sandbox.Config{}).Join(patience(t), ns); err == nil || !strings.Contains(err.Error(), `create device "cleat0"`) {
		t.Errorf("a second device of the name: error %v", err)
	}
	if err := newNetwork(t, sandbox.Config{ReplaceTUN: true}).Join(patience(t), ns); err != nil {
		t.Error(err)
	}
	if err := newNetwork(t, sandbox.Config{ReplaceTUN: true, Interface: "lo"}).Join(patience(t), ns); err == nil || !strings.Contains(err.Error(), "not a TUN or TAP") {
		t.Errorf("a link that is no TUN: error %v", err)
	}
}

func TestJoinNothing(t *testing.T) {
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
			err := newNetwork(t, sandbox.Config{}).Join(patience(t), ns)
			if err == nil {
				t.Error("no error")
			}
		})
	}
}

// A namespace that the helper is in itself would lead back to itself.
func TestJoinOurOwn(t *testing.T) {
	lab.Need(t)
	for name, ns := range map[string]sandbox.Namespace{
		"process": {PID: os.Getpid()},
		"path":    {Path: "/proc/self/ns/net"},
	} {
		t.Run(name, func(t *testing.T) {
			err := newNetwork(t, sandbox.Config{}).Join(patience(t), ns)
			var setup *sandbox.SetupError
			if !errors.As(err, &setup) || setup.Hint() == "" || !strings.Contains(err.Error(), "own network namespace") {
				t.Errorf("error %v, want a hint at another namespace", err)
			}
		})
	}
}
