package nlsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Request is a request to the kernel.
type Request struct {
	Kind  uint16 // nlmsg_type
	Flags uint16 // besides NLM_F_REQUEST and, for Dump, NLM_F_DUMP
	Body  []byte
}

// Errors of an exchange. Errors from the kernel are a unix.Errno.
var (
	// ErrInterrupted means that the subject of a dump changed during the dump, and that
	// parts may be missing.
	ErrInterrupted = errors.New("the dump was interrupted by a change")
	// ErrTooLong means that the answer exceeds the limits of this package.
	ErrTooLong = errors.New("the kernel's answer is too long")
	// ErrBusy means that the rest of an earlier exchange could not be read and dropped.
	ErrBusy = errors.New("netlink socket cannot be drained")

	errMalformed = errors.New("the kernel's answer is malformed")
)

const (
	// answerBytes is the longest datagram: the kernel fills up to 32 KiB at a time
	// (netlink_dump, net/netlink/af_netlink.c).
	answerBytes = 32 << 10
	// dumpBytes bounds a dump: some 100,000 sockets.
	dumpBytes = 16 << 20
	// drainReads is the most reads that drain a socket: a whole dump.
	drainReads = dumpBytes / answerBytes
	// patience limits an exchange. The kernel answers in microseconds; a dump of
	// dumpBytes takes some 100 ms.
	patience = 2 * time.Second
)

var native = binary.NativeEndian

// Socket exchanges messages with the kernel. It is safe for concurrent use: exchanges
// take turns. Its zero value is not usable.
type Socket struct {
	mu    sync.Mutex
	fd    int
	port  uint32
	seq   uint32
	buf   []byte
	dirty bool // an exchange ended early
}

// New connects a netlink socket of any namespace and protocol to its kernel. The caller
// keeps ownership of the descriptor and closes it when no exchange runs.
func New(fd int) (*Socket, error) {
	port, err := connect(fd)
	if err != nil {
		return nil, err
	}
	return &Socket{fd: fd, port: port, buf: make([]byte, answerBytes)}, nil
}

// connect makes the kernel the only peer of a socket, and returns the socket's port id.
func connect(fd int) (port uint32, err error) {
	if err := unix.Connect(fd, kernel()); err != nil {
		return 0, fmt.Errorf("connect netlink socket to the kernel: %w", err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("find port id of netlink socket: %w", err)
	}
	at, ok := own.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("find port id of netlink socket: %w", unix.EAFNOSUPPORT)
	}
	return at.Pid, nil
}

func kernel() *unix.SockaddrNetlink { return &unix.SockaddrNetlink{Family: unix.AF_NETLINK} }

// Ask sends a request that has one answer, and returns the answer's type and body. For an
// acknowledgement without an answer these are NLMSG_ERROR and nil. It waits for nobody
// but the kernel.
func (s *Socket) Ask(r Request) (kind uint16, body []byte, err error) {
	err = s.exchange(r, func(k uint16, b []byte) bool {
		kind, body = k, append([]byte(nil), b...)
		return true
	})
	return kind, body, err
}

// Dump sends a request with many answers and calls each with their types and bodies,
// which are valid only during the call.
func (s *Socket) Dump(r Request, each func(kind uint16, body []byte)) error {
	r.Flags |= unix.NLM_F_DUMP
	return s.exchange(r, func(kind uint16, body []byte) bool {
		each(kind, body)
		return false
	})
}

// exchange sends a request and calls each for the answers until it returns true or the
// kernel reports the end.
func (s *Socket) exchange(r Request, each func(kind uint16, body []byte) (last bool)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.empty(); err != nil {
		return err
	}
	s.seq++
	s.dirty = true
	if err := unix.Sendto(s.fd, r.encode(s.seq), 0, kernel()); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	a := answers{seq: s.seq, port: s.port, each: each}
	deadline := time.Now().Add(patience)
	for total := 0; ; {
		n, sender, err := s.receive(deadline)
		if err != nil {
			return err
		}
		if total += n; total > dumpBytes {
			return ErrTooLong
		}
		done, err := a.take(s.buf[:n], sender)
		if done {
			s.dirty = false
		}
		if done || err != nil {
			return err
		}
	}
}

// encode returns the request as a netlink message.
func (r Request) encode(seq uint32) []byte {
	b := make([]byte, 0, unix.SizeofNlMsghdr+len(r.Body))
	b = native.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(r.Body)))
	b = native.AppendUint16(b, r.Kind)
	b = native.AppendUint16(b, r.Flags|unix.NLM_F_REQUEST)
	b = native.AppendUint32(b, seq)
	b = native.AppendUint32(b, 0) // the kernel knows the port id
	return append(b, r.Body...)
}

// receive reads a datagram and returns its size and the port id of its sender.
func (s *Socket) receive(deadline time.Time) (n int, sender uint32, err error) {
	for {
		n, _, flags, from, err := unix.Recvmsg(s.fd, s.buf, nil, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if err := wait(s.fd, deadline); err != nil {
				return 0, 0, err
			}
			continue
		case err != nil:
			return 0, 0, os.NewSyscallError("recvmsg", err)
		case flags&unix.MSG_TRUNC != 0:
			return 0, 0, ErrTooLong
		}
		at, ok := from.(*unix.SockaddrNetlink)
		if !ok {
			return 0, 0, errMalformed
		}
		return n, at.Pid, nil
	}
}

// wait blocks until a descriptor is readable. After the deadline it returns
// os.ErrDeadlineExceeded.
func wait(fd int, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("wait for the kernel's answer: %w", os.ErrDeadlineExceeded)
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// empty drops what an aborted exchange has left. A dump continues until it is read, and
// no other can begin before that.
func (s *Socket) empty() error {
	if !s.dirty {
		return nil
	}
	for range drainReads {
		_, _, err := unix.Recvfrom(s.fd, s.buf[:1], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			s.dirty = false
			return nil
		}
	}
	return ErrBusy
}
