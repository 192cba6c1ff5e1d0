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

// containerNet is a network namespace that is served for containers.
type containerNet struct {
	dir      string // of the test
	netns    string // path of the namespace
	listener string // path of the socket
	n        *sandbox.Network
	stop     context.CancelFunc
	result   chan error // the result of Run
}

// newContainerNet creates a network namespace and serves it until stop is called.
func newContainerNet(t *testing.T, cfg sandbox.Config) *containerNet {
	t.Helper()
	s := &containerNet{dir: t.TempDir(), result: make(chan error, 1)}
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
	if err := errors.Join(s.n.Join(testContext(t), sandbox.Namespace{Path: s.netns}), s.n.Prepare(testContext(t))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.result <- s.n.Run(ctx) }()
	return s
}

// end ends the network, and fails the test if Run fails.
func (s *containerNet) end(t *testing.T) {
	t.Helper()
	s.stop()
	select {
	case err := <-s.result:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Minute): // the test's context has ended in cleanups
		t.Error("Run does not return")
	}
}

// container is a guest in a containerNet. It is started as an OCI runtime starts
// containers, but sees the host's files.
type container struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	pipe  *os.File
	out   *bufio.Reader
}

// start starts a guest as a container.
func (s *containerNet) start(t *testing.T, name string, args ...string) *container {
	t.Helper()
	c := s.launch(t, name, args...)
	notifications := c.notifications(t)
	defer unix.Close(notifications)
	sendNotifications(t, s.listener, s.state(t, c.cmd.Process.Pid), notifications)
	c.begin(t)
	return c
}

// handoverFD is the socket by which a guest hands over the descriptor of its
// notifications.
const handoverFD = 3

// launch starts a guest that installs its filter and waits for begin.
func (s *containerNet) launch(t *testing.T, name string, args ...string) *container {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "handover")
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
		cmd.Process.Kill() // fails if it has exited
		cmd.Wait()
	})
	return &container{cmd, stdin, pipe.(*os.File), bufio.NewReader(pipe)}
}

// notifications receives the descriptor that the guest hands over.
func (c *container) notifications(t *testing.T) int {
	t.Helper()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(c.cmd.ExtraFiles[1].Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("got %d control messages from the guest, error %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	return fds[0]
}

// begin lets the guest start.
func (c *container) begin(t *testing.T) {
	t.Helper()
	if _, err := c.cmd.ExtraFiles[1].Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
}

// guestTimeout bounds how long a guest may take for its next output, even if other guests
// stall for longer.
const guestTimeout = 30 * time.Second

// line returns the next line of the guest's output.
func (c *container) line(t *testing.T) string {
	t.Helper()
	if err := c.pipe.SetReadDeadline(time.Now().Add(guestTimeout)); err != nil {
		t.Fatal(err)
	}
	text, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("read the guest's output: got %q, error %v", text, err)
	}
	return strings.TrimSpace(text)
}

// rest returns the rest of the guest's output when it has exited.
func (c *container) rest(t *testing.T) string {
	t.Helper()
	if err := c.pipe.SetReadDeadline(time.Now().Add(guestTimeout)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c.out)
	if err != nil {
		t.Fatalf("read the guest's output: got %q, error %v", text, err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the guest failed: %v: %s", err, text)
	}
	return strings.TrimSpace(string(bytes.TrimSpace(text)))
}

// contain installs the filter, hands over the descriptor of its notifications, and
// becomes another guest.
func contain(args []string) error {
	runtime.LockOSThread()
	fd, err := supervisor.InstallFilter()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(handoverFD, []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	unix.Close(fd)
	if _, err := unix.Read(handoverFD, make([]byte, 1)); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", append([]string{"guest", "guest"}, args...), os.Environ())
}

// state returns an OCI runtime's message about a container whose bundle grants no
// capabilities.
func (s *containerNet) state(t *testing.T, pid int) string {
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

// sendNotifications brings notifications to a listener, as a runtime does.
func sendNotifications(t *testing.T, listener, state string, notifications int) {
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
