package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"cleat/internal/nlsock"

	"golang.org/x/sys/unix"
)

// witness asks the kernel which Unix sockets belong to our network namespace. It has a
// netlink socket, which can be opened before and used after the process is sealed, and
// needs no right to look into the peer's process. It is safe for concurrent use.
type witness struct {
	fd   int
	diag *nlsock.Socket
}

// newWitness opens the socket. A kernel without CONFIG_UNIX_DIAG refuses the first
// question.
func newWitness() (*witness, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	diag, err := nlsock.New(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &witness{fd, diag}, nil
}

func (w *witness) close() { unix.Close(w.fd) }

// Of include/uapi/linux/sock_diag.h and unix_diag.h.
const (
	sockDiagByFamily = 20
	udiagShowPeer    = 4
	unixDiagPeer     = 2
	unixDiagBytes    = 16 // struct unix_diag_msg
	noCookie         = ^uint32(0)
)

// find looks up a Unix socket of our network namespace by its inode. It returns the inode
// of the socket's peer, wherever that is; 0: it has none. The error is ENOENT for a socket
// of another namespace, or of none.
func (w *witness) find(inode uint32) (peer uint32, err error) {
	b := []byte{unix.AF_UNIX, 0, 0, 0} // struct unix_diag_req
	for _, v := range []uint32{^uint32(0) /* every state */, inode, udiagShowPeer, noCookie, noCookie} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	kind, body, err := w.diag.Ask(nlsock.Request{Kind: sockDiagByFamily, Body: b})
	if err != nil {
		return 0, err
	}
	return peerOf(kind, body)
}

// peerOf reads the kernel's answer.
func peerOf(kind uint16, body []byte) (uint32, error) {
	if kind != sockDiagByFamily || len(body) < unixDiagBytes {
		return 0, errors.New("the kernel's answer is not about a Unix socket")
	}
	for kind, value := range nlsock.Attributes(body[unixDiagBytes:]) {
		if kind == unixDiagPeer && len(value) >= 4 {
			return binary.NativeEndian.Uint32(value), nil
		}
	}
	return 0, nil
}

// isOurs tells whether the peer of a connected socket of ours was made in our
// network namespace.
func (w *witness) isOurs(fd int) (bool, error) {
	inode, err := inodeOf(fd)
	if err != nil {
		return false, err
	}
	// The kernel makes the accepted socket in the namespace of the one that
	// connects (unix_stream_connect). Should it ever not, there is the peer.
	peer, err := w.find(inode)
	if err == nil && peer != 0 { // 0: it has gone
		_, err = w.find(peer)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for the peer's network namespace: %w", err)
	}
	return peer != 0, nil
}

func inodeOf(fd int) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return uint32(st.Ino), nil
}
