package control

import (
	"errors"
	"fmt"
	"net"
	"os"

	"cleat/internal/localsock"
)

// admit says why the peer of c may not give orders, nil if it may.
func (s *Server) admit(c *net.UnixConn) error {
	uid, err := localsock.PeerUID(c)
	if err != nil {
		return err
	}
	if !localsock.Admits(uid) {
		return fmt.Errorf("user %d may not control the helper of user %d", uid, os.Getuid())
	}
	if s.witness == nil {
		return nil // who has found the name is in our network namespace
	}
	ours := false
	err = localsock.Control(c, func(fd int) (err error) {
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
