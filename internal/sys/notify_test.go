package sys

import (
	"errors"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A thread without the right to connect TCP sockets connects none, whatever happens to
// its notifications. It keeps all other rights.
func TestNoTCP(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: l.Addr().(*net.TCPAddr).Port}
	type outcome struct{ setup, before, tcp, bind, udp error }
	done := make(chan outcome)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		var o outcome
		try := func(kind int) error {
			fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, to)
		}
		o.before = try(unix.SOCK_STREAM)
		o.setup = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if rules, err := NoTCP(); err != nil || o.setup != nil {
			o.setup = errors.Join(o.setup, err)
		} else {
			o.setup = RestrictSelf(rules)
		}
		o.tcp, o.udp = try(unix.SOCK_STREAM), try(unix.SOCK_DGRAM)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			o.bind = unix.Bind(fd, &unix.SockaddrInet4{})
			unix.Close(fd)
		}
		done <- o
	}()
	o := <-done
	if errors.Is(o.setup, ErrNoLandlock) {
		t.Skip(o.setup)
	}
	if o.setup != nil || o.before != nil || o.udp != nil || !errors.Is(o.tcp, unix.EACCES) || !errors.Is(o.bind, unix.EACCES) {
		t.Errorf("got %+v, want EACCES of TCP's connect and bind, and of nothing else", o)
	}
}
