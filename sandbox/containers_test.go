package sandbox_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"cleat/internal/sys/systest"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// The server of a published port in a container keeps its own sockets: its clients'
// bytes are spliced, and it sees the clients' addresses. A client of the host's
// loopback has the gateway's address, so that the server does not take it for its own.
func TestContainerServesPublishedPort(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	for client, hears := range map[string]string{outside4: outside4, outside6: outside6, "127.0.0.1": "10.0.2.2"} {
		t.Run(client, func(t *testing.T) {
			port := closedPort(t, client)
			b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
			if got := b.served(t, port.String()); got != "tcp from "+hears {
				t.Errorf("the client heard %q", got)
			}
			if s := n.Stats(); s.Supervisor.Listening != 0 || s.Spliced != 1 {
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

// Signals that interrupt bind(2) do not change its result.
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
