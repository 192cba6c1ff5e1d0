package traffic

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A connection that starts with BBR stays paced, whichever algorithm its session
// requests.
func TestConnectionsBeginUnpaced(t *testing.T) {
	l, err := listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	c, err := net.Dial("tcp", l.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := waitFD(context.Background(), l.tcp, unix.POLLIN); err != nil {
		t.Fatal(err)
	}
	fd, _, err := unix.Accept4(l.tcp, unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || got != surestCongestion {
		t.Errorf("begins with %q, %v", got, err)
	}
}
