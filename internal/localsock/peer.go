package localsock

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Admits tells whether a user may give orders to the caller's: the same, or root.
func Admits(uid int) bool { return uid == 0 || uid == os.Getuid() }

// dial connects to whom trusts says may be believed.
func dial(ctx context.Context, address string, trusts func(uid int) bool) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c := conn.(*net.UnixConn)
	uid, err := PeerUID(c)
	if err == nil && !trusts(uid) {
		err = fmt.Errorf("it belongs to user %d", uid)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("trust %s: %w", address, err)
	}
	return c, nil
}

// PeerUID is the user of the peer as it was when it connected, or, of a
// listener, when it began to listen.
func PeerUID(c *net.UnixConn) (int, error) {
	cred, err := credentials(c)
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

// PeerPID is the process id of the peer, as PeerUID; 0: it has none in the caller's PID
// namespace.
func PeerPID(c *net.UnixConn) (int, error) {
	cred, err := credentials(c)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	err = Control(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the peer's credentials: %w", err)
	}
	return cred, nil
}

// Control calls f with the descriptor of c.
func Control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
