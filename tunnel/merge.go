package tunnel

import (
	"bytes"
	"encoding/binary"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/tunnel/order"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// merger joins packets of a flow that follow each other to super-packets, as GRO
// would, and writes them to the device: one write for up to 64 KiB, whose payload
// stays where it was received. It implements order.Receiver.
type merger struct {
	t   *Tunnel
	vec sys.Vector

	open    bool
	first   parsed
	count   int
	payload int    // bytes so far
	next    uint32 // TCP sequence number that continues it
	last    bool   // nothing more may follow: PSH, or a shorter segment
	push    bool
	head    [packet.VNetHdrBytes + maxInnerHeader]byte
	single  [packet.VNetHdrBytes]byte
}

const (
	maxInnerHeader = 120
	maxMerged      = 64    // segments; the kernel's limit for UDP
	maxSuper       = 65000 // bytes
)

// parsed is what joining depends on.
type parsed struct {
	pkt     []byte
	proto   packet.Protocol
	ip      int // bytes of its header
	header  int // and of both
	partial bool
}

func (m *merger) init(t *Tunnel) { m.t = t }

// Deliver implements order.Receiver.
func (m *merger) Deliver(p order.Packet) {
	if !m.t.sources.Load().admit(p.Data) {
		m.t.stats.foreign.Add(1)
		return
	}
	h, ok := parse(p.Data, p.Tag&wire.Partial != 0)
	if ok && m.open && m.continues(&h) {
		m.add(&h)
		return
	}
	m.flush()
	if ok && h.joins() {
		m.start(&h)
		return
	}
	m.writeAlone(&h)
}

// parse reads a packet. It tells whether it is one that may be joined with others.
func parse(b []byte, partial bool) (parsed, bool) {
	h := parsed{pkt: b, partial: partial}
	switch {
	case len(b) >= packet.IPv4Bytes && b[0]>>4 == 4:
		h.ip, h.proto = int(b[0]&15)*4, packet.Protocol(b[9])
		if b[0] != 0x45 || binary.BigEndian.Uint16(b[6:])&^0x4000 != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
			return h, false
		}
	case len(b) >= packet.IPv6Bytes && b[0]>>4 == 6:
		h.ip, h.proto = packet.IPv6Bytes, packet.Protocol(b[6])
		if int(binary.BigEndian.Uint16(b[4:]))+packet.IPv6Bytes != len(b) {
			return h, false
		}
	default:
		return h, false
	}
	switch l4 := len(b) - h.ip; {
	case h.proto == packet.TCP && l4 >= packet.TCPBytes:
		h.header = h.ip + int(b[h.ip+12]>>4)*4
		return h, h.header >= h.ip+packet.TCPBytes && h.header < len(b)
	case h.proto == packet.UDP && l4 > packet.UDPBytes:
		h.header = h.ip + packet.UDPBytes
		return h, int(binary.BigEndian.Uint16(b[h.ip+4:])) == l4
	}
	return h, false
}

// joins tells whether the packet may begin a super-packet.
func (h *parsed) joins() bool {
	if h.proto == packet.TCP {
		return h.pkt[h.ip+13]&^packet.PSH == packet.ACK && h.sound()
	}
	return (h.partial || binary.BigEndian.Uint16(h.pkt[h.ip+packet.UDPChecksumOffset:]) != 0) && h.sound()
}

// sound tells whether the checksums are right: joined packets get new ones, and a
// corrupt packet must not be repaired by that.
func (h *parsed) sound() bool {
	if h.ip == packet.IPv4Bytes && packet.Checksum(h.pkt[:packet.IPv4Bytes]) != 0 {
		return false
	}
	if h.partial {
		return true
	}
	var ip packet.IP
	return packet.ParseIP(h.pkt, &ip) == nil && packet.TransportChecksum(ip.Src, ip.Dst, ip.Protocol, ip.Payload) == 0
}

func (h *parsed) tcpSeq() uint32 { return binary.BigEndian.Uint32(h.pkt[h.ip+4:]) }

// start begins a super-packet.
func (m *merger) start(h *parsed) {
	m.open, m.first, m.count, m.last, m.push = true, *h, 0, false, false
	m.payload = 0
	m.vec.Reset()
	m.vec.Append(m.head[:packet.VNetHdrBytes+h.header])
	m.add(h)
}

func (m *merger) add(h *parsed) {
	payload := h.pkt[h.header:]
	m.vec.Append(payload)
	m.count++
	m.payload += len(payload)
	if h.proto == packet.TCP {
		m.next = h.tcpSeq() + uint32(len(payload))
		m.push = h.pkt[h.ip+13]&packet.PSH != 0
	}
	m.last = m.push || len(payload) < m.segment() || m.count == maxMerged
}

func (m *merger) segment() int { return len(m.first.pkt) - m.first.header }

