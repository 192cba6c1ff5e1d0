package sys

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Address is an IPv4 or IPv6 socket address in the kernel's form. Addresses of the same
// family can be compared with ==. The zero Address is no address.
type Address struct {
	raw  [unix.SizeofSockaddrInet6]byte // struct sockaddr_in or sockaddr_in6
	size uint8
}

// MakeAddress converts a. With mapped, an IPv4 address becomes IPv4-mapped, as IPv6
// sockets need it. Only numeric zones are kept.
func MakeAddress(a netip.AddrPort, mapped bool) Address {
	var s Address
	if a.Addr().Is4() && !mapped {
		s.size = unix.SizeofSockaddrInet4
		binary.NativeEndian.PutUint16(s.raw[0:], unix.AF_INET)
		binary.BigEndian.PutUint16(s.raw[2:], a.Port())
		ip := a.Addr().As4()
		copy(s.raw[4:], ip[:])
		return s
	}
	s.size = unix.SizeofSockaddrInet6
	binary.NativeEndian.PutUint16(s.raw[0:], unix.AF_INET6)
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	ip := a.Addr().As16()
	copy(s.raw[8:], ip[:])
	if zone, err := strconv.ParseUint(a.Addr().Zone(), 10, 32); err == nil {
		binary.NativeEndian.PutUint32(s.raw[24:], uint32(zone))
	}
	return s
}

// AddrPort returns the address in Go's form; an IPv4-mapped one becomes IPv4. The zero
// Address gives an invalid result. A zone allocates.
func (s *Address) AddrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(s.raw[2:])
	switch s.size {
	case unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.raw[4:8])), port)
	case unix.SizeofSockaddrInet6:
		ip := netip.AddrFrom16([16]byte(s.raw[8:24])).Unmap()
		if zone := binary.NativeEndian.Uint32(s.raw[24:]); zone != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(zone), 10))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}

// Raw returns the bytes of the kernel's structure.
func (s *Address) Raw() []byte { return s.raw[:s.size] }

// Family returns unix.AF_INET, unix.AF_INET6, or 0 for no address.
func (s *Address) Family() int {
	switch s.size {
	case unix.SizeofSockaddrInet4:
		return unix.AF_INET
	case unix.SizeofSockaddrInet6:
		return unix.AF_INET6
	}
	return 0
}

// addressOf copies an address that the kernel has written.
func addressOf(name *unix.RawSockaddrInet6, size uint32) Address {
	raw := (*[unix.SizeofSockaddrInet6]byte)(unsafe.Pointer(name))
	switch {
	case size >= unix.SizeofSockaddrInet4 && name.Family == unix.AF_INET:
		s := Address{size: unix.SizeofSockaddrInet4}
		copy(s.raw[:], raw[:unix.SizeofSockaddrInet4])
		return s
	case size >= unix.SizeofSockaddrInet6 && name.Family == unix.AF_INET6:
		return Address{size: unix.SizeofSockaddrInet6, raw: *raw}
	}
	return Address{}
}

// controlSpace is room for the control messages of one datagram. A dual-stack socket with
// every option on gets the most: CMSG_SPACE of an error (64) or a segment size (24),
// packet information (40 and 32), and traffic class (24 and 24).
const controlSpace = 192

// Outbox is a set of addressed datagrams for one sendmmsg call. Create it with NewOutbox.
type Outbox struct {
	msgs    []mmsghdr
	names   []Address
	iovs    []unix.Iovec
	control []byte
	n, iov  int
}

// NewOutbox allocates an outbox for n messages with buffers buffers in total.
func NewOutbox(n, buffers int) *Outbox {
	return &Outbox{
		msgs: make([]mmsghdr, n), names: make([]Address, n),
		iovs: make([]unix.Iovec, buffers), control: make([]byte, n*controlSpace),
	}
}

// Reset drops all messages and the references to their buffers.
func (o *Outbox) Reset() {
	clear(o.iovs[:o.iov])
	o.n, o.iov = 0, 0
}

// Len returns the number of messages.
func (o *Outbox) Len() int { return o.n }

// Room returns the number of buffers that can still be appended; 0 if no message can be
// added either.
func (o *Outbox) Room() int {
	if o.n == len(o.msgs) {
		return 0
	}
	return len(o.iovs) - o.iov
}

// Begin starts a message to an address.
func (o *Outbox) Begin(to *Address) {
	o.names[o.n] = *to
	h := &o.msgs[o.n].hdr
	*h = unix.Msghdr{Name: &o.names[o.n].raw[0], Namelen: uint32(to.size), Iov: &o.iovs[o.iov]}
	o.n++
}

// Append adds a buffer, which may be empty, to the last message. The Outbox refers to it
// until Reset.
func (o *Outbox) Append(buf []byte) {
	v := &o.iovs[o.iov]
	v.Base = unsafe.SliceData(buf)
	v.SetLen(len(buf))
	o.iov++
	h := &o.msgs[o.n-1].hdr
	h.SetIovlen(int(h.Iovlen) + 1)
}

