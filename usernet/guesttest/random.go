package guesttest

import (
	"math/rand/v2"
	"net/netip"

	"cleat/packet"
)

// Random makes frames as a hostile guest may send them. Arbitrary bytes would be rejected
// at the first length field, so most frames have valid lengths and checksums: segments of
// a few connections with sequence numbers that are right or nearly right, datagrams, ICMP
// messages, fragments. Some are garbage, and any may have some bytes changed or be
// truncated. Random is for one goroutine.
type Random struct {
	*rand.Rand
	// Gateway4 and Gateway6 are the destinations of a third of the ICMP messages.
	Gateway4, Gateway6 netip.Addr

	conns [connections]struct{ guest, peer netip.AddrPort }
	next  [connections]struct{ seq, ack uint32 } // next sequence numbers
	buf   []byte
}

// connections is the number of a Random's connections.
const connections = 64

// firstPort is the guest's port of the first connection.
const firstPort = 40000

// NewRandom returns a Random whose frames depend only on the seed. The connections are
// divided among the peers, whose addresses determine the family. guest4 and guest6 are
// the guest's addresses.
func NewRandom(seed uint64, guest4, guest6 netip.Addr, peers []netip.AddrPort) *Random {
	r := &Random{Rand: rand.New(rand.NewPCG(seed, 0))}
	for i := range r.conns {
		e := &r.conns[i]
		e.peer = peers[i%len(peers)]
		own := guest4
		if e.peer.Addr().Is6() {
			own = guest6
		}
		e.guest = netip.AddrPortFrom(own, firstPort+uint16(i))
	}
	return r
}

// pick returns one of the connections.
func (r *Random) pick() (i int, guest, peer netip.AddrPort) {
	i = r.IntN(len(r.conns))
	return i, r.conns[i].guest, r.conns[i].peer
}

// Learn takes a connection's sequence numbers from a received frame.
func (r *Random) Learn(frame []byte) {
	var ip packet.IP
	var h packet.TCPHeader
	if len(frame) <= packet.VNetHdrBytes || packet.ParseIP(frame[packet.VNetHdrBytes:], &ip) != nil || ip.Protocol != packet.TCP || packet.ParseTCP(ip.Payload, &h) != nil {
		return
	}
	if i := int(h.DstPort) - firstPort; i >= 0 && i < len(r.next) {
		r.next[i].ack = h.Seq + uint32(len(h.Payload)) + uint32(h.Flags&packet.SYN>>1) + uint32(h.Flags&packet.FIN)
		if h.Flags&packet.ACK != 0 {
			r.next[i].seq = h.Ack
		}
	}
}

// Frame returns the next frame with its virtio header. It is valid until the next call.
func (r *Random) Frame() []byte {
	i, guest, peer := r.pick()
	var f []byte
	switch kind := r.IntN(100); {
	case kind < 65:
		f = r.tcp(i, guest, peer)
	case kind < 80:
		f = r.datagram(guest, peer)
	case kind < 90:
		f = r.icmp(guest, peer)
	case kind < 95:
		f = r.fragment(guest, peer)
	default:
		f = r.garbage(r.IntN(200))
	}
	if r.IntN(10) == 0 && len(f) > 0 {
		for range 1 + r.IntN(4) {
			f[r.IntN(len(f))] = byte(r.Uint32())
		}
	}
	if r.IntN(50) == 0 && len(f) > 1 {
		f = f[:1+r.IntN(len(f)-1)]
	}
	return f
}

func (r *Random) garbage(n int) []byte {
	r.buf = r.buffer(n + 1)
	for i := range r.buf {
		r.buf[i] = byte(r.Uint32())
	}
	return r.buf
}

func (r *Random) buffer(n int) []byte {
	if cap(r.buf) < n {
		r.buf = make([]byte, n, 2*n)
	}
	r.buf = r.buf[:n]
	clear(r.buf)
	return r.buf
}

// payloadSize returns a random size, small in most cases.
func (r *Random) payloadSize() int {
	switch r.IntN(20) {
	case 0:
		return r.IntN(60000)
	case 1, 2, 3:
		return r.IntN(1460)
	case 4, 5, 6, 7:
		return 1 + r.IntN(10)
	}
	return 0
}

