package sandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cleat/netns"
	"cleat/sandbox"
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// A program that can open the runtimes' socket installs a filter of its own and claims to
// be a container. It gets no sockets of the host. If it is the user's own program, in no
// network that is served here, it is admitted, but its calls are refused.
func TestForeignFilterIsNotServed(t *testing.T) {
	if !asRoot(t) {
		return
	}
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	s := newContainerNet(t, sandbox.Config{})
	victim := s.start(t, "wait", "tcp", server)
	if output := victim.line(t); output != "ready" {
		t.Fatalf("the container printed %q", output)
	}
	state := s.state(t, victim.cmd.Process.Pid)
	for _, dir := range []string{s.dir, filepath.Dir(s.dir), filepath.Dir(s.listener)} { // so that other users can enter
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(s.listener, 0o666); err != nil {
		t.Fatal(err)
	}
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	own, err := netns.Open(s.netns)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, tt := range []struct {
		name string
		in   *netns.NS // nil: the host's namespace
		uid  uint32
	}{
		{"in the served namespace", own, 0},
		{"in another namespace", other, 0},
		{"another user", nil, 1234},
		{"outside of the container", nil, 0}, // admitted, but its threads are not the container's
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := s.n.Stats().Supervisor
			cmd, out := guest(testContext(t), "bring-filter", s.listener, state, server)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.uid}}
			start := cmd.Start
			if tt.in != nil {
				start = func() error { return tt.in.Do(cmd.Start) }
			}
			if err := errors.Join(start(), cmd.Wait()); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want := "ENOSYS" // nobody answers its filter's notifications
			if tt.uid == 0 && tt.in == nil {
				want = "EACCES"
			}
			if got := strings.TrimSpace(out.String()); got != want {
				t.Errorf("the program printed %q, want %q", got, want)
			}
			if after := s.n.Stats().Supervisor; after.Connected != before.Connected {
				t.Errorf("counters %+v, before %+v", after, before)
			}
		})
	}
	// The real container is still served.
	victim.stdin.Close()
	if got := victim.rest(t); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	s.end(t)
}

// bringFilter installs a filter on a thread, brings it to a listener with the state of a
// container, and connects.
func bringFilter(args []string) error {
	to := netip.MustParseAddrPort(args[2])
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: args[0], Net: "unix"})
	if err != nil {
		return err
	}
	filtered, brought := make(chan int), make(chan struct{})
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			result <- err
			return
		}
		fd, err := supervisor.InstallFilter()
		if err != nil {
			result <- err
			return
		}
		filtered <- fd
		<-brought
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(socket, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		}
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case fd := <-filtered:
		_, _, err = c.WriteMsgUnix([]byte(args[1]), unix.UnixRights(fd), nil)
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			return err
		}
	}
	close(brought)
	fmt.Println(errnoName(<-result))
	return nil
}

// Runtimes that have connected and send nothing delay no container's start.
func TestSilentRuntimesDelayNobody(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	s := newContainerNet(t, sandbox.Config{})
	for range 16 {
		c, err := net.Dial("unix", s.listener)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if got := s.start(t, "dial", "tcp", server).rest(t); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	s.end(t)
}

// Messages that are not about a container here are refused, and do no harm.
func TestInvalidRuntimeMessages(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	s := newContainerNet(t, sandbox.Config{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	self := strconv.Itoa(os.Getpid())
	for _, state := range []string{
		s.state(t, os.Getpid()), // this process is in another network namespace
		`{"fds": ["seccompFd"], "pid": 0}`, `{"fds": ["seccompFd"], "pid": ` + self + `}`, `{"fds": [], "pid": ` + self + `}`,
		`{"fds": ["seccompFd", "seccompFd"]}`, `{"fds": ["other"]}`, `[]`, `{`, "\x00",
	} {
		sendNotifications(t, s.listener, state, int(r.Fd()))
	}
	if got := s.start(t, "dial", "tcp", server).rest(t); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	s.end(t)
	if _, err := w.Write([]byte{0}); err != nil {
		t.Errorf("a descriptor was closed that belongs to somebody else: %v", err)
	}
}

// A container whose configuration other users can write is assumed to have all
// capabilities.
func TestUntrustedContainerConfig(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	s := newContainerNet(t, sandbox.Config{})
	for i, tt := range []struct {
		name   string
		change func(config string) error
		kept   bool
	}{
		{"the user's own", func(string) error { return nil }, false},
		{"file writable by all", func(config string) error { return os.Chmod(config, 0o666) }, true},
		{"directory writable by all", func(config string) error { return os.Chmod(filepath.Dir(config), 0o777) }, true},
		{"symbolic link", func(config string) error {
			return errors.Join(os.Rename(config, config+".real"), os.Symlink(config+".real", config))
		}, true},
		{"pipe", func(config string) error { return errors.Join(os.Remove(config), unix.Mkfifo(config, 0o600)) }, true},
		{"capabilities", func(config string) error {
			return os.WriteFile(config, []byte(`{"process": {"capabilities": {"bounding": ["CAP_NET_ADMIN"]}}}`), 0o600)
		}, true},
		{"none", os.Remove, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := s.n.Stats().Supervisor.Connected
			c := s.launch(t, "dial", "tcp", server)
			state := s.state(t, c.cmd.Process.Pid)
			var read struct{ State struct{ Bundle string } }
			if err := errors.Join(json.Unmarshal([]byte(state), &read), tt.change(filepath.Join(read.State.Bundle, "config.json"))); err != nil {
				t.Fatal(err)
			}
			notifications := c.notifications(t)
			sendNotifications(t, s.listener, state, notifications)
			unix.Close(notifications)
			c.begin(t)
			if got := c.rest(t); got != "hello" {
				t.Errorf("container %d printed %q", i, got)
			}
			if connected := s.n.Stats().Supervisor.Connected - before; (connected == 0) != tt.kept {
				t.Errorf("%d connections on sockets of the host", connected)
			}
		})
	}
	s.end(t)
}

func TestListenForRuntimes(t *testing.T) {
	private := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(private, "socket")
	for _, mode := range []os.FileMode{0o755, 0o711, 0o750, 0o777} {
		if err := os.Chmod(private, mode); err != nil {
			t.Fatal(err)
		}
		if l, err := sandbox.ListenForRuntimes(path); !errors.Is(err, sandbox.ErrDirectoryNotPrivate) {
			t.Errorf("mode %o: got error %v, want %v", mode, err, sandbox.ErrDirectoryNotPrivate)
			if err == nil {
				l.Close()
			}
		}
	}
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := sandbox.ListenForRuntimes(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, error %v; want 0600", info.Mode(), err)
	}
	if _, err := sandbox.ListenForRuntimes(filepath.Join(private, "none", "socket")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: got error %v, want %v", err, os.ErrNotExist)
	}
}
