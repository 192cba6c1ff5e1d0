package wire

import (
	"encoding/binary"
	"errors"

	"cleat/packet"
)

// Kind says what a packet of a session carries.
type Kind uint8

// The kinds of packets. Data, Again and Probe share the path's sequence numbers;
// Control packets are numbered apart.
const (
	Data    Kind = iota // an inner packet
	Again               // an inner packet that was sent before, on this path or another
	Probe               // control messages, numbered like data: shows that the path lives
	Control             // control messages
)

// Flags of a data packet.
const (
	// Partial means that the inner checksum field holds the pseudo header's sum: the
	// outer checksum, or the authentication, vouches for the rest.
	Partial = 1 << iota
	// Datagram means UDP, which the receiver may deliver out of order.
	Datagram
)

// Shim is the header of a session's packets, GRE's fields included.
type Shim struct {
	Tag     uint32 // names the session; in GRE's key field
	PathSeq uint32 // in GRE's sequence number
	Path    uint8  // the sender's ID of the path, below MaxPaths

	// From here on sealed, if there is a key.

	Kind   Kind
	Flags  uint8
	Before uint16 // distance to the flow's previous packet, in packets of the connection; 0: further away, or none
	Seq    uint32 // of the connection
	Time   uint32 // µs, the sender's clock
}

const (
	// ClearBytes is the length of the part of the header that is never encrypted: what
	// the receiver needs to find the key and the nonce.
	ClearBytes = 13
	// HeaderBytes is the length of the whole header.
	HeaderBytes = 24
	// MaxPaths is the number of paths that the header can tell apart.
	MaxPaths = 1 << pathBits
)

// Offsets within the header, in bytes.
const (
	tagAt    = 4
	numberAt = 8
	pathAt   = 12
	kindAt   = ClearBytes
	beforeAt = 14
	seqAt    = 16
	timeAt   = 20
)

const (
	pathBits   = 6
	controlBit = 1 << pathBits // in the byte at pathAt: numbered apart from data
)

// ErrNotNative is returned for a packet without the header of a session.
var ErrNotNative = errors.New("not a packet of a native session")

// Put writes the header into b.
func (s *Shim) Put(b []byte) {
	b = b[:HeaderBytes]
	binary.BigEndian.PutUint32(b, packetMagic)
	binary.BigEndian.PutUint32(b[tagAt:], s.Tag)
	binary.BigEndian.PutUint32(b[numberAt:], s.PathSeq)
	b[pathAt] = s.Path & (MaxPaths - 1)
	if s.Kind == Control {
		b[pathAt] |= controlBit
	}
	b[kindAt] = uint8(s.Kind)<<4 | s.Flags&3
	binary.BigEndian.PutUint16(b[beforeAt:], s.Before)
	binary.BigEndian.PutUint32(b[seqAt:], s.Seq)
	binary.BigEndian.PutUint32(b[timeAt:], s.Time)
}

// Stamp changes the timestamp of a header that is not sealed yet.
func Stamp(b []byte, time uint32) { binary.BigEndian.PutUint32(b[timeAt:], time) }

// ParseClear reads the part of the header that is never encrypted. Of Kind it tells
// whether it is Control, and leaves it at Data otherwise.
func (s *Shim) ParseClear(b []byte) error {
	if len(b) < ClearBytes || binary.BigEndian.Uint32(b) != packetMagic {
		return ErrNotNative
	}
	*s = Shim{
		Tag: binary.BigEndian.Uint32(b[tagAt:]), PathSeq: binary.BigEndian.Uint32(b[numberAt:]), Path: b[pathAt] & (MaxPaths - 1),
	}
	switch b[pathAt] &^ (MaxPaths - 1) {
	case 0:
	case controlBit:
		s.Kind = Control
	default:
		return packet.ErrBad
	}
	return nil
}

// ParseRest reads the rest of the header, after ParseClear and, with a key, after b was
// opened. The payload begins at HeaderBytes.
func (s *Shim) ParseRest(b []byte) error {
	if len(b) < HeaderBytes {
		return packet.ErrShort
	}
	kind, flags := Kind(b[kindAt]>>4), b[kindAt]&15
	if kind > Control || flags > 3 || (kind == Control) != (s.Kind == Control) {
		return packet.ErrBad
	}
	s.Kind, s.Flags = kind, flags
	s.Before = binary.BigEndian.Uint16(b[beforeAt:])
	s.Seq = binary.BigEndian.Uint32(b[seqAt:])
	s.Time = binary.BigEndian.Uint32(b[timeAt:])
	return nil
}
