package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"cleat/internal/nlsock"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// netnsVerifier finds out whether Unix sockets belong to our network namespace. Its netlink
// socket is opened before the process is sealed. It needs no right to inspect the peer's
// process. It is safe for concurrent use.
type netnsVerifier struct {
	socket *os.File
	diag   *nlsock.Socket
}

// newNetnsVerifier opens the netlink socket. Without CONFIG_UNIX_DIAG the first lookup
// fails.
func newNetnsVerifier() (*netnsVerifier, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	diag, err := nlsock.New(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &netnsVerifier{os.NewFile(uintptr(fd), "sock_diag"), diag}, nil
}

// See include/uapi/linux/sock_diag.h and unix_diag.h.
const (
	sockDiagByFamily = 20
	udiagShowPeer    = 4
	unixDiagPeer     = 2
	unixDiagBytes    = 16         // size of struct unix_diag_msg
	anyState         = ^uint32(0) // udiag_states
	noCookie         = ^uint32(0) // INET_DIAG_NOCOOKIE
)

// find looks up a Unix socket of our network namespace by its inode number. It returns the
// inode number of the connected peer, which may be in another namespace; 0 if there is no
// peer. The error is ENOENT if the namespace has no such socket.
func (v *netnsVerifier) find(inode uint32) (peer uint32, err error) {
	request := []byte{unix.AF_UNIX, 0, 0, 0} // struct unix_diag_req
	for _, field := range []uint32{anyState, inode, udiagShowPeer, noCookie, noCookie} {
		request = binary.NativeEndian.AppendUint32(request, field)
	}
	kind, answer, err := v.diag.Ask(nlsock.Request{Kind: sockDiagByFamily, Body: request})
	if err != nil {
		return 0, err
	}
	return parsePeer(kind, answer)
}

// parsePeer returns the peer's inode number in an answer of the kernel; 0 if it has none.
func parsePeer(kind uint16, answer []byte) (peer uint32, err error) {
	if kind != sockDiagByFamily || len(answer) < unixDiagBytes {
		return 0, errors.New("the kernel's answer does not describe a Unix socket")
	}
	attributes, err := netlink.NewAttributeDecoder(answer[unixDiagBytes:])
	if err != nil {
		return 0, err
	}
	for attributes.Next() {
		if attributes.Type() == unixDiagPeer {
			peer = attributes.Uint32()
		}
	}
	return peer, attributes.Err()
}

// isLocal reports whether the peer of a connected socket was made in our network
// namespace.
func (v *netnsVerifier) isLocal(fd int) (bool, error) {
	inode, err := inodeOf(fd)
	if err != nil {
		return false, err
	}
	// The kernel makes our end of the connection in the peer's namespace
	// (unix_stream_connect). Check the peer as well, in case that ever changes.
	peer, err := v.find(inode)
	if err == nil && peer != 0 {
		_, err = v.find(peer)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find the peer's network namespace: %w", err)
	}
	return peer != 0, nil // 0 if the peer has hung up
}

func inodeOf(fd int) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return uint32(st.Ino), nil
}