// SetSegment asks the kernel to cut the last message into datagrams of size bytes
// (UDP_SEGMENT).
func (o *Outbox) SetSegment(size int) {
	c := o.addControl(unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(c, uint16(size))
}

// SetTOS sets the traffic class of the last message (IP_TOS, IPV6_TCLASS).
func (o *Outbox) SetTOS(tos uint8, v6 bool) {
	level, typ := int32(unix.IPPROTO_IP), int32(unix.IP_TOS)
	if v6 {
		level, typ = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	binary.NativeEndian.PutUint32(o.addControl(level, typ, 4), uint32(tos))
}

// SetSource sets the host's address that the last message is sent from (IP_PKTINFO,
// IPV6_PKTINFO). It must be of the same family as the message's destination.
func (o *Outbox) SetSource(from netip.Addr) {
	if o.names[o.n-1].size == unix.SizeofSockaddrInet4 {
		c := o.addControl(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		clear(c)
		ip := from.As4()
		copy(c[4:], ip[:]) // ipi_spec_dst
		return
	}
	c := o.addControl(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	clear(c)
	ip := from.As16()
	copy(c, ip[:])
}

// addControl adds a control message to the last message and returns its data.
func (o *Outbox) addControl(level, typ int32, size int) []byte {
	i := o.n - 1
	h := &o.msgs[i].hdr
	at := int(h.Controllen)
	c := o.control[i*controlSpace+at : (i+1)*controlSpace]
	cmsg := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	cmsg.Level, cmsg.Type = level, typ
	cmsg.SetLen(unix.SizeofCmsghdr + size)
	h.Control = &o.control[i*controlSpace]
	h.SetControllen(at + unix.CmsgSpace(size))
	return c[unix.SizeofCmsghdr : unix.SizeofCmsghdr+size]
}

// SendNow sends messages from index first on without blocking and returns how many were
// sent. An errno other than 0 means none.
func (o *Outbox) SendNow(fd, first int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.msgs[first])), uintptr(o.n-first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// SendOneNow sends the i-th message alone.
func (o *Outbox) SendOneNow(fd, i int) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.msgs[i].hdr)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return errno
}

// Inbox is a set of buffers that one recvmmsg call fills. Create it with NewInbox.
type Inbox struct {
	msgs    []mmsghdr
	names   []unix.RawSockaddrInet6
	iovs    []unix.Iovec
	bufs    [][]byte
	control []byte
}

// NewInbox returns an inbox that receives into bufs, each of at least one byte.
func NewInbox(bufs [][]byte) *Inbox {
	n := len(bufs)
	in := &Inbox{
		msgs: make([]mmsghdr, n), names: make([]unix.RawSockaddrInet6, n), iovs: make([]unix.Iovec, n),
		bufs: bufs, control: make([]byte, n*controlSpace),
	}
	for i, b := range bufs {
		in.iovs[i].Base = &b[0]
		in.iovs[i].SetLen(len(b))
		h := &in.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&in.names[i]))
		h.Iov = &in.iovs[i]
		h.SetIovlen(1)
		h.Control = &in.control[i*controlSpace]
	}
	return in
}

// Len returns the number of buffers.
func (in *Inbox) Len() int { return len(in.msgs) }

