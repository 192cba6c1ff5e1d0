package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/internal/sys/systest"
	"cleat/sandbox"
	"cleat/sandbox/policy"

	"golang.org/x/sys/unix"
)

// The server of a published port accepts the host's own sockets.
func TestContainerAcceptsOnTheHost(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			port := closedPort(t, outside)
			b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
			if got := b.served(t, port.String()); got != "tcp from "+outside {
				t.Errorf("the client heard %q", got)
			}
			if s := n.Stats(); s.Supervised.Accepted != 1 || s.Spliced != 0 {
				t.Errorf("counters %+v", s)
			}
		})
	}
}

// keepCalling connects whenever it is not connected, and returns how many clients
// heard nothing between others that heard something.
func keepCalling(ctx context.Context, addr string) (lost int) {
	heard, silent := false, 0
	for ctx.Err() == nil {
		if c, err := net.Dial("tcp", addr); err == nil {
			if n, _ := io.Copy(io.Discard, c); n == 0 {
				silent++
			} else {
				if heard {
					lost += silent
				}
				heard, silent = true, 0
			}
			c.Close()
		}
		time.Sleep(time.Millisecond)
	}
	return lost
}

// What may not be is spliced: for who may configure the host, where the policy says so
// meanwhile, and for clients that the server would take for its own.
func TestContainerAcceptsItsOwn(t *testing.T) {
	world(t)
	for name, tt := range map[string]struct {
		caps   []string
		policy policy.HostSockets
		client string
		hears  string
	}{
		"one that may configure the host": {caps: []string{"CAP_NET_ADMIN"}, client: outside4, hears: outside4},
		"the policy says none":            {policy: policy.HostSocketsNone, client: outside4, hears: outside4},
		"a client of the loopback":        {client: "127.0.0.1", hears: "10.0.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			port := closedPort(t, tt.client)
			p := says(t, "")
			b, n := newBundle(t, sandbox.Config{Policy: p, Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
			b.caps = tt.caps
			if err := p.Set(policy.Rules{HostSockets: tt.policy}); err != nil {
				t.Fatal(err)
			}
			if got := b.served(t, port.String()); got != "tcp from "+tt.hears {
				t.Errorf("the client heard %q", got)
			}
			if s := n.Stats(); s.Supervised.Accepted != 0 || s.Spliced != 1 {
				t.Errorf("counters %+v", s)
			}
		})
	}
}

// served is what a client hears from a server in the container.
func (b *bundle) served(t *testing.T, at string) string {
	t.Helper()
	cmd := b.command(t, "serve", "tcp/:8000")
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the container printed %q, %v", line, err)
	}
	heard := hear(t, at)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return heard
}

// However a server accepts, it is as if nobody stood between.
func TestContainerAcceptsInAllWays(t *testing.T) {
	world(t)
	port, quiet := closedPort(t, outside4), closedPort(t, outside4)
	forward := func(at netip.AddrPort, to uint16) sandbox.Forward {
		return sandbox.Forward{Protocol: sandbox.TCP, Listen: at, To: netip.AddrPortFrom(netip.Addr{}, to)}
	}
	b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{forward(port, 8000), forward(quiet, 8001)}})
	ctx, stop := context.WithCancel(patience(t))
	var clients sync.WaitGroup
	var lost atomic.Int64
	for range 3 {
		clients.Go(func() { lost.Add(int64(keepCalling(ctx, port.String()))) })
	}
	got := b.run(t, "accept")
	stop()
	clients.Wait()
	want := `waits for a client: true of 192.0.2.1 in 16 bytes, options as the listener's, flags false false
does not wait: true, flags true true
asks for no address: nothing written true
has room for 4 bytes: 16, true
has room for -1: EINVAL
nobody comes, at once: EAGAIN
nobody comes within its time: EAGAIN
nobody comes, and it is shut: EINVAL
two threads: true
interrupted: every client is served
its own client: from 127.0.0.1
has as many descriptors as it may: EMFILE, then ok
a flag that there is not: EINVAL
killed while it waited: its port is free`
	if got != want {
		t.Errorf("the container printed\n%s\nwant\n%s", got, want)
	}
	if s := n.Stats(); s.Supervised.Accepted < 100 || lost.Load() != 0 {
		t.Errorf("%d clients lost; counters %+v", lost.Load(), s)
	}
}

