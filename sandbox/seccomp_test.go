package sandbox_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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
			if stats.Supervised.Connected != 2 || len(stats.Supervised.Kept) != 0 || stats.TCPFlows != 0 {
				t.Errorf("counters %+v", stats)
			}
		})
	}
}

func TestSeccompTierEchoes(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "", true)
	if got, stats := supervised(t, sandbox.Config{}, "echo", server.String()); got != "same" || stats.Supervised.Connected != 1 {
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
			tt.cfg.Refused = func(sandbox.Flow, sandbox.Decision) { told.Add(1) }
			got, stats := supervised(t, tt.cfg, "dial", "tcp", mapped)
			if got != tt.want || stats.Supervised.Connected != tt.made {
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
			if stats := n.Stats(); stats.Supervised.Listening != 1 || stats.TCPFlows != 0 {
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
	if stats.Supervised.Listening != 2 || stats.Supervised.Connected != 1 {
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
	if want := "meanwhile: hello\nin time: EINPROGRESS\nby a signal: EINTR"; got != want {
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
	slow := fd()
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		ended <- unix.Connect(slow, sa)
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
	return nil
}

// counted is a server of the host's loopback, which no guest may reach, and how
// many did.
func counted(t *testing.T) (netip.AddrPort, *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var n atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort(), &n
}

// Each way round the supervisor is tried, and leads nowhere. The forbidden
// address is the host's loopback: inside it means the guest's own, where nobody
// listens, so that whoever arrives has come by a socket of the host's.
func TestSeccompTierHasNoWayRound(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", true)
	for _, tt := range []struct{ how, want string }{
		{"io_uring", "ENOSYS"},
		{"fast-open", "sendto ENOTSUP, sendmsg ENOTSUP, sendmmsg ENOTSUP, option ENOPROTOOPT"},
		{"i386", "connect ENOSYS, socketcall ENOSYS"},
		{"child", "ECONNREFUSED"},
		{"message", "EISCONN"},
		{"pidfd", "EISCONN"},
		{"changing-address", "done"},
		{"changing-descriptor", "done"},
	} {
		t.Run(tt.how, func(t *testing.T) {
			if tt.how == "i386" && runtime.GOARCH != "amd64" {
				t.Skip("that is amd64's other architecture")
			}
			forbidden, arrived := counted(t)
			got, _ := supervised(t, sandbox.Config{}, "escape", tt.how, server.String(), forbidden.String())
			if tt.how == "i386" && got == "connect ENOEXEC, socketcall ENOEXEC" {
				t.Skip("this kernel does not run i386 programs")
			}
			if got != tt.want {
				t.Errorf("the guest printed %q, want %q", got, tt.want)
			}
			if n := arrived.Load(); n != 0 {
				t.Errorf("%d connections arrived where none may", n)
			}
		})
	}
}

// escape tries one way to reach a forbidden address.
func escape(args []string) error {
	inet := func(text string) *unix.SockaddrInet4 {
		a := netip.MustParseAddrPort(text)
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	allowed, forbidden := inet(args[1]), inet(args[2])
	made := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, allowed)
		}
		if err != nil {
			panic(err)
		}
		return fd
	}
	switch args[0] {
	case "io_uring":
		fmt.Println(name(systest.SetUpIOURing()))
	case "fast-open":
		return escapeByFastOpen(forbidden)
	case "i386":
		return escapeByI386(forbidden)
	case "child":
		cmd := exec.Command("/proc/self/exe", "tcp", args[2])
		cmd.Env = append(os.Environ(), guestEnv+"=dial")
		out, err := cmd.CombinedOutput()
		fmt.Print(string(out))
		return err
	case "message":
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(made()), nil, 0); err != nil {
			return err
		}
		return inChild("use-message", pair[1], args[2])
	case "pidfd":
		return inChild("use-pidfd", made(), args[2])
	case "changing-address":
		changeAddress(allowed, forbidden)
		fmt.Println("done")
	case "changing-descriptor":
		return changeDescriptor(made(), forbidden)
	}
	return nil
}

func escapeByFastOpen(to *unix.SockaddrInet4) error {
	fd := func() int {
		fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return fd
	}
	word := []byte("x")
	_, one := unix.SendmsgN(fd(), word, nil, to, unix.MSG_FASTOPEN)
	fmt.Printf("sendto %s, sendmsg %s, sendmmsg %s, option %s\n", name(unix.Sendto(fd(), word, unix.MSG_FASTOPEN, to)), name(one),
		name(systest.SendManyWithSYN(fd(), inKernelForm(to))), name(unix.SetsockoptInt(fd(), unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)))
	return nil
}

// inKernelForm is a struct sockaddr_in.
func inKernelForm(sa *unix.SockaddrInet4) []byte {
	b := binary.NativeEndian.AppendUint16(make([]byte, 0, unix.SizeofSockaddrInet4), unix.AF_INET)
	b = append(append(b, byte(sa.Port>>8), byte(sa.Port)), sa.Addr[:]...)
	return b[:unix.SizeofSockaddrInet4]
}

// escapeByI386 runs programs of the other architecture that make a socket,
// connect it and exit with the errno.
func escapeByI386(to *unix.SockaddrInet4) error {
	address := inKernelForm(to)
	direct := func(data uint32) []byte {
		c := []byte{0x31, 0xd2, 0xb8, 0x67, 1, 0, 0, 0xbb, 2, 0, 0, 0, 0xb9, 1, 0, 0, 0, 0xcd, 0x80} // socket(2, 1, 0) is 359
		c = append(c, 0x89, 0xc3, 0xb8, 0x6a, 1, 0, 0, 0xb9)                                         // connect is 362
		c = binary.LittleEndian.AppendUint32(c, data)
		c = append(c, 0xba, 16, 0, 0, 0, 0xcd, 0x80)
		return append(c, exitI386...)
	}
	call := func(data uint32) []byte { // socketcall(SYS_CONNECT, {0, address, 16})
		c := []byte{0xb8, 102, 0, 0, 0, 0xbb, 3, 0, 0, 0, 0xb9}
		c = binary.LittleEndian.AppendUint32(c, data+16)
		c = append(c, 0xcd, 0x80)
		return append(c, exitI386...)
	}
	dir, err := os.MkdirTemp("", "i386-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run := func(name string, code func(uint32) []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, elf32(code, address), 0o700); err != nil {
			return err.Error()
		}
		err := exec.Command(path).Run()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			return unix.ErrnoName(syscall.Errno(exit.ExitCode()))
		}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return unix.ErrnoName(errno)
		}
		return fmt.Sprint(err)
	}
	fmt.Printf("connect %s, socketcall %s\n", run("direct", direct), run("call", call))
	return nil
}

