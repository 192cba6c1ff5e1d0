package nlsock

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// News is a socket that has joined multicast groups.
type News struct{ fd int }

// Join joins multicast groups, given by number, with a netlink socket, and connects it to
// the kernel. The caller keeps ownership of the descriptor.
func Join(fd int, groups ...int) (*News, error) {
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return nil, fmt.Errorf("join netlink group %d: %w", g, err)
		}
	}
	if _, err := connect(fd); err != nil {
		return nil, err
	}
	return &News{fd}, nil
}

// newsReads is the most messages that one call drops. If there are more, the next Any
// returns true again.
const newsReads = 64

// Any reports whether anything arrived since the last call, and drops it. It does not
// block, and is safe for concurrent use. It returns true if the socket fails.
func (n *News) Any() bool {
	var one [1]byte // the rest of a message is dropped
	for i := range newsReads {
		switch _, _, err := unix.Recvfrom(n.fd, one[:], unix.MSG_DONTWAIT); {
		case errors.Is(err, unix.EAGAIN):
			return i > 0
		case err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS):
			return true
		}
	}
	return true
}
