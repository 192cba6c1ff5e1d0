package packet

import "encoding/binary"

// Flags of a TCP header (RFC 9293 section 3.1).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// TCPHeader is a TCP header.
type TCPHeader struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Flags            uint8
	Window           uint16 // not scaled
	Urgent           uint16
	Options          []byte // refers to the segment
	Payload          []byte // refers to the segment
}

// ParseTCP reads the header of a segment into h.
func ParseTCP(b []byte, h *TCPHeader) error {
	if len(b) < TCPBytes {
		return ErrShort
	}
	offset := int(b[12]>>4) * 4
	if offset < TCPBytes {
		return ErrBad
	}
	if offset > len(b) {
		return ErrShort
	}
	*h = TCPHeader{
		SrcPort: binary.BigEndian.Uint16(b), DstPort: binary.BigEndian.Uint16(b[2:]),
		Seq: binary.BigEndian.Uint32(b[4:]), Ack: binary.BigEndian.Uint32(b[8:]),
		Flags: b[13], Window: binary.BigEndian.Uint16(b[14:]), Urgent: binary.BigEndian.Uint16(b[18:]),
		Options: b[TCPBytes:offset], Payload: b[offset:],
	}
	return nil
}

// PutTCP writes a header without options into b, with checksum 0, and returns
// its size.
func PutTCP(b []byte, h *TCPHeader) int {
	b = b[:TCPBytes]
	binary.BigEndian.PutUint16(b, h.SrcPort)
	binary.BigEndian.PutUint16(b[2:], h.DstPort)
	binary.BigEndian.PutUint32(b[4:], h.Seq)
	binary.BigEndian.PutUint32(b[8:], h.Ack)
	b[12], b[13] = TCPBytes/4<<4, h.Flags
	binary.BigEndian.PutUint16(b[14:], h.Window)
	b[16], b[17] = 0, 0
	binary.BigEndian.PutUint16(b[18:], h.Urgent)
	return TCPBytes
}

// Offsets of the checksum in the header, for VNetHdr.ChecksumOffset.
const (
	TCPChecksumOffset = 16
	UDPChecksumOffset = 6
)

// TCPOptions holds the options of a SYN that the data path uses.
type TCPOptions struct {
	MSS           uint16 // bytes; 0 if absent
	Scale         uint8  // shift as received: up to 255
	HasScale      bool
	SACKPermitted bool
	Timestamps    bool
}

// Kinds of TCP options (RFC 9293 section 3.2, RFC 7323, RFC 2018).
const (
	optionEnd        = 0
	optionNop        = 1
	optionMSS        = 2
	optionScale      = 3
	optionSACK       = 4
	optionTimestamps = 8
)

// ParseTCPOptions reads the options in b. It ignores unknown ones and stops at the first
// malformed one (RFC 9293 section 3.1, MUST-7).
func ParseTCPOptions(b []byte) TCPOptions {
	var o TCPOptions
	for len(b) > 0 {
		if b[0] == optionNop {
			b = b[1:]
			continue
		}
		if b[0] == optionEnd || len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return o
		}
		kind, value := b[0], b[2:b[1]]
		b = b[b[1]:]
		switch {
		case kind == optionMSS && len(value) == 2:
			o.MSS = binary.BigEndian.Uint16(value)
		case kind == optionScale && len(value) == 1:
			o.Scale, o.HasScale = value[0], true
		case kind == optionSACK && len(value) == 0:
			o.SACKPermitted = true
		case kind == optionTimestamps && len(value) == 8:
			o.Timestamps = true
		}
	}
	return o
}

// SYNOptionBytes is the number of bytes that PutSYNOptions writes.
const SYNOptionBytes = 8

// PutSYNOptions writes the MSS option and, unless scale is negative, the window scale
// option behind a header of TCPBytes at h, and adds SYNOptionBytes to the header length.
func PutSYNOptions(h []byte, mss uint16, scale int) {
	h = h[:TCPBytes+SYNOptionBytes]
	h[12] = (TCPBytes + SYNOptionBytes) / 4 << 4
	o := h[TCPBytes:]
	o[0], o[1] = optionMSS, 4
	binary.BigEndian.PutUint16(o[2:], mss)
	o[4], o[5], o[6], o[7] = optionNop, optionScale, 3, uint8(scale)
	if scale < 0 {
		o[4], o[5], o[6], o[7] = optionNop, optionNop, optionNop, optionNop
	}
}
