package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// witness asks the kernel which Unix sockets are our network namespace's. It is
// a netlink socket, which can be opened before and used after the process is
// sealed, and needs no right to look into the peer's process. It is safe for
// concurrent use.
type witness struct {
	mu sync.Mutex
	fd int
}

// newWitness opens the socket. Where the kernel has no CONFIG_UNIX_DIAG the
// first question will say so.
func newWitness() (*witness, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The kernel answers while we ask; this is for one that does not.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return &witness{fd: fd}, nil
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

// find looks a Unix socket up by its inode. In our network namespace it is
// found, with the inode of its peer, wherever that is; elsewhere, or nowhere,
// the error is ENOENT.
func (w *witness) find(inode uint32) (peer uint32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := make([]byte, 0, 64)
	b = binary.NativeEndian.AppendUint32(b, unix.SizeofNlMsghdr+24)
	b = binary.NativeEndian.AppendUint16(b, sockDiagByFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence, port
	b = append(b, unix.AF_UNIX, 0, 0, 0)
	for _, v := range []uint32{^uint32(0) /* every state */, inode, udiagShowPeer, noCookie, noCookie} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	if err := unix.Sendto(w.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(w.fd, answer, 0)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	return peerOf(answer[:n])
}

// peerOf reads the kernel's answer.
func peerOf(b []byte) (uint32, error) {
	order := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+4 {
		return 0, errors.New("the kernel's answer is cut short")
	}
	body := b[unix.SizeofNlMsghdr:]
	switch kind := order.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR:
		return 0, syscall.Errno(-int32(order.Uint32(body)))
	case kind != sockDiagByFamily || len(body) < unixDiagBytes:
		return 0, errors.New("the kernel's answer is something else")
	}
	for at := body[unixDiagBytes:]; len(at) >= unix.SizeofRtAttr; {
		length := int(order.Uint16(at))
		if length < unix.SizeofRtAttr || length > len(at) {
			break
		}
		if order.Uint16(at[2:]) == unixDiagPeer && length >= unix.SizeofRtAttr+4 {
			return order.Uint32(at[unix.SizeofRtAttr:]), nil
		}
		at = at[min((length+3)&^3, len(at)):]
	}
	return 0, nil // it has no peer
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
