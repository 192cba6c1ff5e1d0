package sys

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRawIO(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	if n, err := WriteRaw(fds[1], []byte("ahoy")); n != 4 || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	buf := make([]byte, 8)
	if n, err := ReadRaw(fds[0], buf); n != 4 || err != nil || string(buf[:4]) != "ahoy" {
		t.Fatalf("read: %d, %v, %q", n, err, buf)
	}
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 1000}); err != nil {
		t.Fatal(err)
	}
	_, err = ReadRaw(fds[0], buf)
	for errors.Is(err, unix.EINTR) { // signals of the Go runtime
		_, err = ReadRaw(fds[0], buf)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read of nothing: %v, want a timeout", err)
	}
	unix.Close(fds[1])
	if n, err := ReadRaw(fds[0], buf); n != 0 || err != nil {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if _, err := WriteRaw(-1, buf); !errors.Is(err, unix.EBADF) {
		t.Errorf("write to nowhere: %v", err)
	}
}
