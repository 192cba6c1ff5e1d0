package sandbox_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// If the supervisor has no descriptor left to inspect a call, the call is refused. If it
// were continued, it would be carried out without a verdict.
func TestCallsFailWithoutDescriptors(t *testing.T) {
	fakeInternet(t)
	s := newContainerNet(t, sandbox.Config{})
	c := s.start(t, "call-on-demand", filepath.Join(t.TempDir(), "socket"))
	if output := c.line(t); output != "ready" {
		t.Fatalf("the guest printed %q, want ready", output)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := c.stdin.Write([]byte{0})
	output := c.line(t)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if want := "connect EAGAIN, unix EAGAIN, bind EAGAIN, listen EAGAIN, option EAGAIN"; output != want {
		t.Errorf("without descriptors the guest printed %q, want %q", output, want)
	}
	if _, err := c.stdin.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if output, want := c.line(t), "connect ok, unix ok, bind ok, listen ok, option ok"; output != want {
		t.Errorf("afterwards the guest printed %q, want %q", output, want)
	}
	c.stdin.Close()
	c.rest(t)
	s.end(t)
}

// callOnDemand makes calls for each byte of its input and prints their results.
func callOnDemand(args []string) error {
	newSocket := func(family int) int {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	// The listeners are in the namespace, so that each call would succeed if it were
	// carried out.
	at := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 7000}
	server, local := newSocket(unix.AF_INET), newSocket(unix.AF_UNIX)
	for _, err := range []error{unix.Bind(server, at), unix.Listen(server, 9), unix.Bind(local, &unix.SockaddrUnix{Name: args[0]}), unix.Listen(local, 9)} {
		if err != nil {
			return err
		}
	}
	fmt.Println("ready")
	for {
		if _, err := os.Stdin.Read(make([]byte, 1)); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		client, clientLocal, bound, listening, other := newSocket(unix.AF_INET), newSocket(unix.AF_UNIX), newSocket(unix.AF_INET), newSocket(unix.AF_INET), newSocket(unix.AF_INET)
		fmt.Printf("connect %s, unix %s, bind %s, listen %s, option %s\n",
			errnoName(unix.Connect(client, at)), errnoName(unix.Connect(clientLocal, &unix.SockaddrUnix{Name: args[0]})),
			errnoName(unix.Bind(bound, &unix.SockaddrInet4{})), errnoName(unix.Listen(listening, 1)),
			errnoName(unix.SetsockoptInt(other, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
		for _, fd := range []int{client, clientLocal, bound, listening, other} {
			unix.Close(fd)
		}
	}
}

// A container is charged for what it causes while it exists, and not afterwards.
func TestContainerIsCharged(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	s := newContainerNet(t, sandbox.Config{})
	before := s.n.Charged()
	var all []*container
	for range 3 {
		c := s.start(t, "wait", "tcp", server)
		if output := c.line(t); output != "ready" {
			t.Fatalf("the guest printed %q, want ready", output)
		}
		all = append(all, c)
	}
	waitUntil(t, func() string {
		if now := s.n.Charged().Minus(before); now.Goroutines < len(all) || now.Descriptors < len(all) || now.Bytes < len(all) {
			return fmt.Sprintf("%d containers are charged with %+v", len(all), now)
		}
		return ""
	})
	for _, c := range all {
		c.stdin.Close()
		if got := c.rest(t); got != "hello" {
			t.Errorf("the guest printed %q, want hello", got)
		}
	}
	waitUntil(t, func() string {
		if now := s.n.Charged(); now != before {
			return fmt.Sprintf("charged afterwards: %+v, before: %+v", now, before)
		}
		return ""
	})
	s.end(t)
}

// waitUntil waits for a condition. missing returns what is missing, or "".
func waitUntil(t *testing.T, missing func() string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		text := missing()
		if text == "" {
			return
		}
		if time.Since(begin) > guestTimeout {
			t.Fatal(text)
		}
	}
}
