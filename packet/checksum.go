package packet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Sum adds b to a one's complement sum that began with 0. All pieces but the
// last must have an even length. Fold makes a checksum of it.
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
	// What is left is less than a word: pad it with zeros on the right.
	var last [8]byte
	copy(last[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(last[:]), carry)
	return addCarry(sum, carry)
}

func addCarry(sum, carry uint64) uint64 {
	sum, carry = bits.Add64(sum, 0, carry)
	return sum + carry
}

// Fold is the 16-bit one's complement sum, not inverted.
func Fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

// PseudoSum is the sum of the pseudo header (RFC 9293 section 3.1, RFC 8200
// section 8.1) for a payload of length bytes.
func PseudoSum(src, dst netip.Addr, proto Protocol, length int) uint64 {
	sum := uint64(proto) + uint64(length)
	if src.Is4() {
		s, d := src.As4(), dst.As4()
		return sum + uint64(binary.BigEndian.Uint32(s[:])) + uint64(binary.BigEndian.Uint32(d[:]))
	}
	s, d := src.As16(), dst.As16()
	return Sum(d[:], Sum(s[:], sum))
}

// TransportChecksum is the checksum of a TCP, UDP or ICMPv6 segment whose
// checksum field is zero; of a correct one it is 0. A UDP datagram's result of 0
// is sent as 0xffff (RFC 768).
func TransportChecksum(src, dst netip.Addr, proto Protocol, segment []byte) uint16 {
	return ^Fold(Sum(segment, PseudoSum(src, dst, proto, len(segment))))
}

// Checksum is the plain Internet checksum, as IPv4 headers and ICMP have it.
func Checksum(b []byte) uint16 { return ^Fold(Sum(b, 0)) }

// CompleteChecksum does what NeedsChecksum asks for: it sums pkt from
// ChecksumStart on, with the pseudo header's sum that the field holds, and
// writes the result into the field. Without NeedsChecksum it does nothing. The
// error is ErrBad where the offsets lie outside.
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

// checksumFits tells whether the checksum's field lies in the packet.
func (h *VNetHdr) checksumFits(pkt []byte) bool {
	return int(h.ChecksumStart)+int(h.ChecksumOffset)+2 <= len(pkt)
}

// putChecksum writes a transport checksum: 0 would mean "none" to UDP, and to
// the others 0xffff is the same number.
func putChecksum(b []byte, sum uint16) {
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b, sum)
}
