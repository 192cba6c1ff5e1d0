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

// A program that finds the runtimes' socket brings a filter of its own, and says that it is
// a container's. It gets no sockets of the host's, unless it is the user's and outside of
// all networks of ours.
func TestProgramBringsItsOwnFilter(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	server := answerTCP(t, outside4, "hello", false).String()
	s := newServed(t, sandbox.Config{})
	victim := s.start(t, "wait", "tcp", server)
	if said := victim.line(t); said != "ready" {
		t.Fatalf("the container printed %q", said)
	}
	state := s.state(t, victim.cmd.Process.Pid)
	for _, dir := range []string{s.dir, filepath.Dir(s.dir), filepath.Dir(s.listener)} { // for other users
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
		in   *netns.NS // nil: the host's
		uid  uint32
	}{
		{"in the network", own, 0},
		{"in another network", other, 0},
		{"another user", nil, 1234},
		{"none of the container's", nil, 0}, // trusted, but its threads are not
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := s.n.Stats().Supervisor
			cmd, out := guest(patience(t), "bring-filter", s.listener, state, server)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.uid}}
			start := cmd.Start
			if tt.in != nil {
				start = func() error { return tt.in.Do(cmd.Start) }
			}
			if err := errors.Join(start(), cmd.Wait()); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want := "ENOSYS" // nobody answers for its filter
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
	// Who is in it for real is served still.
	victim.stdin.Close()
	if got := victim.rest(t); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	s.end(t)
}

// bringFilter puts a filter on a thread, brings it to a listener with somebody else's
// state, and connects.
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
	fmt.Println(name(<-result))
	return nil
}

// Runtimes that have connected and say nothing keep no container from starting.
func TestSilentRuntimes(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false).String()
	s := newServed(t, sandbox.Config{})
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

// What comes by the listener and is no container's is refused, and does no harm.
func TestOtherMessages(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false).String()
	s := newServed(t, sandbox.Config{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	self := strconv.Itoa(os.Getpid())
	for _, state := range []string{
		s.state(t, os.Getpid()), // it is in another network
		`{"fds": ["seccompFd"], "pid": 0}`, `{"fds": ["seccompFd"], "pid": ` + self + `}`, `{"fds": [], "pid": ` + self + `}`,
		`{"fds": ["seccompFd", "seccompFd"]}`, `{"fds": ["other"]}`, `[]`, `{`, "\x00",
	} {
		tell(t, s.listener, state, int(r.Fd()))
	}
	if got := s.start(t, "dial", "tcp", server).rest(t); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	s.end(t)
	if _, err := w.Write([]byte{0}); err != nil {
		t.Errorf("the descriptor that came is gone: %v", err)
	}
}

// A container whose configuration others could have written may have any capabilities.
func TestConfigurationOfOthers(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false).String()
	s := newServed(t, sandbox.Config{})
	for i, tt := range []struct {
		name   string
		change func(config string) error
		kept   bool
	}{
		{"the user's own", func(string) error { return nil }, false},
		{"file for everybody", func(config string) error { return os.Chmod(config, 0o666) }, true},
		{"directory for everybody", func(config string) error { return os.Chmod(filepath.Dir(config), 0o777) }, true},
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
			tell(t, s.listener, state, notifications)
			unix.Close(notifications)
			c.begin(t)
			if got := c.rest(t); got != "hello" {
				t.Errorf("container %d printed %q", i, got)
			}
			if made := s.n.Stats().Supervisor.Connected - before; (made == 0) != tt.kept {
				t.Errorf("it has made %d connections by sockets of the host's", made)
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
			t.Errorf("mode %o: %v", mode, err)
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
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	if _, err := sandbox.ListenForRuntimes(filepath.Join(private, "none", "socket")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}
