package probe

import (
	"encoding/binary"
	"net/netip"
	"time"

	"cleat/packet"

	"golang.org/x/net/bpf"
)

// Offloads are what a device may leave to a network card. In a Prober's result they are what the card, or what is
// behind it, does wrong with encapsulated packets.
type Offloads struct {
	Checksums bool // of packets in packets
	Segments  bool // dividing large TCP segments of packets in packets
}

// Times of checks.
const (
	checkEvery   = 10 * time.Minute // of a peer whose packets arrive
	blockedEvery = 30 * time.Second // of a peer to which no encapsulated packet arrives
	// badRounds in a row are needed for a result, so that lost packets don't lead to one.
	badRounds = 6
	// recheckEvery is how often offloads that were switched off are tried again, if nothing uses them for idleFor.
	recheckEvery = time.Hour
	idleFor      = time.Minute
)

// variant is a kind of frame that a check sends in encapsulated packets.
type variant uint8

const (
	whole    variant = iota // with a complete checksum: arrives if anything does
	partial                 // the card completes the checksum
	segments                // the card divides it, and completes the checksums
	variants
)

// Frames carry TCP segments between these addresses. The kernel that receives one drops it after the packet socket has
// seen it: no packet may have the source (net/ipv4/route.c, ip_route_input_slow). No host sends to the destination (RFC
// 7600).
var (
	frameFrom = netip.IPv4Unspecified()
	frameTo   = netip.AddrFrom4([4]byte{192, 0, 0, 8})
)

const (
	// partBytes is the size of the parts of a frame, which a card makes packets of. A packet has at most 520 bytes, so
	// that all devices with room for VXLAN pass it (overlay's least MTU is 576).
	partBytes = 480
	// segmentParts is how many parts a frame has that the card divides.
	segmentParts = 3
	allParts     = 1<<segmentParts - 1
	vnetBytes    = 10 // struct virtio_net_hdr, as PACKET_VNET_HDR puts it before frames
	frameHead    = packet.EthernetBytes + packet.IPv4Bytes + packet.TCPBytes
)

// detail is what a part of a frame, and its answer, has after the message.
type detail struct {
	variant variant
	part    uint8
	round   uint16
}

const detailBytes = 4

func (d detail) append(b []byte) []byte {
	return binary.BigEndian.AppendUint16(append(b, byte(d.variant), d.part), d.round)
}

func parseDetail(b []byte) (d detail, ok bool) {
	if len(b) < detailBytes {
		return d, false
	}
	d = detail{variant(b[0]), b[1], binary.BigEndian.Uint16(b[2:])}
	return d, d.variant < variants && d.part < segmentParts
}

// frame returns a frame of a check, after the header by which the kernel knows what the card has to do.
func frame(from, to packet.MAC, m message, v variant, round uint16) []byte {
	parts := 1
	if v == segments {
		parts = segmentParts
	}
	payload := make([]byte, parts*partBytes)
	for i := range parts {
		copy(payload[i*partBytes:], detail{v, uint8(i), round}.append(m.encode()))
	}
	b := make([]byte, vnetBytes+frameHead, vnetBytes+frameHead+len(payload))
	head := b[vnetBytes:]
	e := packet.Ethernet{Dst: to, Src: from, Type: packet.EtherTypeIPv4}
	at := e.Put(head)
	packet.PutIP(head[at:], frameFrom, frameTo, packet.TCP, 0, packet.TCPBytes+len(payload))
	at += packet.IPv4Bytes
	packet.PutTCP(head[at:], &packet.TCPHeader{SrcPort: 1, DstPort: 1, Flags: packet.ACK, Window: 1})
	b = append(b, payload...)
	segment := b[vnetBytes+at:]
	h := packet.VNetHdr{}
	sum := packet.TransportChecksum(frameFrom, frameTo, packet.TCP, segment)
	if v != whole {
		h = packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(at), ChecksumOffset: packet.TCPChecksumOffset}
		sum = packet.Fold(packet.PseudoSum(frameFrom, frameTo, packet.TCP, len(segment)))
	}
	if v == segments {
		h.GSOType, h.HeaderBytes, h.GSOSize = packet.GSOTCPv4, frameHead, partBytes
	}
	binary.BigEndian.PutUint16(segment[packet.TCPChecksumOffset:], sum)
	var full [packet.VNetHdrBytes]byte
	h.Put(full[:])
	copy(b[:vnetBytes], full[:])
	return b
}

