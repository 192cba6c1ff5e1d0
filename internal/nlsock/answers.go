package nlsock

import (
	"iter"

	"golang.org/x/sys/unix"
)

// answers collects the kernel's answers to one request.
type answers struct {
	seq, port   uint32
	each        func(kind uint16, body []byte) (last bool)
	interrupted bool
}

// take processes a datagram. done means that the request is complete. Datagrams from
// other senders, and answers to other requests, are ignored.
func (a *answers) take(data []byte, sender uint32) (done bool, err error) {
	if sender != 0 {
		return false, nil
	}
	for len(data) > 0 {
		m, rest, ok := cut(data)
		if !ok {
			return false, errMalformed
		}
		data = rest
		if m.seq != a.seq || m.port != a.port {
			continue
		}
		a.interrupted = a.interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		switch m.kind {
		case unix.NLMSG_NOOP:
		case unix.NLMSG_DONE:
			return true, a.end(m.body)
		case unix.NLMSG_ERROR:
			if err := errnoOf(m.body); err != nil {
				return true, err
			}
			a.each(m.kind, nil)
			return true, nil
		default:
			if a.each(m.kind, m.body) {
				return true, nil
			}
		}
	}
	return false, nil
}

// end returns the result of a dump. The last message of a dump holds an error number,
// which some kernels omit.
func (a *answers) end(body []byte) error {
	if len(body) >= 4 {
		if err := errnoOf(body); err != nil {
			return err
		}
	}
	if a.interrupted {
		return ErrInterrupted
	}
	return nil
}

// errnoOf parses the number at the start of an NLMSG_ERROR or NLMSG_DONE: 0 or a negative
// error number.
func errnoOf(body []byte) error {
	if len(body) < 4 {
		return errMalformed
	}
	switch n := int32(native.Uint32(body)); {
	case n == 0:
		return nil
	case n < 0 && n > -4096: // MAX_ERRNO (include/linux/err.h)
		return unix.Errno(-n)
	}
	return errMalformed
}

// message is one message of a datagram (struct nlmsghdr).
type message struct {
	kind, flags uint16
	seq, port   uint32
	body        []byte
}

// cut splits off the first message.
func cut(data []byte) (m message, rest []byte, ok bool) {
	if len(data) < unix.SizeofNlMsghdr {
		return m, nil, false
	}
	size := int64(native.Uint32(data))
	if size < unix.SizeofNlMsghdr || size > int64(len(data)) {
		return m, nil, false
	}
	m = message{
		kind: native.Uint16(data[4:]), flags: native.Uint16(data[6:]),
		seq: native.Uint32(data[8:]), port: native.Uint32(data[12:]), body: data[unix.SizeofNlMsghdr:size],
	}
	return m, data[min(align(int(size)), len(data)):], true
}

// align rounds up to NLMSG_ALIGNTO and NLA_ALIGNTO.
func align(n int) int { return (n + 3) &^ 3 }

// Attributes iterates over netlink attributes (struct nlattr) by type, without the flag
// bits. It stops at the first malformed one.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(native.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			const typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(native.Uint16(b[2:])&typeMask, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// Attribute returns the first attribute of a type in a list of them.
func Attribute(list []byte, kind uint16) (data []byte, ok bool) {
	for k, d := range Attributes(list) {
		if k == kind {
			return d, true
		}
	}
	return nil, false
}
