package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// admit says why the peer of c may not give orders, nil if it may.
func (s *Server) admit(c *net.UnixConn) error {
	cred, err := credentials(c)
	if err != nil {
		return err
	}
	if int(cred.Uid) != os.Getuid() && cred.Uid != 0 {
		return fmt.Errorf("user %d may not control the helper of user %d", cred.Uid, os.Getuid())
	}
	if s.witness == nil {
		return nil // who has found the name is in our network namespace
	}
	ours := false
	err = control(c, func(fd int) (err error) {
		ours, err = s.witness.isOurs(fd)
		return err
	})
	if err != nil {
		return err
	}
	if !ours {
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

// control calls f with the descriptor of c.
func control(c interface {
	SyscallConn() (syscall.RawConn, error)
}, f func(fd int) error) error {
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
