package packet

import "encoding/binary"

// GRE is a GRE header (RFC 2784, RFC 2890).
type GRE struct {
	Protocol uint16 // EtherType of the payload
	HasKey   bool
	HasSeq   bool
	Key      uint32
	Seq      uint32
}

// EtherTypeLocal is a type of GRE payloads: IEEE 802 local experimental 1. Others are
// EtherTypeIPv4 and EtherTypeIPv6.
const EtherTypeLocal = 0x88b5

// Bits of a GRE header's first word.
const (
	greChecksum = 0x8000
	greKey      = 0x2000
	greSeq      = 0x1000
	greReserved = 0x4fff // bits that must be 0, and the version
)

// Bytes returns the size of the header.
func (g *GRE) Bytes() int {
	n := 4
	if g.HasKey {
		n += 4
	}
	if g.HasSeq {
		n += 4
	}
	return n
}

// Put writes the header into b and returns its size.
func (g *GRE) Put(b []byte) int {
	var flags uint16
	n := 4
	if g.HasKey {
		flags |= greKey
		binary.BigEndian.PutUint32(b[n:], g.Key)
		n += 4
	}
	if g.HasSeq {
		flags |= greSeq
		binary.BigEndian.PutUint32(b[n:], g.Seq)
		n += 4
	}
	binary.BigEndian.PutUint16(b, flags)
	binary.BigEndian.PutUint16(b[2:], g.Protocol)
	return n
}

// ParseGRE reads a header into g and returns its size, which is the offset of the
// payload. It verifies a checksum if there is one. It returns ErrBad for packets that RFC
// 2784 section 2.3 requires to be discarded.
func ParseGRE(b []byte, g *GRE) (int, error) {
	if len(b) < 4 {
		return 0, ErrShort
	}
	flags := binary.BigEndian.Uint16(b)
	if flags&greReserved != 0 {
		return 0, ErrBad
	}
	*g = GRE{Protocol: binary.BigEndian.Uint16(b[2:]), HasKey: flags&greKey != 0, HasSeq: flags&greSeq != 0}
	n := 4
	if flags&greChecksum != 0 {
		n += 4
	}
	if len(b) < n+g.Bytes()-4 {
		return 0, ErrShort
	}
	if flags&greChecksum != 0 && Checksum(b) != 0 {
		return 0, ErrBad
	}
	if g.HasKey {
		g.Key = binary.BigEndian.Uint32(b[n:])
		n += 4
	}
	if g.HasSeq {
		g.Seq = binary.BigEndian.Uint32(b[n:])
		n += 4
	}
	return n, nil
}