// RecvNow receives without blocking and returns the number of messages. An errno other
// than 0 means none.
func (in *Inbox) RecvNow(fd int) (int, unix.Errno) {
	for i := range in.msgs {
		h := &in.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(controlSpace)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&in.msgs[0])), uintptr(len(in.msgs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// Data returns the bytes of the i-th message.
func (in *Inbox) Data(i int) []byte { return in.bufs[i][:min(int(in.msgs[i].len), len(in.bufs[i]))] }

// From returns the sender of the i-th message.
func (in *Inbox) From(i int) Address { return addressOf(&in.names[i], in.msgs[i].hdr.Namelen) }

// Meta is the metadata of a message. Fields whose socket option is off are zero.
type Meta struct {
	Segment int        // UDP_GRO: bytes of each datagram that the kernel joined; 0: a single datagram
	TOS     uint8      // IP_RECVTOS, IPV6_RECVTCLASS
	Local   netip.Addr // IP_PKTINFO, IPV6_RECVPKTINFO: the host's address to answer from
	Arrived int64      // SO_TIMESTAMPNS: when the kernel received it, ns since 1970; 0: not enabled
}

// Meta reads the control messages of the i-th message.
func (in *Inbox) Meta(i int) Meta {
	var m Meta
	end := min(int(in.msgs[i].hdr.Controllen), controlSpace)
	c := in.control[i*controlSpace : i*controlSpace+end]
	for {
		level, typ, data, rest := nextControl(c)
		if data == nil {
			return m
		}
		c = rest
		switch {
		case level == unix.SOL_UDP && typ == unix.UDP_GRO && len(data) >= 4:
			m.Segment = int(int32(binary.NativeEndian.Uint32(data)))
		case level == unix.IPPROTO_IP && typ == unix.IP_TOS && len(data) >= 1:
			m.TOS = data[0]
		case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_TCLASS && len(data) >= 4:
			m.TOS = uint8(binary.NativeEndian.Uint32(data))
		case level == unix.SOL_SOCKET && typ == unix.SO_TIMESTAMPNS && len(data) >= 16:
			m.Arrived = int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
		case level == unix.IPPROTO_IP && typ == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			m.Local = netip.AddrFrom4([4]byte(data[4:8]))
		case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			m.Local = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		}
	}
}

// nextControl splits the first control message off c; data is nil at the end.
func nextControl(c []byte) (level, typ int32, data, rest []byte) {
	if len(c) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil
	}
	cmsg := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	size := int(cmsg.Len)
	if size < unix.SizeofCmsghdr || size > len(c) {
		return 0, 0, nil, nil
	}
	return cmsg.Level, cmsg.Type, c[unix.SizeofCmsghdr:size:size], c[min(unix.CmsgSpace(size-unix.SizeofCmsghdr), len(c)):]
}

// Origins of an error report (include/uapi/linux/errqueue.h).
const (
	OriginLocal  = unix.SO_EE_ORIGIN_LOCAL
	OriginICMP   = unix.SO_EE_ORIGIN_ICMP
	OriginICMPv6 = unix.SO_EE_ORIGIN_ICMP6
)

// ErrorReport is a struct sock_extended_err and the data that comes with it.
type ErrorReport struct {
	Errno      unix.Errno
	Origin     uint8
	Type, Code uint8      // of the ICMP message
	Info       uint32     // path MTU in bytes, for EMSGSIZE
	Offender   netip.Addr // sender of the ICMP message
	To         Address    // destination of the datagram
	Local      netip.Addr // source of the datagram, if packet information is enabled
	Data       []byte     // beginning of the datagram, in the caller's buffer
}

// Errors reads the error queues of sockets (IP_RECVERR, IPV6_RECVERR). Create it with
// NewErrors.
type Errors struct {
	in  *Inbox
	buf []byte
}

// NewErrors returns a reader that keeps the first size bytes of each datagram.
func NewErrors(size int) *Errors {
	buf := make([]byte, size)
	return &Errors{in: NewInbox([][]byte{buf}), buf: buf}
}

// extendedErr is the size of struct sock_extended_err.
const extendedErr = 16

// Next takes the next report from fd's queue and reports whether there was one. Data is
// valid until the next call.
func (e *Errors) Next(fd int, r *ErrorReport) bool {
	h := &e.in.msgs[0].hdr
	h.Namelen = unix.SizeofSockaddrInet6
	h.SetControllen(controlSpace)
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if errno != 0 {
		return false
	}
	*r = ErrorReport{To: e.in.From(0), Local: e.in.Meta(0).Local, Data: e.buf[:min(int(n), len(e.buf))]}
	c := e.in.control[:min(int(h.Controllen), controlSpace)]
	for {
		level, typ, data, rest := nextControl(c)
		if data == nil {
			return true
		}
		c = rest
		v4 := level == unix.IPPROTO_IP && typ == unix.IP_RECVERR
		v6 := level == unix.IPPROTO_IPV6 && typ == unix.IPV6_RECVERR
		if (v4 || v6) && len(data) >= extendedErr {
			r.Errno = unix.Errno(binary.NativeEndian.Uint32(data))
			r.Origin, r.Type, r.Code = data[4], data[5], data[6]
			r.Info = binary.NativeEndian.Uint32(data[8:])
			r.Offender = offender(data[extendedErr:])
		}
	}
}

// offender returns the address after a struct sock_extended_err (SO_EE_OFFENDER).
func offender(b []byte) netip.Addr {
	if len(b) < unix.SizeofSockaddrInet4 {
		return netip.Addr{}
	}
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET:
		return netip.AddrFrom4([4]byte(b[4:8]))
	case family == unix.AF_INET6 && len(b) >= unix.SizeofSockaddrInet6:
		return netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	}
	return netip.Addr{}
}

// Vector is a list of buffers that are written as one packet. The zero value is empty.
type Vector struct {
	iovs []unix.Iovec
	size int
}

// Reset empties the vector.
func (v *Vector) Reset() {
	clear(v.iovs)
	v.iovs, v.size = v.iovs[:0], 0
}

// Append adds a non-empty buffer. The vector refers to it until Reset.
func (v *Vector) Append(buf []byte) {
	iov := unix.Iovec{Base: unsafe.SliceData(buf)}
	iov.SetLen(len(buf))
	v.iovs = append(v.iovs, iov)
	v.size += len(buf)
}

// Size returns the number of bytes.
func (v *Vector) Size() int { return v.size }

// AppendTo appends the bytes of all buffers to b.
func (v *Vector) AppendTo(b []byte) []byte {
	for i := range v.iovs {
		b = append(b, unsafe.Slice(v.iovs[i].Base, v.iovs[i].Len)...)
	}
	return b
}

// WriteNow calls writev(2) on a non-blocking descriptor. The vector must not be empty.
func (v *Vector) WriteNow(fd int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(v.iovs))), uintptr(len(v.iovs)))
	return int(n), errno
}