// continues tells whether the packet is the next of the open super-packet.
func (m *merger) continues(h *parsed) bool {
	f := &m.first
	if m.last || h.proto != f.proto || h.header != f.header || h.ip != f.ip || h.partial != f.partial ||
		len(h.pkt)-h.header > m.segment() || m.payload+len(h.pkt) > maxSuper || !sameIP(f, h) || !m.numbered(h) {
		return false
	}
	a, b := f.pkt[f.ip:f.header], h.pkt[h.ip:h.header]
	if h.proto == packet.UDP {
		return binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) && h.joins()
	}
	return h.tcpSeq() == m.next && binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) &&
		bytes.Equal(a[8:13], b[8:13]) && bytes.Equal(a[14:16], b[14:16]) && bytes.Equal(a[18:], b[18:]) && h.joins()
}

// numbered tells whether the packet's ID is the one that it will have when the
// super-packet is cut. Where nothing may be fragmented it says nothing (RFC 6864).
func (m *merger) numbered(h *parsed) bool {
	f := m.first.pkt
	return h.ip == packet.IPv6Bytes || f[6]&0x40 != 0 ||
		binary.BigEndian.Uint16(h.pkt[4:]) == binary.BigEndian.Uint16(f[4:])+uint16(m.count)
}

// sameIP tells whether two headers differ in nothing but length, ID and checksum.
func sameIP(f, h *parsed) bool {
	a, b := f.pkt, h.pkt
	if f.ip == packet.IPv6Bytes {
		return a[0] == b[0] && binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) &&
			binary.BigEndian.Uint16(a[6:]) == binary.BigEndian.Uint16(b[6:]) && bytes.Equal(a[8:40], b[8:40])
	}
	return binary.BigEndian.Uint16(a) == binary.BigEndian.Uint16(b) &&
		binary.BigEndian.Uint32(a[6:]) == binary.BigEndian.Uint32(b[6:]) &&
		binary.BigEndian.Uint64(a[12:]) == binary.BigEndian.Uint64(b[12:])
}

// flush writes what is open.
func (m *merger) flush() {
	if !m.open {
		return
	}
	m.open = false
	if m.count == 1 {
		m.writeAlone(&m.first)
		return
	}
	m.seal()
	m.wrote(m.vec.WriteNow(m.t.cfg.Device))
}

// seal writes the super-packet's headers.
func (m *merger) seal() {
	f := &m.first
	b := m.head[packet.VNetHdrBytes : packet.VNetHdrBytes+f.header]
	copy(b, f.pkt)
	l4 := f.header - f.ip + m.payload
	vnet := packet.VNetHdr{Flags: packet.NeedsChecksum, HeaderBytes: uint16(f.header), GSOSize: uint16(m.segment()), ChecksumStart: uint16(f.ip)}
	var sum uint64
	if f.ip == packet.IPv6Bytes {
		binary.BigEndian.PutUint16(b[4:], uint16(l4))
		sum = packet.Sum(b[8:40], uint64(f.proto)+uint64(l4))
		vnet.GSOType = packet.GSOTCPv6
	} else {
		binary.BigEndian.PutUint16(b[2:], uint16(f.ip+l4))
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:f.ip]))
		sum = packet.Sum(b[12:20], uint64(f.proto)+uint64(l4))
		vnet.GSOType = packet.GSOTCPv4
	}
	t := b[f.ip:]
	if f.proto == packet.TCP {
		if m.push {
			t[13] |= packet.PSH
		}
		vnet.ChecksumOffset = packet.TCPChecksumOffset
	} else {
		binary.BigEndian.PutUint16(t[4:], uint16(l4))
		vnet.GSOType, vnet.ChecksumOffset = packet.GSOUDP, packet.UDPChecksumOffset
	}
	binary.BigEndian.PutUint16(t[vnet.ChecksumOffset:], packet.Fold(sum))
	vnet.Put(m.head[:])
}

// writeAlone writes a packet as it is.
func (m *merger) writeAlone(h *parsed) {
	var vnet packet.VNetHdr
	if h.partial {
		offset := packet.TCPChecksumOffset
		if h.proto == packet.UDP {
			offset = packet.UDPChecksumOffset
		}
		vnet = packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(h.ip), ChecksumOffset: uint16(offset)}
	}
	if len(h.pkt) == 0 {
		return
	}
	vnet.Put(m.single[:])
	m.vec.Reset()
	m.vec.Append(m.single[:])
	m.vec.Append(h.pkt)
	m.wrote(m.vec.WriteNow(m.t.cfg.Device))
}

func (m *merger) wrote(_ int, errno unix.Errno) {
	if errno != 0 {
		m.t.stats.writeErrors.Add(1)
		return
	}
	m.t.stats.written.Add(1)
}
