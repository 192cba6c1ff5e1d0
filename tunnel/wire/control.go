package wire

import (
	"encoding/binary"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"
)

// Type is the type of a control message.
type Type uint8

// The types of control messages.
const (
	TypePad     Type = iota // filler, of any length
	TypeMark                // a Mark, about the path that carries it
	TypeReport              // a Report
	TypeMissing             // a Missing
	TypeEcho                // 8 bytes that the receiver returns on the same path as TypeReply
	TypeReply
	TypeCapacity // 4 bytes: how many bytes of a path's packets the sender's socket holds
	TypeLeave    // no value: the sender takes the path that carries the message out of use, both ways
	TypeName     // the name of the path that carries the message, in a Probe
	TypeReceiver // a Receiver, in a Probe
	TypeDirect   // no value: the sender takes direct packets, in a Probe
	TypeArrived  // an Arrived
)

// Mark is the state of the sender.
type Mark struct {
	NextSeq   uint32 // next connection sequence number: the path carries no lower one from now on
	Idle      bool   // the path carries no data at present
	LivePaths uint64 // paths in use, one bit per path
}

// Report is a sched.Report about one of the peer's paths.
type Report struct {
	Path uint8
	sched.Report
}

// Missing is a range of packets of a path that have not arrived although later ones have.
type Missing struct {
	Path  uint8
	First uint32
	Count uint16
}

// Receiver is how the end that sends the message treats what it receives. The times are sent
// in microseconds.
type Receiver struct {
	Hold        time.Duration // how long a packet may wait for those before it
	ReportEvery time.Duration // how often it reports at least while packets arrive
}

// Arrived is what has arrived of the direct packets of one of the peer's paths, in bytes since the session began.
type Arrived struct {
	Path       uint8
	Bytes      uint64
	Lost, Late uint64 // missing when later ones came, and that came after later ones
}

// Sizes of the values in bytes.
const (
	messageBytes  = 3 // type and length
	markBytes     = 13
	reportBytes   = 25 // without Marked
	markedBytes   = 4
	missingBytes  = 7
	receiverBytes = 8
	arrivedBytes  = 25
	EchoBytes     = 8
)

// AppendMark appends a Mark to a control packet's payload.
func AppendMark(b []byte, m Mark) []byte {
	b = appendHeader(b, TypeMark, markBytes)
	b = binary.BigEndian.AppendUint32(b, m.NextSeq)
	idle := byte(0)
	if m.Idle {
		idle = 1
	}
	return binary.BigEndian.AppendUint64(append(b, idle), m.LivePaths)
}

// AppendReport appends a Report. It leaves out Marked while that is 0: an older end ignores
// what is longer than the reports that it knows, and reports without marks are no longer than
// before.
func AppendReport(b []byte, r *Report) []byte {
	n := reportBytes
	if r.Marked != 0 {
		n += markedBytes
	}
	b = append(appendHeader(b, TypeReport, n), r.Path)
	for _, v := range [...]uint32{r.CheckedUntil, r.HighestSeq, r.Packets, r.Bytes, r.Arrived, uint32(r.MinDelay)} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	if r.Marked != 0 {
		b = binary.BigEndian.AppendUint32(b, r.Marked)
	}
	return b
}

// AppendMissing appends a Missing.
func AppendMissing(b []byte, m Missing) []byte {
	b = append(appendHeader(b, TypeMissing, missingBytes), m.Path)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(b, m.First), m.Count)
}

// AppendReceiver appends a Receiver.
func AppendReceiver(b []byte, r Receiver) []byte {
	b = binary.BigEndian.AppendUint32(appendHeader(b, TypeReceiver, receiverBytes), uint32(r.Hold/time.Microsecond))
	return binary.BigEndian.AppendUint32(b, uint32(r.ReportEvery/time.Microsecond))
}

// AppendArrived appends an Arrived.
func AppendArrived(b []byte, a Arrived) []byte {
	b = append(appendHeader(b, TypeArrived, arrivedBytes), a.Path)
	for _, v := range [...]uint64{a.Bytes, a.Lost, a.Late} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// Append appends a message.
func Append(b []byte, t Type, value []byte) []byte {
	return append(appendHeader(b, t, len(value)), value...)
}

// AppendPad appends n bytes of padding, at least an empty message.
func AppendPad(b []byte, n int) []byte {
	n = max(n-messageBytes, 0)
	return append(appendHeader(b, TypePad, n), make([]byte, n)...)
}

func appendHeader(b []byte, t Type, n int) []byte {
	return binary.BigEndian.AppendUint16(append(b, byte(t)), uint16(n))
}

// Next splits the first message off b. If b is empty, it returns TypePad and no rest.
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

// ParseMark parses the value of a Mark.
func ParseMark(v []byte, m *Mark) error {
	if len(v) < markBytes {
		return packet.ErrShort
	}
	*m = Mark{NextSeq: binary.BigEndian.Uint32(v), Idle: v[4] != 0, LivePaths: binary.BigEndian.Uint64(v[5:])}
	return nil
}

// ParseReport parses the value of a Report. Marked is 0 if the report ends before it.
func ParseReport(v []byte, r *Report) error {
	if len(v) < reportBytes {
		return packet.ErrShort
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(v[1+4*i:]) }
	*r = Report{Path: v[0], Report: sched.Report{
		CheckedUntil: word(0), HighestSeq: word(1), Packets: word(2), Bytes: word(3), Arrived: word(4), MinDelay: int32(word(5)),
	}}
	if len(v) >= reportBytes+markedBytes {
		r.Marked = word(6)
	}
	return nil
}

// ParseReceiver parses the value of a Receiver.
func ParseReceiver(v []byte, r *Receiver) error {
	if len(v) < receiverBytes {
		return packet.ErrShort
	}
	micros := func(b []byte) time.Duration { return time.Duration(binary.BigEndian.Uint32(b)) * time.Microsecond }
	*r = Receiver{Hold: micros(v), ReportEvery: micros(v[4:])}
	return nil
}

// ParseArrived parses the value of an Arrived.
func ParseArrived(v []byte, a *Arrived) error {
	if len(v) < arrivedBytes {
		return packet.ErrShort
	}
	*a = Arrived{Path: v[0], Bytes: binary.BigEndian.Uint64(v[1:]), Lost: binary.BigEndian.Uint64(v[9:]), Late: binary.BigEndian.Uint64(v[17:])}
	return nil
}

// ParseMissing parses the value of a Missing.
func ParseMissing(v []byte, m *Missing) error {
	if len(v) < missingBytes {
		return packet.ErrShort
	}
	*m = Missing{Path: v[0], First: binary.BigEndian.Uint32(v[1:]), Count: binary.BigEndian.Uint16(v[5:])}
	return nil
}
