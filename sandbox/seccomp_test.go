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

// runSupervised runs a guest in the seccomp tier and returns its output and the final
// counters.
func runSupervised(t *testing.T, cfg sandbox.Config, name string, args ...string) (string, sandbox.Stats) {
	t.Helper()
	cfg.Tier = sandbox.TierSeccomp
	n := newNetwork(t, cfg)
	cmd, out := guest(testContext(t), name, args...)
	requireSupervisor(t, n.Exec(testContext(t), cmd), out)
	if tier, reason := n.Tier(); tier != sandbox.TierSeccomp || reason != "" {
		t.Errorf("tier %q, reason %q; want %q", tier, reason, sandbox.TierSeccomp)
	}
	return strings.TrimSpace(out.String()), n.Stats()
}

// requireSupervisor skips a test if the kernel lacks the seccomp tier, and fails it for
// other errors.
func requireSupervisor(t *testing.T, err error, out fmt.Stringer) {
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
	fakeInternet(t)
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			server := serveTCP(t, outside, "hello", false)
			closed := closedPort(t, outside)
			got, stats := runSupervised(t, sandbox.Config{}, "dial", "tcp", server.String(), closed.String(), server.String())
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
	fakeInternet(t)
	server := serveTCP(t, outside4, "", true)
	if got, stats := runSupervised(t, sandbox.Config{}, "echo", server.String()); got != "same" || stats.Supervisor.Connected != 1 {
		t.Errorf("the guest printed %q; counters %+v", got, stats)
	}
}

// A connection that is not simply allowed takes another tier, with the same verdict.
func TestSeccompTierAppliesPolicy(t *testing.T) {
	fakeInternet(t)
	four := serveTCP(t, "127.0.0.1", "four", false)
	mapped := netip.AddrPortFrom(netip.MustParseAddr("10.0.2.2"), four.Port()).String()
	for _, tt := range []struct {
		name      string
		cfg       sandbox.Config
		want      string
		connected uint64
	}{
		{"refused", sandbox.Config{}, "ECONNREFUSED", 0},
		{"mapped", sandbox.Config{HostLoopback4: netip.MustParseAddr("10.0.2.2")}, "four", 1},
		{"hook", sandbox.Config{HostLoopback4: netip.MustParseAddr("10.0.2.2"), Hook: func(context.Context, sandbox.Flow, []string) sandbox.Verdict {
			return sandbox.Verdict{Action: sandbox.Refuse}
		}}, "ECONNREFUSED", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var reports atomic.Int32
			tt.cfg.OnRefused = func(sandbox.Flow, sandbox.Decision) { reports.Add(1) }
			got, stats := runSupervised(t, tt.cfg, "dial", "tcp", mapped)
			if got != tt.want || stats.Supervisor.Connected != tt.connected {
				t.Errorf("the guest printed %q; counters %+v", got, stats)
			}
			if tt.cfg.Hook == nil && reports.Load() != int32(stats.Refused) {
				t.Errorf("%d refusals were reported, %d counted", reports.Load(), stats.Refused)
			}
		})
	}
}

