package wire

import (
	"encoding/binary"
	"errors"

	"cleat/packet"
)

// Kind is the kind of a packet in a session.
type Kind uint8

// The kinds of packets. Data, Resend and Probe share the path's sequence numbers; Control
// packets are numbered apart.
const (
	Data    Kind = iota // an inner packet
	Resend              // an inner packet that was sent before, on this path or another
	Probe               // control messages, numbered like data: proves that the path delivers
	Control             // control messages
)

// Flags of a data packet.
const (
	// Partial means that the inner checksum field holds the sum of the pseudo header: the
	// outer checksum or the seal protects the rest.
	Partial = 1 << iota
	// Datagram marks UDP, which the receiver may deliver out of order.
	Datagram
)

// Shim is the header of a session's packets, including GRE's fields.
type Shim struct {
	Tag     uint32 // identifies the session; GRE's key field
	PathSeq uint32 // GRE's sequence number
	Path    uint8  // the sender's ID of the path, below MaxPaths

	// The fields from here on are sealed if there is a key.

	Kind         Kind
	Flags        uint8
	FlowDistance uint16 // distance to the flow's previous packet, in connection sequence numbers; 0: none, or further away
	Seq          uint32 // connection sequence number
	Time         uint32 // µs on the sender's clock
}

const (
	// ClearBytes is the length of the part of the header that is never encrypted, because
	// the receiver needs it to find the key and the nonce.
	ClearBytes = 13
	// HeaderBytes is the length of the whole header.
	HeaderBytes = 24
	// MaxPaths is the number of paths that the header can distinguish.
	MaxPaths = 1 << pathBits
)

// Offsets within the header, in bytes.
const (
	tagAt          = 4
	pathSeqAt      = 8
	pathAt         = 12
	kindAt         = ClearBytes
	flowDistanceAt = 14
	seqAt          = 16
	timeAt         = 20
)

const (
	pathBits   = 6
	controlBit = 1 << pathBits // in the byte at pathAt: a control packet
)

// ErrNotNative is returned for a packet without the header of a session.
var ErrNotNative = errors.New("not a packet of a native session")

// Put writes the header into b.
func (s *Shim) Put(b []byte) {
	b = b[:HeaderBytes]
	binary.BigEndian.PutUint32(b, sessionMagic)
	binary.BigEndian.PutUint32(b[tagAt:], s.Tag)
	binary.BigEndian.PutUint32(b[pathSeqAt:], s.PathSeq)
	b[pathAt] = s.Path & (MaxPaths - 1)
	if s.Kind == Control {
		b[pathAt] |= controlBit
	}
	b[kindAt] = uint8(s.Kind)<<4 | s.Flags&3
	binary.BigEndian.PutUint16(b[flowDistanceAt:], s.FlowDistance)
	binary.BigEndian.PutUint32(b[seqAt:], s.Seq)
	binary.BigEndian.PutUint32(b[timeAt:], s.Time)
}

// Stamp sets the timestamp in a header that is not sealed yet.
func Stamp(b []byte, time uint32) { binary.BigEndian.PutUint32(b[timeAt:], time) }

// ParseClear parses the part of the header that is never encrypted. It sets Kind to
// Control or leaves it at Data.
func (s *Shim) ParseClear(b []byte) error {
	if len(b) < ClearBytes || binary.BigEndian.Uint32(b) != sessionMagic {
		return ErrNotNative
	}
	*s = Shim{
		Tag: binary.BigEndian.Uint32(b[tagAt:]), PathSeq: binary.BigEndian.Uint32(b[pathSeqAt:]), Path: b[pathAt] & (MaxPaths - 1),
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

// ParseRest parses the rest of the header, after ParseClear and, with a key, after
// decryption. The payload begins at HeaderBytes.
func (s *Shim) ParseRest(b []byte) error {
	if len(b) < HeaderBytes {
		return packet.ErrShort
	}
	kind, flags := Kind(b[kindAt]>>4), b[kindAt]&15
	if kind > Control || flags > 3 || (kind == Control) != (s.Kind == Control) {
		return packet.ErrBad
	}
	s.Kind, s.Flags = kind, flags
	s.FlowDistance = binary.BigEndian.Uint16(b[flowDistanceAt:])
	s.Seq = binary.BigEndian.Uint32(b[seqAt:])
	s.Time = binary.BigEndian.Uint32(b[timeAt:])
	return nil
}