func (r *Random) tcp(i int, guest, peer netip.AddrPort) []byte {
	h := packet.TCPHeader{SrcPort: guest.Port(), DstPort: peer.Port(), Window: uint16(r.Uint32()) >> r.IntN(16), Urgent: uint16(r.IntN(2000))}
	n := r.payloadSize()
	h.Seq, h.Ack = r.next[i].seq, r.next[i].ack
	switch r.IntN(12) {
	case 0, 1:
		h.Flags, h.Seq = packet.SYN, r.Uint32()
		n = 0
	case 2:
		h.Flags = packet.FIN | packet.ACK
	case 3:
		h.Flags = []uint8{packet.RST, packet.RST | packet.ACK, packet.ACK, packet.ACK}[r.IntN(4)]
	case 4:
		h.Flags = uint8(r.Uint32())
	case 5:
		h.Flags = packet.ACK | packet.URG
	default:
		h.Flags = packet.ACK
	}
	switch r.IntN(12) {
	case 0:
		h.Seq += uint32(r.IntN(4000)) - 2000
	case 1:
		h.Ack += uint32(r.IntN(4000)) - 2000
	case 2:
		h.Seq = r.Uint32()
	case 3:
		h.Ack = r.Uint32()
	}
	options := 4 * r.IntN(11) * int(h.Flags&packet.SYN>>1)
	headers := packet.TCPBytes + options
	at := packet.IPBytes(guest.Addr())
	f := r.buffer(packet.VNetHdrBytes + at + headers + n)
	pkt := f[packet.VNetHdrBytes:]
	packet.PutIP(pkt, guest.Addr(), peer.Addr(), packet.TCP, 0, headers+n)
	packet.PutTCP(pkt[at:], &h)
	pkt[at+12] = uint8(headers / 4 << 4)
	for o := range options {
		pkt[at+packet.TCPBytes+o] = byte(r.IntN(12))
	}
	r.putVNetHdr(f, at, packet.TCPChecksumOffset, n, headers, guest.Addr().Is4())
	return f
}

// putVNetHdr writes the virtio header, which nearly always requests a checksum.
func (r *Random) putVNetHdr(f []byte, at, offset, payload, headers int, is4 bool) {
	v := packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(at), ChecksumOffset: uint16(offset)}
	if payload > 1460 {
		v.GSOSize, v.HeaderBytes, v.GSOType = uint16(1+r.IntN(1460)), uint16(at+headers), packet.GSOUDP
		if offset == packet.TCPChecksumOffset {
			v.GSOType = packet.GSOTCPv6
			if is4 {
				v.GSOType = packet.GSOTCPv4
			}
		}
	}
	if r.IntN(50) == 0 {
		v.Flags = 0
	}
	v.Put(f)
}

func (r *Random) datagram(guest, peer netip.AddrPort) []byte {
	n := r.payloadSize()
	at := packet.IPBytes(guest.Addr())
	f := r.buffer(packet.VNetHdrBytes + at + packet.UDPBytes + n)
	pkt := f[packet.VNetHdrBytes:]
	packet.PutIP(pkt, guest.Addr(), peer.Addr(), packet.UDP, 0, packet.UDPBytes+n)
	packet.PutUDP(pkt[at:], guest.Port(), peer.Port(), n)
	r.putVNetHdr(f, at, packet.UDPChecksumOffset, n, packet.UDPBytes, guest.Addr().Is4())
	return f
}

func (r *Random) icmp(guest, peer netip.AddrPort) []byte {
	n := r.IntN(200)
	at := packet.IPBytes(guest.Addr())
	f := r.buffer(packet.VNetHdrBytes + at + packet.ICMPBytes + n)
	pkt := f[packet.VNetHdrBytes:]
	proto := packet.ICMPv6
	if guest.Addr().Is4() {
		proto = packet.ICMP
	}
	to := peer.Addr()
	if r.IntN(3) == 0 {
		to = map[bool]netip.Addr{true: r.Gateway4, false: r.Gateway6}[to.Is4()]
	}
	packet.PutIP(pkt, guest.Addr(), to, proto, 0, packet.ICMPBytes+n)
	packet.PutEcho(pkt[at:], proto, &packet.Echo{Request: r.IntN(4) > 0, ID: uint16(r.IntN(4)), Seq: uint16(r.Uint32())})
	if r.IntN(4) == 0 {
		pkt[at], pkt[at+1] = byte(r.Uint32()), byte(r.IntN(16))
	}
	packet.PutICMPChecksum(pkt[at:], guest.Addr(), to)
	return f
}

func (r *Random) fragment(guest, peer netip.AddrPort) []byte {
	n := 8 * (1 + r.IntN(180))
	ip := packet.IP{
		Src: guest.Addr(), Dst: peer.Addr(), Protocol: []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP}[r.IntN(3)], TTL: 64,
		ID: uint32(r.IntN(8)), Offset: 8 * r.IntN(100) * r.IntN(2), More: r.IntN(3) > 0,
	}
	if r.IntN(10) == 0 {
		ip.Offset = 65528 - 8*r.IntN(200)
	}
	f := r.buffer(packet.VNetHdrBytes + packet.IPv6Bytes + packet.FragmentBytes + n)
	at := ip.Put(f[packet.VNetHdrBytes:], n)
	if ip.Offset == 0 && ip.Protocol == packet.UDP {
		packet.PutUDP(f[packet.VNetHdrBytes+at:], guest.Port(), peer.Port(), max(0, n-packet.UDPBytes))
	}
	return f[:packet.VNetHdrBytes+at+n]
}
