package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/internal/sys/systest"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// supervised runs a guest in the seccomp tier and returns what it printed, and the
// counters at its end.
func supervised(t *testing.T, cfg sandbox.Config, name string, args ...string) (string, sandbox.Stats) {
	t.Helper()
	cfg.Tier = sandbox.TierSeccomp
	n := newNetwork(t, cfg)
	cmd, out := guest(patience(t), name, args...)
	needSupervisor(t, n.Exec(patience(t), cmd), out)
	if tier, why := n.Tier(); tier != sandbox.TierSeccomp || why != "" {
		t.Errorf("tier %q, %q", tier, why)
	}
	return strings.TrimSpace(out.String()), n.Stats()
}

// needSupervisor skips a test on kernels that can't, and fails it for other
// errors.
func needSupervisor(t *testing.T, err error, out fmt.Stringer) {
	t.Helper()
	var setup *sandbox.SetupError
	if errors.As(err, &setup) && strings.Contains(err.Error(), sys.ErrNoLandlock.Error()) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestSeccompTier(t *testing.T) {
	world(t)
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			server := answerTCP(t, outside, "hello", false)
			closed := closedPort(t, outside)
			got, stats := supervised(t, sandbox.Config{}, "dial", "tcp", server.String(), closed.String(), server.String())
			if want := "hello\nECONNREFUSED\nhello"; got != want {
				t.Errorf("the guest printed %q, want %q", got, want)
			}
			if stats.Supervisor.Connected != 2 || len(stats.Supervisor.Kept) != 0 || stats.TCPFlows != 0 {
				t.Errorf("counters %+v", stats)
			}
		})
	}
}

func TestSeccompTierEchoes(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "", true)
	if got, stats := supervised(t, sandbox.Config{}, "echo", server.String()); got != "same" || stats.Supervisor.Connected != 1 {
		t.Errorf("the guest printed %q; counters %+v", got, stats)
	}
}

// What is not simply let through goes the way that it goes in other tiers.
func TestSeccompTierKeepsThePolicy(t *testing.T) {
	world(t)
	four := answerTCP(t, "127.0.0.1", "four", false)
	mapped := netip.AddrPortFrom(netip.MustParseAddr("10.0.2.2"), four.Port()).String()
	for _, tt := range []struct {
		name string
		cfg  sandbox.Config
		want string
		made uint64
	}{
		{"refused", sandbox.Config{}, "ECONNREFUSED", 0},
		{"mapped", sandbox.Config{HostLoopback4: netip.MustParseAddr("10.0.2.2")}, "four", 1},
		{"hook", sandbox.Config{HostLoopback4: netip.MustParseAddr("10.0.2.2"), Hook: func(context.Context, sandbox.Flow, []string) sandbox.Verdict {
			return sandbox.Verdict{Action: sandbox.Refuse}
		}}, "ECONNREFUSED", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told atomic.Int32
			tt.cfg.OnRefused = func(sandbox.Flow, sandbox.Decision) { told.Add(1) }
			got, stats := supervised(t, tt.cfg, "dial", "tcp", mapped)
			if got != tt.want || stats.Supervisor.Connected != tt.made {
				t.Errorf("the guest printed %q; counters %+v", got, stats)
			}
			if tt.cfg.Hook == nil && told.Load() != int32(stats.Refused) {
				t.Errorf("told of %d refusals, counted are %d", told.Load(), stats.Refused)
			}
		})
	}
}

// The server of a published port has the host's own socket, and gives it back.
func TestSeccompTierLends(t *testing.T) {
	world(t)
	supervised(t, sandbox.Config{}, "fds") // skips where it can't be had
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			port := closedPort(t, outside)
			to := netip.AddrPortFrom(netip.Addr{}, 8000)
			n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSeccomp, Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: to}}})
			s := start(t, n.Exec, "serve-then-wait", "tcp/:8000")
			if got := hear(t, port.String()); got != "tcp from "+outside {
				t.Errorf("the client heard %q", got)
			}
			if stats := n.Stats(); stats.Supervisor.Listening != 1 || stats.TCPFlows != 0 {
				t.Errorf("counters %+v", stats)
			}
			// The listener is closed by now: the port is the network's again, and its
			// clients find nobody inside.
			until := time.Now().Add(30 * time.Second)
			for n.Stats().TCPFlows == 0 && time.Now().Before(until) {
				if c, err := net.Dial("tcp", port.String()); err == nil {
					c.Close()
				}
				time.Sleep(10 * time.Millisecond)
			}
			if n.Stats().TCPFlows == 0 {
				t.Error("the port was not given back")
			}
			s.stdin.Close()
			if err := <-s.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func serveThenWait(args []string) error {
	if err := serve(args); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func hear(t *testing.T, addr string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A server inside is reached from inside too, whoever's socket it has, and its
// port is taken there.
func TestSeccompTierLendsToTheInsideToo(t *testing.T) {
	world(t)
	port := closedPort(t, "127.0.0.1")
	got, stats := supervised(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}}, "serve-itself")
	if want := "EADDRINUSE\ntcp from 127.0.0.1\nlistening again"; got != want {
		t.Errorf("the guest printed %q, want %q", got, want)
	}
	if stats.Supervisor.Listening != 2 || stats.Supervisor.Connected != 1 {
		t.Errorf("counters %+v", stats)
	}
}

