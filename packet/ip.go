package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that this package parses.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
)

// String returns the protocol's name, or its number.
func (p Protocol) String() string {
	switch p {
	case ICMP:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMPv6:
		return "icmp6"
	}
	return "proto-" + strconv.Itoa(int(p))
}

// Header sizes in bytes.
const (
	IPv4Bytes = 20 // without options
	IPv6Bytes = 40
	TCPBytes  = 20 // without options
	UDPBytes  = 8
	ICMPBytes = 8 // echo and error messages, both versions

	FragmentBytes = 8 // IPv6's extension header
)

// Parsing errors. They carry no detail, because they are returned for every bad packet of
// a hostile sender.
var (
	ErrShort   = errors.New("packet is cut short")
	ErrBad     = errors.New("packet contradicts itself")
	ErrVersion = errors.New("neither IPv4 nor IPv6")
	ErrNoRoom  = errors.New("no room for the fragment")
)

// IP is an IPv4 or IPv6 header.
type IP struct {
	Src, Dst netip.Addr // never IPv4-mapped unless the packet is IPv6
	Protocol Protocol
	TTL      uint8 // hop limit
	TOS      uint8 // traffic class: DSCP and ECN
	// DontFragment reports that routers must not fragment the packet. It is always set in
	// IPv6.
	DontFragment bool

	// A fragment has More set or an Offset above 0. Offset is in bytes, a multiple of 8.
	More   bool
	Offset int
	ID     uint32 // identifies the fragments of one datagram

	// Routed reports that Dst is not the packet's final destination: it has a routing
	// header with segments left (RFC 8200 section 4.4), or an IPv4 source route with
	// addresses left (RFC 791).
	Routed bool

	HeaderBytes int    // offset of the payload in the packet
	Payload     []byte // refers to the packet

	protocolAt int // offset of the byte that holds Protocol
	routeAt    int // offset of the routing header's type, if Routed
}

// IsFragment reports whether the packet is a fragment. Protocol and Payload of an IPv6
// fragment are what follows the fragment header, which may be another extension header.
func (p *IP) IsFragment() bool { return p.More || p.Offset > 0 }

// ParseIP reads the header of a whole packet into p. It ignores bytes beyond the packet's
// own length.
func ParseIP(b []byte, p *IP) error { return parseIP(b, p, false) }

// parseIP reads a header. With cut, the payload may be shorter than the header says, as
// in ICMP errors.
func parseIP(b []byte, p *IP, cut bool) error {
	if len(b) < 1 {
		return ErrShort
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b, p, cut)
	case 6:
		return parseIPv6(b, p, cut)
	}
	return ErrVersion
}

func parseIPv4(b []byte, p *IP, cut bool) error {
	if len(b) < IPv4Bytes {
		return ErrShort
	}
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < IPv4Bytes || total < header {
		return ErrBad
	}
	if total > len(b) {
		if !cut || header > len(b) {
			return ErrShort
		}
		total = len(b)
	}
	frag := binary.BigEndian.Uint16(b[6:])
	*p = IP{
		Src: netip.AddrFrom4([4]byte(b[12:16])), Dst: netip.AddrFrom4([4]byte(b[16:20])),
		Protocol: Protocol(b[9]), TTL: b[8], TOS: b[1],
		DontFragment: frag&flagDF != 0, More: frag&flagMF != 0, Offset: int(frag&0x1fff) * 8,
		ID:          uint32(binary.BigEndian.Uint16(b[4:])),
		HeaderBytes: header, Payload: b[header:total], protocolAt: 9,
	}
	if header > IPv4Bytes {
		return p.options4(b[:header])
	}
	return nil
}

// IPv4 options (RFC 791 section 3.1). optionEnd and optionNop have the same values in
// TCP.
const (
	optionLooseRoute  = 131
	optionStrictRoute = 137
)

// options4 parses the options in an IPv4 header and looks for a source route.
func (p *IP) options4(header []byte) error {
	for at := IPv4Bytes; at < len(header) && header[at] != optionEnd; {
		if header[at] == optionNop {
			at++
			continue
		}
		if at+1 >= len(header) {
			return ErrBad
		}
		size := int(header[at+1])
		if size < 2 || at+size > len(header) {
			return ErrBad
		}
		if kind := header[at]; kind == optionLooseRoute || kind == optionStrictRoute {
			// The third byte is a pointer to the next address, counted from 1.
			p.Routed = p.Routed || size < 3 || int(header[at+2]) <= size
			p.routeAt = at
		}
		at += size
	}
	return nil
}

// IPv6 extension headers that are skipped (RFC 8200 section 4).
const (
	hopByHop    = 0
	routing     = 43
	fragment    = 44
	destOptions = 60
)

// maxExtensions limits how many extension headers are parsed. Real packets have two or
// three.
const maxExtensions = 8

