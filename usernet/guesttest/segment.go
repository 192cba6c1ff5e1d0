package guesttest

import (
	"encoding/binary"
	"net/netip"

	"cleat/packet"
)

// Segment is a TCP segment to send. Nothing is filled in: a zero field is sent as zero.
type Segment struct {
	From, To netip.AddrPort
	Seq, Ack uint32
	Flags    uint8
	Window   uint16 // as in the header, not scaled
	Urgent   uint16
	Options  []byte // padded to a multiple of 4 bytes
	Payload  []byte

	Checksum Checksum
	GSOSize  int // payload of each packet that the frame stands for, in bytes; 0: the frame is one packet
}

// Checksum says how to send a packet's checksum.
type Checksum uint8

// The zero value is what a guest's kernel does.
const (
	Partial  Checksum = iota // the pseudo header's sum, with NEEDS_CSUM
	Complete                 // correct
	Wrong                    // incorrect
)

// Send writes a segment.
func (g *Guest) Send(s Segment) { g.SendFrame(s.Frame()) }

// Frame returns the segment with all headers.
func (s Segment) Frame() []byte {
	options := append([]byte(nil), s.Options...)
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	header := packet.TCPBytes + len(options)
	ip := packet.IPBytes(s.From.Addr())
	b := newFrame(ip + header + len(s.Payload))
	pkt := b[packet.VNetHdrBytes:]
	packet.PutIP(pkt, s.From.Addr(), s.To.Addr(), packet.TCP, 0, header+len(s.Payload))
	tcp := pkt[ip:]
	packet.PutTCP(tcp, &packet.TCPHeader{
		SrcPort: s.From.Port(), DstPort: s.To.Port(), Seq: s.Seq, Ack: s.Ack, Flags: s.Flags, Window: s.Window, Urgent: s.Urgent,
	})
	tcp[12] = uint8(header / 4 << 4)
	copy(tcp[packet.TCPBytes:], options)
	copy(tcp[header:], s.Payload)
	v := packet.VNetHdr{}
	if s.GSOSize > 0 {
		v.GSOType, v.GSOSize, v.HeaderBytes = packet.GSOTCPv4, uint16(s.GSOSize), uint16(ip+header)
		if s.From.Addr().Is6() {
			v.GSOType = packet.GSOTCPv6
		}
	}
	sum := packet.TransportChecksum(s.From.Addr(), s.To.Addr(), packet.TCP, tcp)
	switch s.Checksum {
	case Partial:
		v.Flags, v.ChecksumStart, v.ChecksumOffset = packet.NeedsChecksum, uint16(ip), packet.TCPChecksumOffset
		sum = packet.Fold(packet.PseudoSum(s.From.Addr(), s.To.Addr(), packet.TCP, len(tcp)))
	case Wrong:
		sum ^= 0x0100
	}
	binary.BigEndian.PutUint16(tcp[packet.TCPChecksumOffset:], sum)
	v.Put(b)
	return b
}

// TCP options, to be joined by append or slices.Concat.
var (
	SACKPermitted = []byte{4, 2}
	Timestamps    = []byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 0}
	Nop           = []byte{1}
)

// MSS returns the maximum segment size option.
func MSS(bytes uint16) []byte { return binary.BigEndian.AppendUint16([]byte{2, 4}, bytes) }

// Scale returns the window scale option.
func Scale(shift uint8) []byte { return []byte{3, 3, shift} }
