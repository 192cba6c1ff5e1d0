package wire

import (
	"encoding/binary"

	"cleat/packet"
	"cleat/tunnel/sched"
)

// Type says what a control message is.
type Type uint8

// The types of control messages.
const (
	TypePad     Type = iota // nothing, of any length
	TypeMark                // a Mark: about the path that carries it
	TypeReport              // a Report
	TypeMissing             // a Missing
	TypeEcho                // 8 bytes that are to come back on the same path as TypeReply
	TypeReply
	TypeRoom  // 4 bytes: how many bytes of a path's packets may wait at the sender's socket
	TypeLeave // nothing: the sender takes the path that carries it out of use, both ways
)

// Mark says how far the sender is.
type Mark struct {
	Next uint32 // the next number of the connection: what this path carries from now on is not below
	Idle bool   // the path carries no data at present
	Live uint64 // the paths that the sender uses, bit by path
}

// Report is a sched.Report of one of the peer's paths.
type Report struct {
	Path uint8
	sched.Report
}

// Missing are packets of a path that have not come though later ones have.
type Missing struct {
	Path  uint8
	First uint32
	Count uint16
}

// Sizes of the values in bytes.
const (
	messageBytes = 3 // type and length
	markBytes    = 13
	reportBytes  = 25
	missingBytes = 7
	EchoBytes    = 8
)

// AppendMark, and the next, append one message to a control packet's payload.
func AppendMark(b []byte, m Mark) []byte {
	b = head(b, TypeMark, markBytes)
	b = binary.BigEndian.AppendUint32(b, m.Next)
	idle := byte(0)
	if m.Idle {
		idle = 1
	}
	return binary.BigEndian.AppendUint64(append(b, idle), m.Live)
}

// AppendReport appends a Report.
func AppendReport(b []byte, r *Report) []byte {
	b = append(head(b, TypeReport, reportBytes), r.Path)
	for _, v := range [...]uint32{r.AsOf, r.Highest, r.Packets, r.Bytes, r.Arrived, uint32(r.Delay)} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// AppendMissing appends a Missing.
func AppendMissing(b []byte, m Missing) []byte {
	b = append(head(b, TypeMissing, missingBytes), m.Path)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(b, m.First), m.Count)
}

// Append appends a message whose value is bytes.
func Append(b []byte, t Type, value []byte) []byte {
	return append(head(b, t, len(value)), value...)
}

// AppendPad appends n bytes of nothing, at least the size of an empty message.
func AppendPad(b []byte, n int) []byte {
	n = max(n-messageBytes, 0)
	b = head(b, TypePad, n)
	for range n {
		b = append(b, 0)
	}
	return b
}

func head(b []byte, t Type, n int) []byte {
	return binary.BigEndian.AppendUint16(append(b, byte(t)), uint16(n))
}

// Next cuts the first message off b. At the end t is TypePad and rest empty.
func Next(b []byte) (t Type, value, rest []byte, err error) {
	if len(b) == 0 {
		return TypePad, nil, nil, nil
	}
	if len(b) < messageBytes {
		return 0, nil, nil, packet.ErrShort
	}
	n := messageBytes + int(binary.BigEndian.Uint16(b[1:]))
	if n > len(b) {
		return 0, nil, nil, packet.ErrShort
	}
	return Type(b[0]), b[messageBytes:n:n], b[n:], nil
}

// ParseMark reads a Mark's value.
func ParseMark(v []byte, m *Mark) error {
	if len(v) < markBytes {
		return packet.ErrShort
	}
	*m = Mark{Next: binary.BigEndian.Uint32(v), Idle: v[4] != 0, Live: binary.BigEndian.Uint64(v[5:])}
	return nil
}

// ParseReport reads a Report's value.
func ParseReport(v []byte, r *Report) error {
	if len(v) < reportBytes {
		return packet.ErrShort
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(v[1+4*i:]) }
	*r = Report{Path: v[0], Report: sched.Report{
		AsOf: word(0), Highest: word(1), Packets: word(2), Bytes: word(3), Arrived: word(4), Delay: int32(word(5)),
	}}
	return nil
}

// ParseMissing reads a Missing's value.
func ParseMissing(v []byte, m *Missing) error {
	if len(v) < missingBytes {
		return packet.ErrShort
	}
	*m = Missing{Path: v[0], First: binary.BigEndian.Uint32(v[1:]), Count: binary.BigEndian.Uint16(v[5:])}
	return nil
}