func parseIPv6(b []byte, p *IP, cut bool) error {
	if len(b) < IPv6Bytes {
		return ErrShort
	}
	end := IPv6Bytes + int(binary.BigEndian.Uint16(b[4:]))
	if end > len(b) {
		if !cut {
			return ErrShort
		}
		end = len(b)
	}
	*p = IP{
		Src: netip.AddrFrom16([16]byte(b[8:24])), Dst: netip.AddrFrom16([16]byte(b[24:40])),
		TTL: b[7], TOS: b[0]<<4 | b[1]>>4, DontFragment: true, protocolAt: 6,
	}
	next, at := b[6], IPv6Bytes
	for range maxExtensions {
		switch next {
		case hopByHop, routing, destOptions:
			if at+8 > end {
				return ErrShort
			}
			if next == routing && b[at+3] != 0 { // segments left
				p.Routed, p.routeAt = true, at+2
			}
			p.protocolAt = at
			next, at = b[at], at+8+int(b[at+1])*8
		case fragment:
			if at+8 > end {
				return ErrShort
			}
			f := binary.BigEndian.Uint16(b[at+2:])
			p.Offset, p.More, p.ID = int(f&^7), f&1 != 0, binary.BigEndian.Uint32(b[at+4:])
			p.protocolAt = at
			next, at = b[at], at+8
			if p.IsFragment() { // Protocol and Payload start here
				p.Protocol, p.HeaderBytes, p.Payload = Protocol(next), at, b[at:end]
				return nil
			}
		default:
			p.Protocol, p.HeaderBytes, p.Payload = Protocol(next), at, b[at:end]
			return nil
		}
		if at > end {
			return ErrShort
		}
	}
	return ErrBad
}

// IPBytes returns the size of the header that PutIP writes for address a.
func IPBytes(a netip.Addr) int {
	if a.Is4() {
		return IPv4Bytes
	}
	return IPv6Bytes
}

// defaultTTL is net.ipv4.ip_default_ttl.
const defaultTTL = 64

// PutIP writes an IPv4 or IPv6 header without options for a payload of length bytes into
// b and returns its size. An IPv4 header gets DF and its checksum. tos is the traffic
// class.
func PutIP(b []byte, src, dst netip.Addr, proto Protocol, tos uint8, length int) int {
	if src.Is4() {
		// With DF, the ID may be 0 (RFC 6864).
		return putIPv4(b, src, dst, proto, tos, defaultTTL, 0, flagDF, length)
	}
	return putIPv6(b, src, dst, proto, tos, defaultTTL, length)
}

// Put writes the header that p describes, without options, for a payload of length bytes
// into b and returns its size: IPBytes, plus FragmentBytes for an IPv6 fragment. It
// ignores p.Payload and p.HeaderBytes.
func (p *IP) Put(b []byte, length int) int {
	if p.Src.Is4() {
		bits := uint16(p.Offset / 8)
		if p.DontFragment {
			bits |= flagDF
		}
		if p.More {
			bits |= flagMF
		}
		return putIPv4(b, p.Src, p.Dst, p.Protocol, p.TOS, p.TTL, uint16(p.ID), bits, length)
	}
	if !p.IsFragment() {
		return putIPv6(b, p.Src, p.Dst, p.Protocol, p.TOS, p.TTL, length)
	}
	putIPv6(b, p.Src, p.Dst, fragment, p.TOS, p.TTL, FragmentBytes+length)
	f := b[IPv6Bytes : IPv6Bytes+FragmentBytes]
	f[0], f[1] = uint8(p.Protocol), 0
	offset := uint16(p.Offset)
	if p.More {
		offset |= 1
	}
	binary.BigEndian.PutUint16(f[2:], offset)
	binary.BigEndian.PutUint32(f[4:], p.ID)
	return IPv6Bytes + FragmentBytes
}

// Flags in the word of the IPv4 fragment offset.
const (
	flagDF = 0x4000
	flagMF = 0x2000
)

func putIPv4(b []byte, src, dst netip.Addr, proto Protocol, tos, ttl uint8, id, fragment uint16, length int) int {
	b = b[:IPv4Bytes]
	b[0], b[1] = 0x45, tos
	binary.BigEndian.PutUint16(b[2:], uint16(IPv4Bytes+length))
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8], b[9], b[10], b[11] = ttl, uint8(proto), 0, 0
	s, d := src.As4(), dst.As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[10:], Checksum(b))
	return IPv4Bytes
}

func putIPv6(b []byte, src, dst netip.Addr, proto Protocol, tos, hops uint8, length int) int {
	b = b[:IPv6Bytes]
	b[0], b[1], b[2], b[3] = 0x60|tos>>4, tos<<4, 0, 0
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	b[6], b[7] = uint8(proto), hops
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	return IPv6Bytes
}
