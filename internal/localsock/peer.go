package localsock

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Admits reports whether uid may control programs of the caller's user: it is the same
// user or root.
func Admits(uid int) bool { return uid == 0 || uid == os.Getuid() }

// dial connects to a listener whose user trusts accepts.
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

// PeerUID returns the peer's user at the time it connected or, for a listener, when it
// started to listen.
func PeerUID(c *net.UnixConn) (int, error) {
	cred, err := credentials(c)
	return int(cred.Uid), err
}

// PeerPID returns the peer's process id at that time, or 0 if the peer has none in the
// caller's PID namespace.
func PeerPID(c *net.UnixConn) (int, error) {
	cred, err := credentials(c)
	return int(cred.Pid), err
}

// credentials returns SO_PEERCRED. It never returns nil.
func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	err = Control(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return &unix.Ucred{}, fmt.Errorf("get credentials of peer: %w", err)
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
