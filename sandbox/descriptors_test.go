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

// A call is refused where the supervisor has no descriptor left to find out what it is
// about: continued, it would be carried out unjudged.
func TestNoDescriptorsLeft(t *testing.T) {
	world(t)
	s := newServed(t, sandbox.Config{})
	c := s.start(t, "call-later", filepath.Join(t.TempDir(), "socket"))
	if said := c.line(t); said != "ready" {
		t.Fatalf("the guest printed %q", said)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := c.stdin.Write([]byte{0})
	said := c.line(t)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if want := "connect EAGAIN, unix EAGAIN, bind EAGAIN, listen EAGAIN, option EAGAIN"; said != want {
		t.Errorf("without descriptors the guest printed %q, want %q", said, want)
	}
	if _, err := c.stdin.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if said, want := c.line(t), "connect ok, unix ok, bind ok, listen ok, option ok"; said != want {
		t.Errorf("afterwards the guest printed %q, want %q", said, want)
	}
	c.stdin.Close()
	c.rest(t)
	s.end(t)
}

// callLater makes calls for each byte of its input and prints how they went.
func callLater(args []string) error {
	made := func(family int) int {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	// Inside, so that each call would succeed if it were carried out.
	at := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 7000}
	server, local := made(unix.AF_INET), made(unix.AF_UNIX)
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
		client, clientLocal, bound, listening, other := made(unix.AF_INET), made(unix.AF_UNIX), made(unix.AF_INET), made(unix.AF_INET), made(unix.AF_INET)
		fmt.Printf("connect %s, unix %s, bind %s, listen %s, option %s\n",
			name(unix.Connect(client, at)), name(unix.Connect(clientLocal, &unix.SockaddrUnix{Name: args[0]})),
			name(unix.Bind(bound, &unix.SockaddrInet4{})), name(unix.Listen(listening, 1)),
			name(unix.SetsockoptInt(other, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
		for _, fd := range []int{client, clientLocal, bound, listening, other} {
			unix.Close(fd)
		}
	}
}

// What a container has caused is charged as long as it is there, and not afterwards.
func TestContainerIsCharged(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false).String()
	s := newServed(t, sandbox.Config{})
	before := s.n.Charged()
	var all []*contained
	for range 3 {
		c := s.start(t, "wait", "tcp", server)
		if said := c.line(t); said != "ready" {
			t.Fatalf("the guest printed %q", said)
		}
		all = append(all, c)
	}
	until(t, func() string {
		if now := s.n.Charged().Minus(before); now.Goroutines < len(all) || now.Descriptors < len(all) || now.Bytes < len(all) {
			return fmt.Sprintf("%d containers are charged with %+v", len(all), now)
		}
		return ""
	})
	for _, c := range all {
		c.stdin.Close()
		if got := c.rest(t); got != "hello" {
			t.Errorf("the guest printed %q", got)
		}
	}
	until(t, func() string {
		if now := s.n.Charged(); now != before {
			return fmt.Sprintf("charged afterwards: %+v, before: %+v", now, before)
		}
		return ""
	})
	s.end(t)
}

// until waits for a condition, which says what is missing.
func until(t *testing.T, missing func() string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		what := missing()
		if what == "" {
			return
		}
		if time.Since(begin) > soon {
			t.Fatal(what)
		}
	}
}
