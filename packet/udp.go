package packet

import "encoding/binary"

// UDPHeader is a UDP header.
type UDPHeader struct {
	SrcPort, DstPort uint16
	Payload          []byte // refers to the datagram
}

// ParseUDP reads the header of a datagram into h. In a super-packet that is not yet split
// into datagrams (VNetHdr.GSOSize), the length field covers the payload of all of them.
func ParseUDP(b []byte, h *UDPHeader) error {
	if len(b) < UDPBytes {
		return ErrShort
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length < UDPBytes {
		return ErrBad
	}
	if length > len(b) {
		return ErrShort
	}
	*h = UDPHeader{SrcPort: binary.BigEndian.Uint16(b), DstPort: binary.BigEndian.Uint16(b[2:]), Payload: b[UDPBytes:length]}
	return nil
}

// PutUDP writes the header of a datagram with a payload of length bytes into b,
// with checksum 0, and returns its size.
func PutUDP(b []byte, srcPort, dstPort uint16, length int) int {
	b = b[:UDPBytes]
	binary.BigEndian.PutUint16(b, srcPort)
	binary.BigEndian.PutUint16(b[2:], dstPort)
	binary.BigEndian.PutUint16(b[4:], uint16(UDPBytes+length))
	b[6], b[7] = 0, 0
	return UDPBytes
}
