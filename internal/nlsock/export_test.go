package nlsock

import "golang.org/x/sys/unix"

// Unconnected is New for a socket that others may send to.
func Unconnected(fd int) (*Socket, error) {
	if err := unix.Bind(fd, kernel()); err != nil {
		return nil, err
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return nil, err
	}
	return &Socket{fd: fd, port: own.(*unix.SockaddrNetlink).Pid, buf: make([]byte, answerBytes)}, nil
}

// Port is the socket's port id.
func (s *Socket) Port() uint32 { return s.port }

// Begin sends a request for a dump and reads nothing.
func (s *Socket) Begin(r Request) error {
	s.dirty = true
	r.Flags |= unix.NLM_F_DUMP
	return unix.Sendto(s.fd, r.encode(s.seq+1000), 0, kernel())
}

// AppendAttribute appends an attribute and its padding.
func AppendAttribute(b []byte, kind uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
	b = native.AppendUint16(b, kind)
	b = append(b, data...)
	for range align(len(data)) - len(data) {
		b = append(b, 0)
	}
	return b
}
