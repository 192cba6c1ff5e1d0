package packet

import (
	"encoding/binary"
	"net/netip"
)

// Types of echo messages (RFC 792, RFC 4443 section 4).
const (
	ICMPEchoReply     = 0
	ICMPEchoRequest   = 8
	ICMPv6EchoRequest = 128
	ICMPv6EchoReply   = 129
)

// Echo is an echo request or reply.
type Echo struct {
	Request bool
	ID, Seq uint16
	Payload []byte // refers to the message
}

// ParseEcho reads an echo request or reply of ICMP or ICMPv6 into e. It returns ErrBad
// for other messages.
func ParseEcho(proto Protocol, b []byte, e *Echo) error {
	if len(b) < ICMPBytes {
		return ErrShort
	}
	request, reply := echoTypes(proto)
	if b[1] != 0 || b[0] != request && b[0] != reply {
		return ErrBad
	}
	*e = Echo{
		Request: b[0] == request,
		ID:      binary.BigEndian.Uint16(b[4:]), Seq: binary.BigEndian.Uint16(b[6:]),
		Payload: b[ICMPBytes:],
	}
	return nil
}

func echoTypes(proto Protocol) (request, reply uint8) {
	if proto == ICMPv6 {
		return ICMPv6EchoRequest, ICMPv6EchoReply
	}
	return ICMPEchoRequest, ICMPEchoReply
}

// PutEcho writes the header of an echo message into b, with checksum 0, and returns its
// size. The caller appends the payload and calls PutICMPChecksum.
func PutEcho(b []byte, proto Protocol, e *Echo) int {
	b = b[:ICMPBytes]
	request, reply := echoTypes(proto)
	b[0], b[1], b[2], b[3] = reply, 0, 0, 0
	if e.Request {
		b[0] = request
	}
	binary.BigEndian.PutUint16(b[4:], e.ID)
	binary.BigEndian.PutUint16(b[6:], e.Seq)
	return ICMPBytes
}

// PutICMPChecksum writes the checksum of message, whose checksum field must be 0. ICMPv6
// includes the addresses in the sum.
func PutICMPChecksum(message []byte, src, dst netip.Addr) {
	if src.Is4() {
		binary.BigEndian.PutUint16(message[2:], Checksum(message))
		return
	}
	binary.BigEndian.PutUint16(message[2:], TransportChecksum(src, dst, ICMPv6, message))
}

// ErrorKind is the reason for an ICMP error, independent of the IP version.
type ErrorKind uint8

// The kinds of errors. A version that lacks a kind uses its nearest equivalent.
const (
	ErrorNet        ErrorKind = iota // network unreachable
	ErrorHost                        // host unreachable
	ErrorProtocol                    // protocol unreachable; IPv6: unrecognised next header
	ErrorPort                        // port unreachable
	ErrorProhibited                  // administratively prohibited
	ErrorTooBig                      // packet too big; IPv4: fragmentation needed and DF set
	ErrorTTL                         // hop limit reached 0
	ErrorReassembly                  // fragment reassembly time exceeded
	ErrorRoute                       // the packet is source-routed (IP.Routed), which is not supported
)

// Types of errors (RFC 792, RFC 4443 section 3).
const (
	icmpUnreachable  = 3
	icmpSourceQuench = 4
	icmpRedirect     = 5
	icmpTimeExceeded = 11
	icmpParameter    = 12

	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Parameter    = 4
	icmp6FirstInfo    = 128 // lower types are errors
	icmp6Redirect     = 137
)

// codes holds the type and code of each kind for IPv4 and IPv6 (RFC 792, RFC 1812 section
// 5.2.7.1, RFC 4443 section 3).
var codes = [...]struct{ v4, v6 [2]uint8 }{
	ErrorNet:        {[2]uint8{icmpUnreachable, 0}, [2]uint8{icmp6Unreachable, 0}},
	ErrorHost:       {[2]uint8{icmpUnreachable, 1}, [2]uint8{icmp6Unreachable, 3}},
	ErrorProtocol:   {[2]uint8{icmpUnreachable, 2}, [2]uint8{icmp6Parameter, 1}},
	ErrorPort:       {[2]uint8{icmpUnreachable, 3}, [2]uint8{icmp6Unreachable, 4}},
	ErrorProhibited: {[2]uint8{icmpUnreachable, 13}, [2]uint8{icmp6Unreachable, 1}},
	ErrorTooBig:     {[2]uint8{icmpUnreachable, 4}, [2]uint8{icmp6TooBig, 0}},
	ErrorTTL:        {[2]uint8{icmpTimeExceeded, 0}, [2]uint8{icmp6TimeExceeded, 0}},
	ErrorReassembly: {[2]uint8{icmpTimeExceeded, 1}, [2]uint8{icmp6TimeExceeded, 1}},
	ErrorRoute:      {[2]uint8{icmpUnreachable, 5}, [2]uint8{icmp6Parameter, 0}},
}