// acceptClients is a guest that accepts in all ways that there are, and prints how
// each goes.
func acceptClients([]string) error {
	listener := func(port, flags int) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
		if err == nil {
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
				unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, 100))
		}
		if err != nil {
			panic(err)
		}
		return fd
	}
	option := func(fd, level, name int) int {
		n, err := unix.GetsockoptInt(fd, level, name)
		if err != nil {
			panic(err)
		}
		return n
	}
	flags := func(fd int) string {
		state, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		closes, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return fmt.Sprint(state&unix.O_NONBLOCK != 0, closes&unix.FD_CLOEXEC != 0)
	}
	untouched := func(b []byte) bool { return bytes.Count(b, []byte{systest.Untouched}) == len(b) }
	long, short, negative := int32(64), int32(4), int32(-1)

	l := listener(8000, 0)
	c, size, address, errno := systest.Accept(l, &long, 0)
	if errno != 0 {
		return errno
	}
	peer, err := unix.Getpeername(c)
	if err != nil {
		return err
	}
	says := sys.MakeAddress(netip.AddrPortFrom(netip.AddrFrom4(peer.(*unix.SockaddrInet4).Addr), uint16(peer.(*unix.SockaddrInet4).Port)), false)
	inherits := "as the listener's"
	if option(c, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 1 || option(c, unix.IPPROTO_TCP, unix.TCP_NODELAY) != 0 {
		inherits = "other"
	}
	fmt.Printf("waits for a client: %v of %v in %d bytes, options %s, flags %s\n", bytes.HasPrefix(address, says.Raw()) && untouched(address[len(says.Raw()):]), netip.AddrFrom4(peer.(*unix.SockaddrInet4).Addr), size, inherits, flags(c))
	bye(c)
	unix.SetNonblock(l, true)
	for errno = unix.EAGAIN; errno == unix.EAGAIN; {
		unix.Poll([]unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}, -1)
		c, _, _, errno = systest.Accept(l, &long, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	}
	fmt.Printf("does not wait: %v, flags %s\n", errno == 0, flags(c))
	bye(c)
	unix.SetNonblock(l, false)
	c, _, address, _ = systest.Accept(l, nil, 0)
	fmt.Printf("asks for no address: nothing written %v\n", untouched(address))
	bye(c)
	c, size, address, _ = systest.Accept(l, &short, 0)
	fmt.Printf("has room for 4 bytes: %d, %v\n", size, !untouched(address[:2]) && untouched(address[4:]))
	bye(c)
	_, _, _, errno = systest.Accept(l, &negative, 0)
	fmt.Printf("has room for -1: %s\n", name(errno))

	quiet := listener(8001, unix.SOCK_NONBLOCK)
	_, _, _, errno = systest.Accept(quiet, &long, 0)
	fmt.Printf("nobody comes, at once: %s\n", name(errno))
	unix.SetNonblock(quiet, false)
	unix.SetsockoptTimeval(quiet, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000})
	_, _, _, errno = systest.Accept(quiet, &long, 0)
	fmt.Printf("nobody comes within its time: %s\n", name(errno))
	unix.SetsockoptTimeval(quiet, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	time.AfterFunc(50*time.Millisecond, func() { unix.Shutdown(quiet, unix.SHUT_RD) })
	_, _, _, errno = systest.Accept(quiet, &long, 0)
	fmt.Printf("nobody comes, and it is shut: %s\n", name(errno))
	unix.Close(quiet)

	results := make(chan unix.Errno)
	for range 2 {
		go func() {
			for i := range 20 {
				c, _, _, errno := systest.Accept(l, &long, 0)
				bye(c)
				if errno != 0 || i == 19 {
					results <- errno
					return
				}
			}
		}()
	}
	first, second := <-results, <-results
	fmt.Printf("two threads: %v\n", first == 0 && second == 0)
	fmt.Printf("interrupted: %s\n", acceptInterrupted(l))

	own := listener(8002, 0)
	go func() {
		if c, err := net.Dial("tcp", "127.0.0.1:8002"); err == nil {
			io.Copy(io.Discard, c)
		}
	}()
	c, from, err := unix.Accept(own)
	if err != nil {
		return err
	}
	fmt.Printf("its own client: from %v\n", netip.AddrFrom4(from.(*unix.SockaddrInet4).Addr))
	bye(c)

	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	next, err := unix.Dup(l) // as high as descriptors go
	if err != nil {
		return err
	}
	unix.Close(next)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: was.Max}); err != nil {
		return err
	}
	_, _, _, errno = systest.Accept(l, &long, 0)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	c, _, _, then := systest.Accept(l, &long, 0)
	fmt.Printf("has as many descriptors as it may: %s, then %s\n", name(errno), name(then))
	bye(c)
	_, _, _, errno = systest.Accept(l, &long, 1)
	fmt.Printf("a flag that there is not: %s\n", name(errno))
	unix.Close(l)

	for range 10 {
		cmd := exec.Command("/proc/self/exe", "guest", "accept-one", "8001")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // it calls accept, as a rule
		cmd.Process.Kill()
		cmd.Wait()
		unix.Close(listener(8001, 0)) // panics
	}
	fmt.Println("killed while it waited: its port is free")
	return nil
}