func serveItself([]string) error {
	l, err := net.Listen("tcp4", ":8000")
	if err != nil {
		return err
	}
	_, err = net.Listen("tcp4", ":8000")
	fmt.Println(name(err))
	go func() {
		c, err := l.Accept()
		if err == nil {
			fmt.Fprint(c, "tcp from ", c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", "127.0.0.1:8000")
	if err != nil {
		return err
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	fmt.Println(string(b))
	l.Close()
	c.Close()
	if l, err = net.Listen("tcp4", ":8000"); err == nil {
		fmt.Println("listening again")
		l.Close()
	}
	return err
}

// name is an error's errno by name.
func name(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno) && errno == 0:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// localPortRange is IP_LOCAL_PORT_RANGE.
const localPortRange = 51

// sockets is a guest that tries what a program may do with its sockets, and prints
// how each goes.
func sockets(args []string) error {
	to := netip.MustParseAddrPort(args[0])
	sa := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	fresh := func(flags int) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	peer := func(fd int) string {
		p, err := unix.Getpeername(fd)
		if err != nil {
			return name(err)
		}
		return netip.AddrFrom4(p.(*unix.SockaddrInet4).Addr).String()
	}
	own := func(fd int) string {
		p, err := unix.Getsockname(fd)
		if err != nil {
			return name(err)
		}
		return netip.AddrFrom4(p.(*unix.SockaddrInet4).Addr).String()
	}

	fd := fresh(0)
	fmt.Println("blocking:", name(unix.Connect(fd, sa)), "from", own(fd), "to", peer(fd), "again:", name(unix.Connect(fd, sa)))
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	closes, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	fmt.Println("flags:", flags&unix.O_NONBLOCK != 0, closes&unix.FD_CLOEXEC != 0)
	fd = fresh(unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC)
	err := unix.Connect(fd, sa)
	flags, _ = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	closes, _ = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	fmt.Println("flags:", flags&unix.O_NONBLOCK != 0, closes&unix.FD_CLOEXEC != 0, name(err) == "ok" || name(err) == "EINPROGRESS")

	fd = fresh(0)
	double, _ := unix.Dup(fd)
	fmt.Println("duplicated:", name(unix.Connect(fd, sa)), peer(double) == peer(fd))

	fd = fresh(unix.SOCK_NONBLOCK)
	epoll, _ := unix.EpollCreate1(0)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLIN, Fd: 7}); err != nil {
		return err
	}
	err = unix.Connect(fd, sa)
	var events [4]unix.EpollEvent
	for peer(fd) == "ENOTCONN" {
		unix.EpollWait(epoll, events[:], 1000)
	}
	n, _ := unix.EpollWait(epoll, events[:], 10000)
	fmt.Println("in an epoll instance:", name(err), n, events[0].Fd)

	fd = fresh(0)
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 50000),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1000), unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 33),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3}), unix.Connect(fd, sa))
	linger, lingerErr := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	if lingerErr != nil {
		return lingerErr
	}
	fmt.Print("options: ", name(err))
	for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.IPPROTO_IP, unix.IP_TTL}} {
		v, _ := unix.GetsockoptInt(fd, o[0], o[1])
		fmt.Print(" ", v)
	}
	fmt.Println("", linger.Linger)

	fd = fresh(0)
	fmt.Println("bound:", name(unix.Bind(fd, &unix.SockaddrInet4{Port: 4444})), name(unix.Connect(fd, sa)), own(fd))

	fd = fresh(0)
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	fmt.Println("disconnected:", name(sys.Disconnect(fd)), peer(fd))
	ports, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IP, localPortRange)
	fmt.Println("one port for it:", uint16(ports) == uint16(ports>>16) && ports != 0)
	fmt.Println("bound late:", name(unix.Bind(fd, &unix.SockaddrInet4{Port: 4445})), "listens:", name(unix.Listen(fd, 1)))
	fmt.Println("on top: smc", name(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "smc")), "tls", name(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls")) != "EPERM")
	fmt.Println("ports:", name(unix.SetsockoptInt(fd, unix.IPPROTO_IP, localPortRange, 0)), "routes:", name(unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x83\x07\x04\x7f\x00\x00\x01\x00")))

	// One that fails, and is used again.
	fd = fresh(0)
	first := unix.Connect(fd, &unix.SockaddrInet4{Addr: sa.Addr, Port: 1})
	fmt.Println("refused:", name(first), "then:", name(unix.Connect(fd, sa)), peer(fd))
	fd = fresh(0)
	fmt.Println("no descriptor:", name(unix.Connect(999, sa)), "no address:", name(systest.ConnectNowhere(fd)))
	return nil
}

func TestSeccompTierSockets(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	got, _ := supervised(t, sandbox.Config{}, "sockets", server.String())
	want := `blocking: ok from 192.0.2.1 to 192.0.2.1 again: EISCONN
flags: false false
flags: true true true
duplicated: ok true
in an epoll instance: EINPROGRESS 1 7
options: ok 1 100000 33 3
bound: ok ok 10.0.2.100
disconnected: ENOTSUP 192.0.2.1
one port for it: true
bound late: EINVAL listens: EINVAL
on top: smc EPERM tls true
ports: ENOPROTOOPT routes: ENOPROTOOPT
refused: ECONNREFUSED then: ok 192.0.2.1
no descriptor: EBADF no address: EFAULT`
	if got != want {
		t.Errorf("the guest printed\n%s\nwant\n%s", got, want)
	}
}

// A connect that waits keeps nobody else, ends in time, and by a signal.
func TestSeccompTierConnectsThatWait(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	got, _ := supervised(t, sandbox.Config{}, "slow-connects", deaf(t).String(), server.String())
	if want := "meanwhile: hello\nin time: EINPROGRESS\nby a signal: EINTR\nlate: EINPROGRESS then: ETIMEDOUT then: ok"; got != want {
		t.Errorf("the guest printed %q, want %q", got, want)
	}
}

// deaf is a port whose listener takes no more clients: SYNs get no answer.
func deaf(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(outside4).As4()}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(outside4), uint16(own.(*unix.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", at.String(), 300*time.Millisecond)
		if err != nil {
			return at
		}
		t.Cleanup(func() { c.Close() })
	}
}

func slowConnects(args []string) error {
	to := netip.MustParseAddrPort(args[0])
	sa := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	fd := func() int {
		fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return fd
	}
	ended := make(chan error, 1)
	tid := make(chan int, 1)
	slow, own := fd(), *sa // Connect writes to it
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		ended <- unix.Connect(slow, &own)
	}()
	waiting := <-tid
	said, err := ask("tcp", args[1])
	if err != nil {
		return err
	}
	select {
	case err := <-ended:
		return fmt.Errorf("the slow connect has ended: %w", err)
	default:
	}
	fmt.Println("meanwhile:", said)

	timed := fd()
	if err := unix.SetsockoptTimeval(timed, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 200000}); err != nil {
		return err
	}
	fmt.Println("in time:", name(unix.Connect(timed, sa)))

	if errno := systest.InterruptCalls(unix.SIGUSR1); errno != 0 {
		return errno
	}
	if err := unix.Tgkill(os.Getpid(), waiting, unix.SIGUSR1); err != nil {
		return err
	}
	fmt.Println("by a signal:", name(<-ended))

	// One of the host's that fails by and by, and is used again.
	late := fd()
	if err := errors.Join(unix.SetNonblock(late, true), unix.SetsockoptInt(late, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 100)); err != nil {
		return err
	}
	fmt.Print("late: ", name(unix.Connect(late, sa)))
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(late), Events: unix.POLLOUT}}, 30000); err != nil {
		return err
	}
	fmt.Print(" then: ", name(unix.Connect(late, sa)))
	good := netip.MustParseAddrPort(args[1])
	if err := unix.SetNonblock(late, false); err != nil {
		return err
	}
	fmt.Println(" then:", name(unix.Connect(late, &unix.SockaddrInet4{Addr: good.Addr().As4(), Port: int(good.Port())})))
	return nil
}
