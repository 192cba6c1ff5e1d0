package sys

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of recvmmsg(2): a message header and the number of bytes
// transferred.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// segmentSpace is the room for one UDP_SEGMENT or UDP_GRO control message,
// CMSG_SPACE(sizeof(int)).
const segmentSpace = (unix.SizeofCmsghdr + 4 + 7) &^ 7

// Batch is a set of messages for one sendmmsg or recvmmsg call on a connected socket.
// Create it with NewBatch.
type Batch struct {
	msgs    []mmsghdr
	iovs    []unix.Iovec
	control []byte
	perMsg  int
}

// NewBatch allocates a batch of n messages with up to iovPerMsg buffers each.
func NewBatch(n, iovPerMsg int) *Batch {
	b := &Batch{
		msgs:    make([]mmsghdr, n),
		iovs:    make([]unix.Iovec, n*iovPerMsg),
		control: make([]byte, n*segmentSpace),
		perMsg:  iovPerMsg,
	}
	for i := range b.msgs {
		b.msgs[i].hdr.Iov = &b.iovs[i*iovPerMsg]
	}
	return b
}

// Len returns the number of messages that the batch has room for.
func (b *Batch) Len() int { return len(b.msgs) }

// SetBuffer makes buf the k-th buffer of message i. The batch keeps a reference; the
// caller may change the contents between calls. buf must not be empty.
func (b *Batch) SetBuffer(i, k int, buf []byte) {
	v := &b.iovs[i*b.perMsg+k]
	v.Base = &buf[0]
	v.SetLen(len(buf))
}

// ClearBuffer makes the k-th buffer of message i empty.
func (b *Batch) ClearBuffer(i, k int) { b.iovs[i*b.perMsg+k] = unix.Iovec{} }

// SetBuffers sets how many of message i's buffers are used.
func (b *Batch) SetBuffers(i, n int) { b.msgs[i].hdr.SetIovlen(n) }

// SetSegment asks the kernel to cut message i into datagrams of size bytes (UDP_SEGMENT);
// 0 sends it as one datagram.
func (b *Batch) SetSegment(i, size int) {
	h := &b.msgs[i].hdr
	if size == 0 {
		h.Control = nil
		h.SetControllen(0)
		return
	}
	c := b.control[i*segmentSpace : (i+1)*segmentSpace]
	cmsg := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	cmsg.Level = unix.SOL_UDP
	cmsg.Type = unix.UDP_SEGMENT
	cmsg.SetLen(unix.SizeofCmsghdr + 2)
	binary.NativeEndian.PutUint16(c[unix.SizeofCmsghdr:], uint16(size))
	h.Control = &c[0]
	h.SetControllen(segmentSpace)
}

// Send sends n messages from index first on and returns how many were sent; an error
// means none. It blocks if the socket does.
func (b *Batch) Send(fd, first, n, flags int) (int, error) {
	r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[first])), uintptr(n), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// Recv receives up to Len messages and returns how many came. Flag unix.MSG_WAITFORONE
// blocks only for the first.
func (b *Batch) Recv(fd, flags int) (int, error) {
	for i := range b.msgs {
		h := &b.msgs[i].hdr
		h.Control = &b.control[i*segmentSpace]
		h.SetControllen(segmentSpace)
	}
	r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[0])), uintptr(len(b.msgs)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// Size returns the number of bytes that message i carried in the last call.
func (b *Batch) Size(i int) int { return int(b.msgs[i].len) }

// Segment returns the size in bytes of the datagrams that the kernel joined into message
// i (UDP_GRO), or 0 if the message is one datagram.
func (b *Batch) Segment(i int) int {
	end := min(int(b.msgs[i].hdr.Controllen), segmentSpace)
	level, typ, data, _ := nextControl(b.control[i*segmentSpace : i*segmentSpace+end])
	if level != unix.SOL_UDP || typ != unix.UDP_GRO || len(data) < 4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(data)))
}