// exitI386 is exit(-eax).
var exitI386 = []byte{0xf7, 0xd8, 0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80}

// elf32 is a program of one segment: code, and behind it an address and the
// arguments of a socketcall.
func elf32(code func(data uint32) []byte, address []byte) []byte {
	const base, headers = 0x08048000, 52 + 32
	size := uint32(len(code(0)))
	data := uint32(base+headers) + size
	body := append(code(data), address...)
	body = binary.LittleEndian.AppendUint32(body, 0) // descriptor 0 will do: nobody gets so far
	body = binary.LittleEndian.AppendUint32(body, data)
	body = binary.LittleEndian.AppendUint32(body, 16)
	le := binary.LittleEndian
	h := append([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1}, make([]byte, 9)...)
	for _, v := range []uint16{2, 3} { // an executable for i386
		h = le.AppendUint16(h, v)
	}
	for _, v := range []uint32{1, base + headers, 52, 0, 0} {
		h = le.AppendUint32(h, v)
	}
	for _, v := range []uint16{52, 32, 1, 0, 0, 0} {
		h = le.AppendUint16(h, v)
	}
	all := uint32(headers + len(body))
	for _, v := range []uint32{1, 0, base, base, all, all, 7, 0x1000} {
		h = le.AppendUint32(h, v)
	}
	return append(h, body...)
}