// ICMPError is an ICMP error message.
type ICMPError struct {
	Type, Code uint8
	// Rest is the second word of the header: the MTU of "too big" (16 bits in IPv4), or
	// the pointer of a parameter problem.
	Rest uint32
	// Original is the header of the packet that the error is about. Its payload may be
	// cut short. PutICMPError ignores it.
	Original IP
}

// NewICMPError returns an error of kind k for IPv4 or IPv6. mtu, in bytes, is used for
// ErrorTooBig only.
func NewICMPError(k ErrorKind, is4 bool, mtu int) ICMPError {
	tc, e := codes[k].v6, ICMPError{}
	if is4 {
		tc = codes[k].v4
	}
	e.Type, e.Code = tc[0], tc[1]
	if k == ErrorTooBig {
		e.Rest = uint32(mtu)
	}
	return e
}

// Sizes of ICMP errors in bytes, IP header included.
const (
	maxICMPError4 = 576  // RFC 1812 section 4.3.2.3
	maxICMPError6 = 1280 // RFC 4443 section 2.4 (c)

	// MaxICMPErrorBytes is the size of the largest packet that PutICMPError writes.
	MaxICMPErrorBytes = maxICMPError6
)

// PutICMPError writes a packet into b that reports e about offending to its source, with
// src as its source address, and returns its size. It returns 0 where no error may be
// sent: in response to an ICMP error, a non-first fragment, a packet to or from an
// address that is not a single host (RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e)),
// or a packet that does not parse; and between IP versions. It quotes as much of the
// offending packet as the version allows.
func PutICMPError(b []byte, e *ICMPError, src netip.Addr, offending []byte) int {
	var p IP
	if parseIP(offending, &p, true) != nil || p.Src.Is4() != src.Is4() || !mayReport(&p, e) {
		return 0
	}
	proto, limit := ICMP, maxICMPError4
	rest := e.Rest
	if src.Is6() {
		proto, limit = ICMPv6, maxICMPError6
		if rest == 0 && e.Type == icmp6Parameter {
			rest = uint32(p.protocolAt)
			if e.Code == codes[ErrorRoute].v6[1] {
				rest = uint32(p.routeAt)
			}
		}
	}
	header := IPBytes(src)
	quoted := min(p.HeaderBytes+len(p.Payload), limit-header-ICMPBytes)
	n := PutIP(b, src, p.Src, proto, 0, ICMPBytes+quoted)
	m := b[n : n+ICMPBytes+quoted]
	m[0], m[1], m[2], m[3] = e.Type, e.Code, 0, 0
	binary.BigEndian.PutUint32(m[4:], rest)
	copy(m[ICMPBytes:], offending[:quoted])
	PutICMPChecksum(m, src, p.Src)
	return n + len(m)
}

// mayReport reports whether a host may answer p with e.
func mayReport(p *IP, e *ICMPError) bool {
	if p.Offset > 0 || !IsUnicast(p.Src) || p.Src.IsLoopback() {
		return false
	}
	switch uint8(p.Protocol) {
	case hopByHop, routing, destOptions: // in a fragment: the payload may be an ICMP error
		if p.Src.Is6() {
			return false
		}
	}
	if isICMPError(p.Protocol, p.Payload) {
		return false
	}
	tooBig6 := p.Src.Is6() && e.Type == icmp6TooBig // needed for multicast path MTU discovery
	return tooBig6 || IsUnicast(p.Dst)
}

// IsUnicast reports whether an address can be that of a single host.
func IsUnicast(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && (!a.Is4() || a.As4()[0] < 240) // class E and broadcast
}

// isICMPError reports whether a payload is an ICMP error or a redirect. It also returns
// true for a payload too short to tell.
func isICMPError(proto Protocol, payload []byte) bool {
	switch proto {
	case ICMP:
		if len(payload) == 0 {
			return true
		}
		switch payload[0] {
		case icmpUnreachable, icmpSourceQuench, icmpRedirect, icmpTimeExceeded, icmpParameter:
			return true
		}
	case ICMPv6:
		return len(payload) == 0 || payload[0] < icmp6FirstInfo || payload[0] == icmp6Redirect
	}
	return false
}

// ParseICMPError reads an ICMP error, and the header of the packet that it quotes, into
// e. It returns ErrBad for other messages.
func ParseICMPError(proto Protocol, b []byte, e *ICMPError) error {
	if len(b) < ICMPBytes {
		return ErrShort
	}
	if !isICMPError(proto, b) || proto == ICMP && b[0] == icmpRedirect || proto == ICMPv6 && b[0] == icmp6Redirect {
		return ErrBad
	}
	*e = ICMPError{Type: b[0], Code: b[1], Rest: binary.BigEndian.Uint32(b[4:])}
	if err := parseIP(b[ICMPBytes:], &e.Original, true); err != nil {
		return err
	}
	if e.Original.Src.Is4() != (proto == ICMP) {
		return ErrBad
	}
	return nil
}
