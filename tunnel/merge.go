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

// merger merges consecutive packets of a flow into super-packets, as GRO does, and writes
// them to the device: one write for up to 64 KiB, whose payload stays where it was
// received. It implements order.Receiver.
type merger struct {
	t   *Tunnel
	vec sys.Vector

	open         bool
	first        mergeHeader
	count        int
	payload      int    // bytes so far
	nextTCPSeq   uint32 // sequence number of the next segment
	complete     bool   // no packet may follow: PSH, or a shorter segment
	push         bool
	headers      [packet.VNetHdrBytes + maxInnerHeader]byte
	singleHeader [packet.VNetHdrBytes]byte
}

const (
	maxInnerHeader    = 120
	maxMergedSegments = 64    // segments; the kernel's limit for UDP
	maxMergedBytes    = 65000 // bytes
)

// mergeHeader is what merging a packet depends on.
type mergeHeader struct {
	pkt         []byte
	proto       packet.Protocol
	ipBytes     int // IP header
	headerBytes int // IP and transport header
	partial     bool
}

// Deliver implements order.Receiver.
func (m *merger) Deliver(p order.Packet) {
	if !m.t.sources.Load().admit(p.Data) {
		m.t.stats.wrongSource.Add(1)
		return
	}
	h, ok := parse(p.Data, p.Tag&wire.Partial != 0)
	if ok && m.open && m.canAppend(&h) {
		m.add(&h)
		return
	}
	m.flush()
	if ok && h.canStart() {
		m.start(&h)
		return
	}
	m.writeAlone(&h)
}

// parse parses a packet. It reports whether the packet may be merged with others.
func parse(b []byte, partial bool) (mergeHeader, bool) {
	h := mergeHeader{pkt: b, partial: partial}
	switch {
	case len(b) >= packet.IPv4Bytes && b[0]>>4 == 4:
		h.ipBytes, h.proto = int(b[0]&15)*4, packet.Protocol(b[9])
		if b[0] != 0x45 || binary.BigEndian.Uint16(b[6:])&^0x4000 != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
			return h, false
		}
	case len(b) >= packet.IPv6Bytes && b[0]>>4 == 6:
		h.ipBytes, h.proto = packet.IPv6Bytes, packet.Protocol(b[6])
		if int(binary.BigEndian.Uint16(b[4:]))+packet.IPv6Bytes != len(b) {
			return h, false
		}
	default:
		return h, false
	}
	switch l4 := len(b) - h.ipBytes; {
	case h.proto == packet.TCP && l4 >= packet.TCPBytes:
		h.headerBytes = h.ipBytes + int(b[h.ipBytes+12]>>4)*4
		return h, h.headerBytes >= h.ipBytes+packet.TCPBytes && h.headerBytes < len(b)
	case h.proto == packet.UDP && l4 > packet.UDPBytes:
		h.headerBytes = h.ipBytes + packet.UDPBytes
		return h, int(binary.BigEndian.Uint16(b[h.ipBytes+4:])) == l4
	}
	return h, false
}

func (h *mergeHeader) canStart() bool {
	if h.proto == packet.TCP {
		return h.pkt[h.ipBytes+13]&^packet.PSH == packet.ACK && h.checksumOK()
	}
	return (h.partial || binary.BigEndian.Uint16(h.pkt[h.ipBytes+packet.UDPChecksumOffset:]) != 0) && h.checksumOK()
}

// checksumOK reports whether the checksums are right. A super-packet gets new ones, which
// must not repair a corrupt packet.
func (h *mergeHeader) checksumOK() bool {
	if h.ipBytes == packet.IPv4Bytes && packet.Checksum(h.pkt[:packet.IPv4Bytes]) != 0 {
		return false
	}
	if h.partial {
		return true
	}
	var ip packet.IP
	return packet.ParseIP(h.pkt, &ip) == nil && packet.TransportChecksum(ip.Src, ip.Dst, ip.Protocol, ip.Payload) == 0
}

func (h *mergeHeader) tcpSeq() uint32 { return binary.BigEndian.Uint32(h.pkt[h.ipBytes+4:]) }

func (m *merger) start(h *mergeHeader) {
	m.open, m.first, m.count, m.complete, m.push = true, *h, 0, false, false
	m.payload = 0
	m.vec.Reset()
	m.vec.Append(m.headers[:packet.VNetHdrBytes+h.headerBytes])
	m.add(h)
}

func (m *merger) add(h *mergeHeader) {
	payload := h.pkt[h.headerBytes:]
	m.vec.Append(payload)
	m.count++
	m.payload += len(payload)
	if h.proto == packet.TCP {
		m.nextTCPSeq = h.tcpSeq() + uint32(len(payload))
		m.push = h.pkt[h.ipBytes+13]&packet.PSH != 0
	}
	m.complete = m.push || len(payload) < m.segment() || m.count == maxMergedSegments
}

