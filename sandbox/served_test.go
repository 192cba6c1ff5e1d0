package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"cleat/netns"
	"cleat/sandbox"
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// servedNS is a network namespace whose containers come by a listener.
type servedNS struct {
	dir      string // for the test
	netns    string // path
	listener string // path
	n        *sandbox.Network
	stop     context.CancelFunc
	ended    chan error // what Run returned
}

// newServed makes a network namespace and serves it until stop is called.
func newServed(t *testing.T, cfg sandbox.Config) *servedNS {
	t.Helper()
	s := &servedNS{dir: t.TempDir(), ended: make(chan error, 1)}
	s.netns = filepath.Join(s.dir, "netns")
	ns, err := netns.New("container")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Pin(s.netns); err != nil {
		t.Fatal(err)
	}
	ns.Close()
	t.Cleanup(func() { netns.Unpin(s.netns) })
	private := filepath.Join(s.dir, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	s.listener = filepath.Join(private, "seccomp.sock")
	cfg.RuntimeListener, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.listener, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tier = sandbox.TierSeccomp
	s.n = newNetwork(t, cfg)
	if err := errors.Join(s.n.Join(patience(t), sandbox.Namespace{Path: s.netns}), s.n.Prepare(patience(t))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.ended <- s.n.Run(ctx) }()
	return s
}

// end ends the network and fails the test where Run does.
func (s *servedNS) end(t *testing.T) {
	t.Helper()
	s.stop()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Minute): // cleanups have no other clock
		t.Error("Run does not end")
	}
}

// contained is a guest in a served namespace, started as an OCI runtime starts programs,
// but with the files of the host.
type contained struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	pipe  *os.File
	out   *bufio.Reader
}

// start starts a guest as a container of its own.
func (s *servedNS) start(t *testing.T, name string, args ...string) *contained {
	t.Helper()
	c := s.launch(t, name, args...)
	notifications := c.notifications(t)
	defer unix.Close(notifications)
	tell(t, s.listener, s.state(t, c.cmd.Process.Pid), notifications)
	c.begin(t)
	return c
}

// handed is the socket by which a guest hands its notifications over.
const handed = 3

// launch starts a guest that waits for begin, behind its filter.
func (s *servedNS) launch(t *testing.T, name string, args ...string) *contained {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "handed")
	defer theirs.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{"guest", "contain", name}, args...)...)
	cmd.ExtraFiles = []*os.File{theirs, os.NewFile(uintptr(pair[0]), "ours")}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	ns, err := netns.Open(s.netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // it may have ended
		cmd.Wait()
	})
	return &contained{cmd, stdin, pipe.(*os.File), bufio.NewReader(pipe)}
}

// notifications takes over what the guest hands over.
func (c *contained) notifications(t *testing.T) int {
	t.Helper()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(c.cmd.ExtraFiles[1].Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("the guest handed over %d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	return fds[0]
}

// begin lets the guest begin.
func (c *contained) begin(t *testing.T) {
	t.Helper()
	if _, err := c.cmd.ExtraFiles[1].Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
}

// soon bounds how long a guest may take for the next thing that it prints. Others may
// stall for longer.
const soon = 30 * time.Second

// line is what the guest prints next.
func (c *contained) line(t *testing.T) string {
	t.Helper()
	if err := c.pipe.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	text, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the guest printed %q, %v", text, err)
	}
	return strings.TrimSpace(text)
}

// rest is what the guest prints until it ends.
func (c *contained) rest(t *testing.T) string {
	t.Helper()
	if err := c.pipe.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c.out)
	if err != nil {
		t.Fatalf("the guest printed %q, %v", text, err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the guest: %v: %s", err, text)
	}
	return strings.TrimSpace(string(bytes.TrimSpace(text)))
}

// contain is the guest before it begins: it hands its notifications over and becomes what
// its arguments say.
func contain(args []string) error {
	runtime.LockOSThread()
	fd, err := supervisor.InstallFilter()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(handed, []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	unix.Close(fd)
	if _, err := unix.Read(handed, make([]byte, 1)); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", append([]string{"guest", "guest"}, args...), os.Environ())
}

// state is an OCI runtime's message about a container, with a bundle that gives it no
// capabilities.
func (s *servedNS) state(t *testing.T, pid int) string {
	t.Helper()
	bundle, err := os.MkdirTemp(s.dir, "bundle")
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"process": {"capabilities": {}}}`), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "fds": []string{"seccompFd"}, "pid": pid,
		"state": map[string]any{"ociVersion": "1.0.2", "id": fmt.Sprint(pid), "status": "creating", "pid": pid, "bundle": bundle},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// tell brings notifications to a listener, as a runtime does.
func tell(t *testing.T, listener, state string, notifications int) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: listener, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.WriteMsgUnix([]byte(state), unix.UnixRights(notifications), nil); err != nil {
		t.Fatal(err)
	}
}
