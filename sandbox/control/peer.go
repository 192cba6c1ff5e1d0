package control

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// pidfdGetNetNamespace is PIDFD_GET_NET_NAMESPACE, _IO(PIDFS_IOCTL_MAGIC, 4),
// from Linux 6.11 on.
const pidfdGetNetNamespace = 0xff04

// admit says why the peer of c may not give orders, nil if it may.
func (s *Server) admit(c *net.UnixConn) error {
	cred, err := credentials(c)
	if err != nil {
		return err
	}
	if int(cred.Uid) != os.Getuid() && cred.Uid != 0 {
		return fmt.Errorf("user %d may not control the helper of user %d", cred.Uid, os.Getuid())
	}
	if s.self == 0 || int(cred.Uid) != os.Getuid() {
		return nil // root is not in the sandbox of somebody else
	}
	ns, err := namespaceOfPeer(c)
	if err != nil {
		return err
	}
	if ns != s.self {
		return errors.New("a process in another network namespace may not control this helper")
	}
	return nil
}

// credentials are the peer's as they were when it connected, or, of a
// listener, when it began to listen.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	var cred *unix.Ucred
	err := control(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the peer's credentials: %w", err)
	}
	return cred, nil
}

// namespaceOfPeer is the network namespace that the process is in which
// connected. Its process id can't be another's by now: a pidfd stays with the
// process.
func namespaceOfPeer(c *net.UnixConn) (uint64, error) {
	var ns uint64
	err := control(c, func(fd int) error {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			return err
		}
		defer unix.Close(pidfd)
		ns, err = namespaceOf(pidfd)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the peer's network namespace: %w", err)
	}
	return ns, nil
}

// namespaceOfSelf is the network namespace we are in, found in the same way.
func namespaceOfSelf() (uint64, error) {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(pidfd)
	ns, err := namespaceOf(pidfd)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return 0, fmt.Errorf("ask for a process's network namespace by pidfd, which Linux can from 6.11 on: %w", errors.ErrUnsupported)
	}
	return ns, err
}

func namespaceOf(pidfd int) (uint64, error) {
	fd, err := unix.IoctlRetInt(pidfd, pidfdGetNetNamespace)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// control calls f with the descriptor of c.
func control(c *net.UnixConn, f func(fd int) error) error {
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