// part is a part of a frame that has arrived.
type part struct {
	message
	detail
}

// parseFrame returns the parts of a frame as a packet socket receives it: none if it is damaged. The kernel may
// have put several packets together.
func parseFrame(b []byte) (parts []part) {
	var h packet.VNetHdr
	var e packet.Ethernet
	var ip packet.IP
	var t packet.TCPHeader
	if h.Parse(b) != nil {
		return nil
	}
	b = b[vnetBytes:]
	if e.Parse(b) != nil || e.Type != packet.EtherTypeIPv4 || packet.ParseIP(b[packet.EthernetBytes:], &ip) != nil {
		return nil
	}
	if ip.Src != frameFrom || ip.Dst != frameTo || ip.Protocol != packet.TCP || ip.IsFragment() || packet.ParseTCP(ip.Payload, &t) != nil {
		return nil
	}
	// With NeedsChecksum the packet has not left this machine's memory since a kernel made it.
	if h.Flags&packet.NeedsChecksum == 0 && packet.TransportChecksum(ip.Src, ip.Dst, packet.TCP, ip.Payload) != 0 {
		return nil
	}
	for rest := t.Payload; len(rest) >= partBytes; rest = rest[partBytes:] {
		m, ok := parse(rest)
		d, has := parseDetail(rest[min(messageBytes, len(rest)):])
		if ok && has && m.Kind == check {
			parts = append(parts, part{m, d})
		}
	}
	return parts
}

// frameFilter returns a filter that accepts frames of checks.
func frameFilter() ([]bpf.RawInstruction, error) {
	to := frameTo.As4()
	const typeAt, toAt = 12, packet.EthernetBytes + 16
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: toAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(to[:]), SkipTrue: 3},
		bpf.LoadAbsolute{Off: typeAt, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packet.EtherTypeIPv4, SkipTrue: 1},
		bpf.RetConstant{Val: maxSize},
		bpf.RetConstant{Val: 0},
	})
}

// checking is what is known of encapsulated packets to a peer. It has no clock and sends nothing.
type checking struct {
	at       time.Time // of the next round, or of the end of this one
	round    uint16
	running  bool
	arrived  [variants]uint8 // the parts that have arrived in this round
	missing  int             // rounds in a row in which nothing has arrived
	bad      [variants]int   // rounds in a row in which the variant has not arrived, but whole ones have
	blocked  bool            // nothing arrives
	finished bool            // there was a round with a result
}

// next reports whether the frames of a round are sent now. found is what the last round has found, if it ends now.
func (c *checking) next(now time.Time) (send bool, found Offloads) {
	if now.Before(c.at) {
		return false, found
	}
	if c.running {
		found = c.conclude(now)
		if now.Before(c.at) {
			return false, found
		}
	}
	c.round++
	c.running, c.arrived = true, [variants]uint8{}
	c.at = now.Add(answerWithin)
	return true, found
}

// conclude ends a round.
func (c *checking) conclude(now time.Time) (found Offloads) {
	c.running = false
	if c.arrived[whole] == 0 {
		if c.missing++; c.missing >= badRounds {
			c.blocked = true
			c.at = now.Add(blockedEvery)
		}
		return found
	}
	c.missing, c.blocked = 0, false
	again := false
	for _, v := range []variant{partial, segments} {
		if ok := c.arrived[v] == allParts || v == partial && c.arrived[v] != 0; ok {
			c.bad[v] = 0
			continue
		}
		again = true
		c.bad[v]++
	}
	if again && max(c.bad[partial], c.bad[segments]) < badRounds {
		return found // at once
	}
	found = Offloads{Checksums: c.bad[partial] >= badRounds, Segments: c.bad[segments] >= badRounds}
	c.finished, c.bad = true, [variants]int{}
	c.at = now.Add(checkEvery)
	return found
}

// answered takes an answer.
func (c *checking) answered(d detail) {
	if c.running && d.round == c.round {
		c.arrived[d.variant] |= 1 << d.part
	}
}
