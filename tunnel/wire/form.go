package wire

import (
	"encoding/binary"

	"cleat/packet"
)

// Version is the version of the native form that this package reads and writes.
const Version = 2

// Form is the kind of a packet, as its first bytes show.
type Form uint8

// The forms.
const (
	Other    Form = iota // not the native form: compat, or no packet of a tunnel
	Session              // a packet of a session, with a Shim
	Hello                // a hello, see AppendHello
	Version1             // version 1 of the native form
)

// The first four bytes of GRE: flags (RFC 2890) and EtherType.
const (
	sessionMagic  = 0x3000<<16 | packet.EtherTypeLocal // key and sequence number
	helloMagic    = 0x0000<<16 | packet.EtherTypeLocal // no fields
	version1Magic = 0x1000<<16 | packet.EtherTypeLocal // version 1 had only a sequence number
)

const magicBytes = 4

// FormOf returns the form of a packet.
func FormOf(b []byte) Form {
	if len(b) < magicBytes {
		return Other
	}
	switch binary.BigEndian.Uint32(b) {
	case sessionMagic:
		return Session
	case helloMagic:
		return Hello
	case version1Magic:
		return Version1
	}
	return Other
}

// AppendHello appends the header of a hello. The caller defines what follows.
func AppendHello(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, helloMagic), Version)
}

// ParseHello returns the version of a packet whose form is Hello, and what follows the
// header.
func ParseHello(b []byte) (version int, body []byte, err error) {
	if len(b) <= magicBytes {
		return 0, nil, packet.ErrShort
	}
	return int(b[magicBytes]), b[magicBytes+1:], nil
}
