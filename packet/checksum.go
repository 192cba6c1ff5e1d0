package packet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Sum adds b to the one's complement sum (RFC 1071) of earlier pieces; start with 0.
// Every piece but the last must have an even length. Fold turns the sum into a checksum.
func Sum(b []byte, sum uint64) uint64 {
	var carry uint64
	for len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[8:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[16:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[24:]), carry)
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		b = b[8:]
	}
	// Fewer than 8 bytes remain. Pad them with zeros on the right.
	var last [8]byte
	copy(last[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(last[:]), carry)
	sum, carry = bits.Add64(sum, 0, carry)
	return sum + carry
}

// Fold reduces a sum to 16 bits, without inverting it.
func Fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

// PseudoSum returns the sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section
// 8.1) for a payload of length bytes.
func PseudoSum(src, dst netip.Addr, proto Protocol, length int) uint64 {
	sum := uint64(proto) + uint64(length)
	if src.Is4() {
		s, d := src.As4(), dst.As4()
		return sum + uint64(binary.BigEndian.Uint32(s[:])) + uint64(binary.BigEndian.Uint32(d[:]))
	}
	s, d := src.As16(), dst.As16()
	return Sum(d[:], Sum(s[:], sum))
}

// TransportChecksum returns the checksum of a TCP, UDP or ICMPv6 segment whose checksum
// field is zero. For a segment with a correct checksum it returns 0. A UDP sender must
// replace a result of 0 by 0xffff (RFC 768).
func TransportChecksum(src, dst netip.Addr, proto Protocol, segment []byte) uint16 {
	return ^Fold(Sum(segment, PseudoSum(src, dst, proto, len(segment))))
}

// Checksum returns the Internet checksum of b, as used by IPv4 headers and ICMP.
func Checksum(b []byte) uint16 { return ^Fold(Sum(b, 0)) }

// CompleteChecksum does what NeedsChecksum asks a device to do: it sums pkt from
// ChecksumStart on, including the pseudo header's sum that the checksum field holds, and
// writes the result into the field. Without NeedsChecksum it does nothing. It returns
// ErrBad if the offsets lie outside pkt.
func (h *VNetHdr) CompleteChecksum(pkt []byte) error {
	if h.Flags&NeedsChecksum == 0 {
		return nil
	}
	if !h.checksumFits(pkt) {
		return ErrBad
	}
	putChecksum(pkt[int(h.ChecksumStart)+int(h.ChecksumOffset):], Checksum(pkt[h.ChecksumStart:]))
	return nil
}

// checksumFits reports whether the checksum field lies inside pkt.
func (h *VNetHdr) checksumFits(pkt []byte) bool {
	return int(h.ChecksumStart)+int(h.ChecksumOffset)+2 <= len(pkt)
}

// putChecksum writes a transport checksum. It writes 0 as 0xffff: UDP reads 0 as "no
// checksum", and for other protocols both are the same number.
func putChecksum(b []byte, sum uint16) {
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b, sum)
}
