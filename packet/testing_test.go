package packet

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

var (
	guest4 = netip.MustParseAddr("192.0.2.2")
	peer4  = netip.MustParseAddr("198.51.100.7")
	guest6 = netip.MustParseAddr("2001:db8::2")
	peer6  = netip.MustParseAddr("2001:db8:1::7")
)

// addresses returns the guest's and the peer's address, IPv4 or IPv6.
func addresses(is4 bool) (guest, peer netip.Addr) {
	if is4 {
		return guest4, peer4
	}
	return guest6, peer6
}

// noise returns n bytes that look random and are the same in each run.
func noise(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// udpPacket returns a datagram from guest to peer with a correct checksum.
func udpPacket(is4 bool, payload []byte) []byte {
	src, dst := addresses(is4)
	b := make([]byte, IPBytes(src)+UDPBytes+len(payload))
	n := PutIP(b, src, dst, UDP, 0, UDPBytes+len(payload))
	PutUDP(b[n:], 1024, 53, len(payload))
	copy(b[n+UDPBytes:], payload)
	putChecksum(b[n+UDPChecksumOffset:], TransportChecksum(src, dst, UDP, b[n:]))
	return b
}

// tcpPacket returns a segment from guest to peer with a correct checksum.
func tcpPacket(is4 bool, flags uint8, payload []byte) []byte {
	src, dst := addresses(is4)
	b := make([]byte, IPBytes(src)+TCPBytes+len(payload))
	n := PutIP(b, src, dst, TCP, 0, TCPBytes+len(payload))
	PutTCP(b[n:], &TCPHeader{SrcPort: 1024, DstPort: 80, Seq: 0xfffffff0, Ack: 7, Flags: flags, Window: 9})
	copy(b[n+TCPBytes:], payload)
	putChecksum(b[n+TCPChecksumOffset:], TransportChecksum(src, dst, TCP, b[n:]))
	return b
}

// parse fails the test unless b is exactly one packet with correct checksums.
func parse(t *testing.T, b []byte) IP {
	t.Helper()
	var p IP
	if err := ParseIP(b, &p); err != nil {
		t.Fatalf("parse % x: %v", b[:min(len(b), 64)], err)
	}
	if p.HeaderBytes+len(p.Payload) != len(b) {
		t.Fatalf("packet of %d bytes says it has %d", len(b), p.HeaderBytes+len(p.Payload))
	}
	if p.Src.Is4() && Checksum(b[:p.HeaderBytes]) != 0 {
		t.Fatal("IPv4 header has a wrong checksum")
	}
	if p.IsFragment() {
		return p
	}
	switch p.Protocol {
	case TCP, UDP, ICMPv6:
		if sum := TransportChecksum(p.Src, p.Dst, p.Protocol, p.Payload); sum != 0 {
			t.Fatalf("%s checksum is off by %#x", p.Protocol, sum)
		}
	case ICMP:
		if sum := Checksum(p.Payload); sum != 0 {
			t.Fatalf("ICMP checksum is off by %#x", sum)
		}
	}
	return p
}
