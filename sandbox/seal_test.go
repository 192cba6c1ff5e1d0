package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"cleat/lab"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// sealed is a host side that seals itself, runs a command, and then tries what it must
// not be able to do.
func sealed(args []string) error {
	ctx := context.Background()
	n, err := sandbox.New(sandbox.Config{})
	if err != nil {
		return err
	}
	cmd, out := guest(ctx, "echo", args[0])
	if err := n.Wrap(cmd); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := n.Prepare(ctx); err != nil {
		return err
	}
	log, err := os.Create(args[1])
	if err != nil {
		return err
	}
	if err := sandbox.Seal(sandbox.SealConfig{ReadPaths: args[2:3], SignalPID: cmd.Process.Pid}); err != nil {
		return err
	}
	if err := n.Run(ctx); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("command: %w: %s", err, out)
	}
	fmt.Print("command: ", out)
	for _, a := range attempts(cmd.Process.Pid, args) {
		fmt.Printf("%s: %v\n", a.name, a.do())
	}
	return checkThreads(log)
}

// attempt is something that a sealed process tries.
type attempt struct {
	name string
	do   func() error
}

// attempts returns attempts, some of which are allowed. exited is the process id of the
// command, which has exited.
func attempts(exited int, args []string) []attempt {
	open := func(path string, flags int) func() error {
		return func() error {
			f, err := os.OpenFile(path, flags, 0o600)
			if err == nil {
				f.Close()
			}
			return errno(err)
		}
	}
	socket := func(family, kind int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	return []attempt{
		{"execute", func() error {
			_, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
			return errno(err)
		}},
		{"replace itself", func() error { return unix.Exec("/bin/true", []string{"true"}, nil) }},
		{"fork", func() error { _, err := syscall.ForkExec("/bin/true", nil, nil); return err }},
		{"write a file", open(args[1], os.O_WRONLY)},
		{"make a file", open(args[1]+".new", os.O_RDONLY|os.O_CREATE)},
		{"remove a file", func() error { return errno(os.Remove(args[1])) }},
		{"read an allowed file", open(args[2], os.O_RDONLY)},
		{"read the resolvers", open("/etc/resolv.conf", os.O_RDONLY)},
		{"trace", func() error { return unix.PtraceAttach(os.Getppid()) }},
		{"kill its parent", func() error { return unix.Kill(os.Getppid(), 0) }},
		{"kill its parent's thread", func() error { return unix.Tgkill(os.Getppid(), os.Getppid(), 0) }},
		{"kill its parent by a file's owner", func() error {
			_, err := unix.FcntlInt(0, unix.F_SETOWN, os.Getppid())
			return err
		}},
		{"kill the command", func() error { return unix.Kill(exited, 0) }},
		{"signal by pidfd", func() error { _, err := unix.PidfdOpen(1, 0); return err }},
		{"namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
		{"mount", func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") }},
		{"change its user", func() error { return unix.Setresuid(0, 0, 0) }},
		{"executable memory", func() error {
			b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err == nil {
				unix.Munmap(b)
			}
			return err
		}},
		{"raw socket", socket(unix.AF_INET, unix.SOCK_RAW)},
		{"netlink socket", socket(unix.AF_NETLINK, unix.SOCK_RAW)},
		{"unix socket", socket(unix.AF_UNIX, unix.SOCK_STREAM)},
		{"datagram to a path", func() error {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
			if err == nil {
				err = unix.Sendto(pair[0], []byte("x"), 0, &unix.SockaddrUnix{Name: args[3]})
			}
			return err
		}},
		{"raw pair", func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_RAW, 0); return err }},
		{"pair of packets", func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0); return err }},
		{"pair of streams", func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err }},
		{"stream to a path", func() error {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil {
				err = unix.Sendto(pair[0], []byte("x"), 0, &unix.SockaddrUnix{Name: args[3]})
			}
			return err
		}},
		{"connect a pair", func() error {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil {
				err = unix.Connect(pair[0], &unix.SockaddrUnix{Name: args[4]})
			}
			return err
		}},
		{"socket of another protocol", func() error {
			_, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
			return err
		}},
		{"ping socket", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"TCP socket", socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)},
		{"raise a limit", func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }},
		{"listen", func() error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				l.Close()
			}
			return err
		}},
	}
}

// errno returns the errno that an error wraps, or the error.
func errno(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// checkThreads verifies that new threads are restricted, and that an open file still
// works.
func checkThreads(log *os.File) error {
	done := make(chan string, 20)
	block := make(chan struct{})
	for range cap(done) {
		go func() {
			runtime.LockOSThread() // each goroutine on a thread of its own
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var have [2]unix.CapUserData
			_ = unix.Capget(&header, &have[0]) // denied: the result stays unchanged
			_, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
			done <- fmt.Sprint(errno(err))
			<-block
		}()
	}
	for range cap(done) {
		if got := <-done; got != unix.EPERM.Error() && got != unix.EACCES.Error() {
			return fmt.Errorf("open for writing on a new thread: %s", got)
		}
	}
	close(block)
	_, err := log.WriteString("open files still work\n")
	return err
}

// sealedAndIdle is a process with many threads that seals itself.
func sealedAndIdle([]string) error {
	started := make(chan struct{})
	block := make(chan struct{})
	for range 8 {
		go func() {
			runtime.LockOSThread()
			started <- struct{}{}
			<-block
		}()
		<-started
	}
	if err := sandbox.Seal(sandbox.SealConfig{}); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// The kernel reports the restrictions of each thread.
func TestSealCoversAllThreads(t *testing.T) {
	lab.Need(t)
	s := startGuest(t, func(_ context.Context, cmd *exec.Cmd) error { return cmd.Run() }, "sealed-idle")
	statuses, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", s.cmd.Process.Pid))
	if err != nil || len(statuses) < 8 {
		t.Fatalf("%d threads, error %v; want at least 8", len(statuses), err)
	}
	want := map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapInh": "0000000000000000",
		"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
	for _, path := range statuses {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			if _, ok := want[key]; ok {
				got[key] = strings.TrimSpace(value)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", path, d)
		}
	}
	s.stdin.Close()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
}

func TestSeal(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "", true)
	dir := t.TempDir()
	readable := dir + "/readable"
	if err := os.WriteFile(readable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/datagrams", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	streams, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/streams", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer streams.Close()
	cmd, out := guest(testContext(t), "sealed", server.String(), dir+"/log", readable, dir+"/datagrams", dir+"/streams")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]string{"command": "same"}
	for _, a := range attempts(0, make([]string, 5)) {
		want[a.name] = unix.EPERM.Error()
	}
	for _, allowed := range []string{"read an allowed file", "read the resolvers", "TCP socket", "listen", "ping socket", "pair of streams"} {
		want[allowed] = "<nil>"
	}
	want["kill the command"] = unix.ESRCH.Error() // allowed, but the command has exited
	want["stream to a path"], want["connect a pair"] = unix.EISCONN.Error(), unix.EISCONN.Error()
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
		got[name] = result
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if b, err := os.ReadFile(dir + "/log"); err != nil || string(b) != "open files still work\n" {
		t.Errorf("the log has %q, error %v", b, err)
	}
}
