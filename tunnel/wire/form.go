package wire

import (
	"encoding/binary"

	"cleat/packet"
)

// Version is the version of the native form that this package reads and writes.
const Version = 2

// Form is what the first bytes of a packet say that it is.
type Form uint8

// The forms.
const (
	Foreign Form = iota // nothing of the native form: compat, or no packet of ours at all
	Session             // has a Shim
	Hello               // ends introduce themselves: see AppendHello
	First               // version 1 of the native form
)

// The first four bytes of GRE: its flags (RFC 2890) and the EtherType.
const (
	packetMagic = 0x3000<<16 | packet.EtherTypeLocal // key and sequence number
	helloMagic  = 0x0000<<16 | packet.EtherTypeLocal // no fields
	firstMagic  = 0x1000<<16 | packet.EtherTypeLocal // version 1 had a sequence number alone
)

const magicBytes = 4

// FormOf returns the form of a packet.
func FormOf(b []byte) Form {
	if len(b) < magicBytes {
		return Foreign
	}
	switch binary.BigEndian.Uint32(b) {
	case packetMagic:
		return Session
	case helloMagic:
		return Hello
	case firstMagic:
		return First
	}
	return Foreign
}

// AppendHello appends the header of a greeting. What follows is up to the two ends.
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
