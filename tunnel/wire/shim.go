package wire

import (
	"encoding/binary"
	"errors"

	"cleat/packet"
)

// Kind says what a native packet is.
type Kind uint8

// The kinds of packets. Data, Again and Probe share the path's sequence numbers;
// Control and Hello have their own.
const (
	Data    Kind = iota // an inner packet
	Again               // an inner packet that was sent before on another path
	Probe               // control messages, numbered like data: shows that the path lives
	Control             // control messages
	Hello               // a handshake's message; never encrypted
)

// Flags of a data packet.
const (
	// Partial says that the inner checksum's field holds the pseudo header's sum: the
	// outer checksum, or the authentication, vouches for the rest.
	Partial = 1 << iota
	// Datagram says that it is UDP, which the receiver may deliver as it comes.
	Datagram
)

// Shim is the native form's header behind GRE.
type Shim struct {
	Seq     uint32 // of the connection, in GRE's header
	Kind    Kind
	Epoch   uint8 // 0…3: which of the last sessions
	Flags   uint8
	Path    uint8
	Before  uint16 // how many packets of the connection before this one the flow's last was; 0: further or none
	PathSeq uint32
	Time    uint32 // µs, the sender's clock
}

// HeaderBytes is the size of the GRE header and the shim.
const HeaderBytes = 20

const greSeqBit = 0x1000

// ErrNotNative says that a packet is not of the native form.
var ErrNotNative = errors.New("not a packet of the native form")

// Put writes GRE header and shim into b.
func (s *Shim) Put(b []byte) {
	b = b[:HeaderBytes]
	binary.BigEndian.PutUint32(b, greSeqBit<<16|packet.EtherTypeLocal)
	binary.BigEndian.PutUint32(b[4:], s.Seq)
	b[8] = uint8(s.Kind)<<4 | s.Epoch&3<<2 | s.Flags&3
	b[9] = s.Path
	binary.BigEndian.PutUint16(b[10:], s.Before)
	binary.BigEndian.PutUint32(b[12:], s.PathSeq)
	binary.BigEndian.PutUint32(b[16:], s.Time)
}

// Stamp changes the timestamp of headers that are written.
func Stamp(b []byte, time uint32) { binary.BigEndian.PutUint32(b[16:], time) }

// Parse reads both headers. The payload begins at HeaderBytes.
func (s *Shim) Parse(b []byte) error {
	if len(b) < HeaderBytes || binary.BigEndian.Uint32(b) != greSeqBit<<16|packet.EtherTypeLocal {
		return ErrNotNative
	}
	*s = Shim{
		Seq:  binary.BigEndian.Uint32(b[4:]),
		Kind: Kind(b[8] >> 4), Epoch: b[8] >> 2 & 3, Flags: b[8] & 3, Path: b[9],
		Before: binary.BigEndian.Uint16(b[10:]), PathSeq: binary.BigEndian.Uint32(b[12:]), Time: binary.BigEndian.Uint32(b[16:]),
	}
	if s.Kind > Hello {
		return packet.ErrBad
	}
	return nil
}