// acceptInterrupted serves clients while signals interrupt the calls.
func acceptInterrupted(l int) string {
	long, result := int32(64), "every client is served"
	interrupted(func() {
		for served := 0; served < 100; {
			c, _, _, errno := systest.Accept(l, &long, 0)
			switch errno {
			case 0:
				served++
				bye(c)
			case unix.EINTR:
			default:
				result = errno.Error()
				return
			}
		}
	}, 50*time.Microsecond)
	return result
}

// interrupted calls f while signals interrupt its system calls.
func interrupted(f func(), every time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if errno := systest.InterruptCalls(unix.SIGUSR1); errno != 0 {
		panic(errno)
	}
	me, done := unix.Gettid(), make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				unix.Tgkill(unix.Getpid(), me, unix.SIGUSR1)
				time.Sleep(every)
			}
		}
	})
	f()
	close(done)
	signals.Wait()
}

// A container that clears the listener's flag at the moment of accepting stops nobody
// but itself.
func TestContainerStopsNobody(t *testing.T) {
	world(t)
	port := closedPort(t, outside4)
	b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
	ended := make(chan struct{})
	var collects sync.WaitGroup
	collects.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				runtime.GC() // stops all threads but those in system calls that are known as such
				n.Stats()
			}
		}
	})
	got := b.run(t, "accept-unfairly")
	close(ended)
	collects.Wait()
	if got != "done" {
		t.Errorf("the container printed %q", got)
	}
	server := answerTCP(t, outside4, "hello", false)
	if got := b.run(t, "dial", "tcp", server.String()); got != "hello" || n.Stats().Supervised.Connected != 1 {
		t.Errorf("the next container printed %q; counters %+v", got, n.Stats())
	}
}

func acceptUnfairly([]string) error {
	l, err := net.Listen("tcp4", ":8000")
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	fd := int(f.Fd()) // blocking
	for range 2 {
		go func() {
			for {
				unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
			}
		}()
	}
	go interrupted(func() {
		for {
			unix.Accept(fd)
		}
	}, 100*time.Microsecond)
	time.Sleep(2 * time.Second)
	fmt.Println("done")
	return nil
}

// bye says something to a client, and closes.
func bye(client int) {
	unix.Write(client, []byte("served"))
	unix.Close(client)
}

// Binding is as patient with signals.
func TestContainerBindsThroughSignals(t *testing.T) {
	world(t)
	b, _ := newBundle(t, sandbox.Config{})
	if got := b.run(t, "bind-interrupted"); got != "ok" {
		t.Errorf("the container printed %q", got)
	}
}

// bindInterrupted binds sockets while signals come. The kernel loses an answer that is
// given between its noticing a signal and its saying so, and tells nobody
// (seccomp_do_user_notification, kernel/seccomp.c; not where the filter has
// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, which runc sets from 1.2 on): once in some
// 8,000 calls here. The socket is bound then, and more than that would be our fault.
func bindInterrupted([]string) error {
	lost := 0
	for i := range 300 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		name := fmt.Sprint("@cleat-test-", i)
		interrupted(func() {
			for err = unix.EINTR; errors.Is(err, unix.EINTR); {
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
			}
		}, time.Duration(50+i)*time.Microsecond)
		at, _ := unix.Getsockname(fd)
		unix.Close(fd)
		if own, ok := at.(*unix.SockaddrUnix); errors.Is(err, unix.EINVAL) && ok && own.Name == name && lost < 3 {
			lost++
			continue
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("ok")
	return nil
}

// acceptOne waits for a client at a port.
func acceptOne(args []string) error {
	l, err := net.Listen("tcp4", ":"+args[0])
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	unix.SetNonblock(int(f.Fd()), false)
	fmt.Println("ready")
	_, _, err = unix.Accept(int(f.Fd()))
	return err
}