func (m *merger) segment() int { return len(m.first.pkt) - m.first.headerBytes }

// canAppend reports whether the packet is the next of the open super-packet.
func (m *merger) canAppend(h *mergeHeader) bool {
	f := &m.first
	if m.complete || h.proto != f.proto || h.headerBytes != f.headerBytes || h.ipBytes != f.ipBytes || h.partial != f.partial ||
		len(h.pkt)-h.headerBytes > m.segment() || m.payload+len(h.pkt) > maxMergedBytes || !sameIP(f, h) || !m.hasNextID(h) {
		return false
	}
	a, b := f.pkt[f.ipBytes:f.headerBytes], h.pkt[h.ipBytes:h.headerBytes]
	if h.proto == packet.UDP {
		return binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) && h.canStart()
	}
	return h.tcpSeq() == m.nextTCPSeq && binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) &&
		bytes.Equal(a[8:13], b[8:13]) && bytes.Equal(a[14:16], b[14:16]) && bytes.Equal(a[18:], b[18:]) && h.canStart()
}

// hasNextID reports whether the packet has the IP ID that it will have when the
// super-packet is segmented. The ID means nothing if the packet must not be fragmented
// (RFC 6864).
func (m *merger) hasNextID(h *mergeHeader) bool {
	f := m.first.pkt
	return h.ipBytes == packet.IPv6Bytes || f[6]&0x40 != 0 ||
		binary.BigEndian.Uint16(h.pkt[4:]) == binary.BigEndian.Uint16(f[4:])+uint16(m.count)
}

// sameIP reports whether two IP headers are equal except for length, ID and checksum.
func sameIP(f, h *mergeHeader) bool {
	a, b := f.pkt, h.pkt
	if f.ipBytes == packet.IPv6Bytes {
		return a[0] == b[0] && binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) &&
			binary.BigEndian.Uint16(a[6:]) == binary.BigEndian.Uint16(b[6:]) && bytes.Equal(a[8:40], b[8:40])
	}
	return binary.BigEndian.Uint16(a) == binary.BigEndian.Uint16(b) &&
		binary.BigEndian.Uint32(a[6:]) == binary.BigEndian.Uint32(b[6:]) &&
		binary.BigEndian.Uint64(a[12:]) == binary.BigEndian.Uint64(b[12:])
}

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
	m.countWrite(m.vec.WriteNow(m.t.cfg.Device))
}

// seal writes the super-packet's headers.
func (m *merger) seal() {
	f := &m.first
	b := m.headers[packet.VNetHdrBytes : packet.VNetHdrBytes+f.headerBytes]
	copy(b, f.pkt)
	l4 := f.headerBytes - f.ipBytes + m.payload
	vnet := packet.VNetHdr{Flags: packet.NeedsChecksum, HeaderBytes: uint16(f.headerBytes), GSOSize: uint16(m.segment()), ChecksumStart: uint16(f.ipBytes)}
	var sum uint64
	if f.ipBytes == packet.IPv6Bytes {
		binary.BigEndian.PutUint16(b[4:], uint16(l4))
		sum = packet.Sum(b[8:40], uint64(f.proto)+uint64(l4))
		vnet.GSOType = packet.GSOTCPv6
	} else {
		binary.BigEndian.PutUint16(b[2:], uint16(f.ipBytes+l4))
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:f.ipBytes]))
		sum = packet.Sum(b[12:20], uint64(f.proto)+uint64(l4))
		vnet.GSOType = packet.GSOTCPv4
	}
	t := b[f.ipBytes:]
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
	vnet.Put(m.headers[:])
}

func (m *merger) writeAlone(h *mergeHeader) {
	var vnet packet.VNetHdr
	if h.partial {
		offset := packet.TCPChecksumOffset
		if h.proto == packet.UDP {
			offset = packet.UDPChecksumOffset
		}
		vnet = packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(h.ipBytes), ChecksumOffset: uint16(offset)}
	}
	if len(h.pkt) == 0 {
		return
	}
	vnet.Put(m.singleHeader[:])
	m.vec.Reset()
	m.vec.Append(m.singleHeader[:])
	m.vec.Append(h.pkt)
	m.countWrite(m.vec.WriteNow(m.t.cfg.Device))
}

func (m *merger) countWrite(_ int, errno unix.Errno) {
	if errno != 0 {
		m.t.stats.writeErrors.Add(1)
		return
	}
	m.t.stats.written.Add(1)
}