// The server of a published port gets a socket of the host and gives the port back.
func TestSeccompTierLendsPort(t *testing.T) {
	fakeInternet(t)
	runSupervised(t, sandbox.Config{}, "fds") // skips the test without the seccomp tier
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			port := closedPort(t, outside)
			to := netip.AddrPortFrom(netip.Addr{}, 8000)
			n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSeccomp, Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: to}}})
			s := startGuest(t, n.Exec, "serve-then-wait", "tcp/:8000")
			if got := readAll(t, port.String()); got != "tcp from "+outside {
				t.Errorf("the client received %q", got)
			}
			if stats := n.Stats(); stats.Supervisor.Listening != 1 || stats.TCPFlows != 0 {
				t.Errorf("counters %+v", stats)
			}
			// The listener has been closed: the network listens on the port again, and
			// its clients find no server in the guest.
			until := time.Now().Add(30 * time.Second)
			for n.Stats().TCPFlows == 0 && time.Now().Before(until) {
				if c, err := net.Dial("tcp", port.String()); err == nil {
					c.Close()
				}
				time.Sleep(10 * time.Millisecond)
			}
			if n.Stats().TCPFlows == 0 {
				t.Error("the network does not listen on the port again")
			}
			s.stdin.Close()
			if err := <-s.result; err != nil {
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

func readAll(t *testing.T, addr string) string {
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

// A server with a socket of the host is reachable from the guest, too, and its port is in
// use there.
func TestSeccompTierLentPortServesGuest(t *testing.T) {
	fakeInternet(t)
	port := closedPort(t, "127.0.0.1")
	got, stats := runSupervised(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}}, "serve-itself")
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
	fmt.Println(errnoName(err))
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

// errnoName returns the name of an error's errno.
func errnoName(err error) string {
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

// sockets is a guest that tries what programs do with sockets, and prints the results.
func sockets(args []string) error {
	to := netip.MustParseAddrPort(args[0])
	sa := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	newSocket := func(flags int) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	peer := func(fd int) string {
		p, err := unix.Getpeername(fd)
		if err != nil {
			return errnoName(err)
		}
		return netip.AddrFrom4(p.(*unix.SockaddrInet4).Addr).String()
	}
	own := func(fd int) string {
		p, err := unix.Getsockname(fd)
		if err != nil {
			return errnoName(err)
		}
		return netip.AddrFrom4(p.(*unix.SockaddrInet4).Addr).String()
	}

	fd := newSocket(0)
	fmt.Println("blocking:", errnoName(unix.Connect(fd, sa)), "from", own(fd), "to", peer(fd), "again:", errnoName(unix.Connect(fd, sa)))
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	closes, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	fmt.Println("flags:", flags&unix.O_NONBLOCK != 0, closes&unix.FD_CLOEXEC != 0)
	fd = newSocket(unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC)
	err := unix.Connect(fd, sa)
	flags, _ = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	closes, _ = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	fmt.Println("flags:", flags&unix.O_NONBLOCK != 0, closes&unix.FD_CLOEXEC != 0, errnoName(err) == "ok" || errnoName(err) == "EINPROGRESS")

	fd = newSocket(0)
	double, _ := unix.Dup(fd)
	fmt.Println("duplicated:", errnoName(unix.Connect(fd, sa)), peer(double) == peer(fd))

	fd = newSocket(unix.SOCK_NONBLOCK)
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
	fmt.Println("in an epoll instance:", errnoName(err), n, events[0].Fd)

	fd = newSocket(0)
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 50000),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1000), unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 33),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3}), unix.Connect(fd, sa))
	linger, lingerErr := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	if lingerErr != nil {
		return lingerErr
	}
	fmt.Print("options: ", errnoName(err))
	for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.IPPROTO_IP, unix.IP_TTL}} {
		v, _ := unix.GetsockoptInt(fd, o[0], o[1])
		fmt.Print(" ", v)
	}
	fmt.Println("", linger.Linger)

	fd = newSocket(0)
	fmt.Println("bound:", errnoName(unix.Bind(fd, &unix.SockaddrInet4{Port: 4444})), errnoName(unix.Connect(fd, sa)), own(fd))

	fd = newSocket(0)
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	fmt.Println("disconnected:", errnoName(sys.Disconnect(fd)), peer(fd))
	ports, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IP, localPortRange)
	fmt.Println("local port range of one port:", uint16(ports) == uint16(ports>>16) && ports != 0)
	fmt.Println("bound late:", errnoName(unix.Bind(fd, &unix.SockaddrInet4{Port: 4445})), "listens:", errnoName(unix.Listen(fd, 1)))
	fmt.Println("ULPs: smc", errnoName(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "smc")), "tls", errnoName(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls")) != "EPERM")
	fmt.Println("local port range:", errnoName(unix.SetsockoptInt(fd, unix.IPPROTO_IP, localPortRange, 0)), "IP options:", errnoName(unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x83\x07\x04\x7f\x00\x00\x01\x00")))

	// A socket whose connection fails can be used again.
	fd = newSocket(0)
	first := unix.Connect(fd, &unix.SockaddrInet4{Addr: sa.Addr, Port: 1})
	fmt.Println("refused:", errnoName(first), "then:", errnoName(unix.Connect(fd, sa)), peer(fd))
	fd = newSocket(0)
	fmt.Println("no descriptor:", errnoName(unix.Connect(999, sa)), "no address:", errnoName(systest.ConnectNowhere(fd)))
	return nil
}

func TestSeccompTierSockets(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	got, _ := runSupervised(t, sandbox.Config{}, "sockets", server.String())
	want := `blocking: ok from 192.0.2.1 to 192.0.2.1 again: EISCONN
flags: false false
flags: true true true
duplicated: ok true
in an epoll instance: EINPROGRESS 1 7
options: ok 1 100000 33 3
bound: ok ok 10.0.2.100
disconnected: ENOTSUP 192.0.2.1
local port range of one port: true
bound late: EINVAL listens: EINVAL
ULPs: smc EPERM tls true
local port range: ENOPROTOOPT IP options: ENOPROTOOPT
refused: ECONNREFUSED then: ok 192.0.2.1
no descriptor: EBADF no address: EFAULT`
	if got != want {
		t.Errorf("the guest printed\n%s\nwant\n%s", got, want)
	}
}

// A slow connect delays no other, times out, and is interrupted by signals.
func TestSeccompTierSlowConnects(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	got, _ := runSupervised(t, sandbox.Config{}, "slow-connects", fullListener(t).String(), server.String())
	if want := "meanwhile: hello\ntimed: EINPROGRESS\nsignal: EINTR\nlate: EINPROGRESS then: ETIMEDOUT then: ok"; got != want {
		t.Errorf("the guest printed %q, want %q", got, want)
	}
}

// fullListener returns the address of a listener with a full queue: SYNs get no answer.
func fullListener(t *testing.T) netip.AddrPort {
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
	result := make(chan error, 1)
	tid := make(chan int, 1)
	slow, own := fd(), *sa // Connect writes to it
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		result <- unix.Connect(slow, &own)
	}()
	waiting := <-tid
	output, err := ask("tcp", args[1])
	if err != nil {
		return err
	}
	select {
	case err := <-result:
		return fmt.Errorf("the slow connect did not block: %w", err)
	default:
	}
	fmt.Println("meanwhile:", output)

	timed := fd()
	if err := unix.SetsockoptTimeval(timed, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 200000}); err != nil {
		return err
	}
	fmt.Println("timed:", errnoName(unix.Connect(timed, sa)))

	if errno := systest.InterruptCalls(unix.SIGUSR1); errno != 0 {
		return errno
	}
	if err := unix.Tgkill(os.Getpid(), waiting, unix.SIGUSR1); err != nil {
		return err
	}
	fmt.Println("signal:", errnoName(<-result))

	// A socket of the host whose connection times out can be used again.
	late := fd()
	if err := errors.Join(unix.SetNonblock(late, true), unix.SetsockoptInt(late, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 100)); err != nil {
		return err
	}
	fmt.Print("late: ", errnoName(unix.Connect(late, sa)))
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(late), Events: unix.POLLOUT}}, 30000); err != nil {
		return err
	}
	fmt.Print(" then: ", errnoName(unix.Connect(late, sa)))
	good := netip.MustParseAddrPort(args[1])
	if err := unix.SetNonblock(late, false); err != nil {
		return err
	}
	fmt.Println(" then:", errnoName(unix.Connect(late, &unix.SockaddrInet4{Addr: good.Addr().As4(), Port: int(good.Port())})))
	return nil
}