// inChild hands a descriptor to a child as its third.
func inChild(role string, fd int, forbidden string) error {
	cmd := exec.Command("/proc/self/exe", forbidden, fmt.Sprint(fd), fmt.Sprint(os.Getpid()))
	cmd.Env = append(os.Environ(), guestEnv+"="+role)
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "passed")}
	out, err := cmd.CombinedOutput()
	fmt.Print(string(out))
	return err
}

func useMessage(args []string) error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	return redirect(fds[0], args[0])
}

func usePidfd(args []string) error {
	var theirs, parent int
	if _, err := fmt.Sscan(args[1]+" "+args[2], &theirs, &parent); err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(parent, 0)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdGetfd(pidfd, theirs, 0)
	if err != nil {
		return err
	}
	return redirect(fd, args[0])
}

// redirect connects a socket that is connected to another address.
func redirect(fd int, to string) error {
	a := netip.MustParseAddrPort(to)
	_ = sys.Disconnect(fd)
	fmt.Println(name(unix.Connect(fd, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())})))
	return nil
}

// tries is how often a race is run.
const tries = 300

// changeAddress connects while another thread changes the address between two.
func changeAddress(allowed, forbidden *unix.SockaddrInet4) {
	one, other := inKernelForm(allowed), inKernelForm(forbidden)
	shared := bytes.Clone(one)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			copy(shared, other)
			copy(shared, one)
		}
	}()
	for range tries {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			break
		}
		_ = sys.ConnectRaw(fd, shared)
		unix.Close(fd)
	}
	stop.Store(true)
	<-done
}

// changeDescriptor connects and binds Unix sockets, which is the kernel's affair,
// while another thread puts a socket of the host's in their place. The address
// becomes first none, until that has disconnected it, which Landlock does not see;
// then a port of the host's, since it finds none by itself, and then the forbidden
// one.
func changeDescriptor(host int, forbidden *unix.SockaddrInet4) error {
	local := make([]byte, unix.SizeofSockaddrInet4)
	binary.NativeEndian.PutUint16(local, unix.AF_UNIX)
	addresses := [][]byte{make([]byte, len(local)), inKernelForm(&unix.SockaddrInet4{Port: forbidden.Port ^ 1}), inKernelForm(forbidden)}
	shared := bytes.Clone(local)
	const victim = 0 // what is put there is put there without a word to the supervisor
	plain, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(plain, &unix.SockaddrUnix{})
	}
	if err != nil {
		return err
	}
	var stop atomic.Bool
	var phase atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			_ = unix.Dup3(plain, victim, 0)
			copy(shared, local)
			for range 1 << 14 { // about as long as the supervisor looks
				stop.Load()
			}
			_ = unix.Dup3(host, victim, 0)
			copy(shared, addresses[phase.Load()])
			for range 1 << 12 {
				stop.Load()
			}
		}
	}()
	for begin := time.Now(); time.Since(begin) < 4*time.Second; {
		switch phase.Load() {
		case 0:
			_ = sys.ConnectRaw(victim, shared)
			if _, err := unix.Getpeername(host); errors.Is(err, unix.ENOTCONN) {
				phase.Store(1)
			}
		case 1:
			if sys.BindRaw(victim, shared) == 0 { // the other one is bound already
				phase.Store(2)
			}
			_ = unix.Listen(victim, 1)
		case 2:
			_ = sys.ConnectRaw(victim, shared)
		}
	}
	stop.Store(true)
	<-done
	if n, err := unix.GetsockoptInt(host, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && n != 0 {
		fmt.Println("a socket of the host's listens")
	}
	if phase.Load() == 2 {
		fmt.Println("a socket of the host's has a port of our choice")
	}
	fmt.Println("done")
	return nil
}
