package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseIPErrors(t *testing.T) {
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"version 5", []byte{0x50}, ErrVersion},
		{"half an IPv4 header", udpPacket(true, nil)[:19], ErrShort},
		{"half an IPv6 header", udpPacket(false, nil)[:39], ErrShort},
		{"IPv4 payload missing", udpPacket(true, noise(9))[:30], ErrShort},
		{"IPv6 payload missing", udpPacket(false, noise(9))[:50], ErrShort},
		{"IPv4 header length 16", changed(udpPacket(true, nil), 0, 0x44), ErrBad},
		{"IPv4 total below header", changed(udpPacket(true, nil), 2, 0, 19), ErrBad},
		{"IPv4 options beyond the total", changed(udpPacket(true, nil), 0, 0x4f), ErrBad},
		{"IPv6 extension cut", changed(udpPacket(false, nil)[:44], 4, 0, 4, hopByHop), ErrShort},
		{"IPv6 extension longer than the packet", changed(changed(udpPacket(false, nil), 6, hopByHop), 41, 1), ErrShort},
		{"IPv6 fragment header cut", changed(udpPacket(false, nil)[:47], 4, 0, 7, fragment), ErrShort},
		{"IPv6 extensions without end", endless(), ErrBad},
		{"IPv4 option without a length", withOptions(0x44, 1, 1, 7), ErrBad},
		{"IPv4 option of one byte", withOptions(7, 1, 0, 0), ErrBad},
		{"IPv4 option longer than the header", withOptions(7, 5, 4, 0), ErrBad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p IP
			if err := ParseIP(tt.b, &p); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// withOptions returns an IPv4 packet with options, 4 bytes at a time.
func withOptions(options ...byte) []byte {
	udp := udpPacket(true, nil)
	b := slices.Concat(udp[:IPv4Bytes], options, udp[IPv4Bytes:])
	b[0] += byte(len(options) / 4)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], Checksum(b[:IPv4Bytes+len(options)]))
	return b
}

// routed6 returns an IPv6 packet with a routing header.
func routed6(kind, left byte) []byte {
	b := make([]byte, IPv6Bytes, 100)
	putIPv6(b, guest6, peer6, routing, 0, 64, 24+UDPBytes)
	b = append(b, byte(UDP), 2, kind, left, 0, 0, 0, 0)
	b = append(b, peer6.AsSlice()...)
	return append(b, udpPacket(false, nil)[IPv6Bytes:]...)
}

// TestRouted checks that Dst of a source-routed packet is not taken for its destination.
func TestRouted(t *testing.T) {
	loose := func(pointer byte) []byte {
		return withOptions(optionNop, optionLooseRoute, 7, pointer, 198, 51, 100, 1)
	}
	tests := []struct {
		name string
		b    []byte
		want bool
		at   int // pointer in an IPv6 error
	}{
		{"IPv4 without options", udpPacket(true, nil), false, 0},
		{"IPv4 with another option", withOptions(148, 4, 0, 0), false, 0}, // router alert
		{"IPv4 loose route, one hop left", loose(4), true, 0},
		{"IPv4 loose route, at its end", loose(8), false, 0},
		{"IPv4 strict route", withOptions(optionStrictRoute, 7, 4, 198, 51, 100, 1, 0), true, 0},
		{"IPv4 route without a pointer", withOptions(optionLooseRoute, 2, 0, 0), true, 0},
		{"IPv4 route behind the end of options", withOptions(optionEnd, optionLooseRoute, 3, 4), false, 0},
		{"IPv6 type 0, one segment left", routed6(0, 1), true, IPv6Bytes + 2},
		{"IPv6 segment routing", routed6(4, 1), true, IPv6Bytes + 2},
		{"IPv6, no segment left", routed6(0, 0), false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := parse(t, tt.b)
			if p.Routed != tt.want {
				t.Errorf("Routed is %t", p.Routed)
			}
			if p.Src.Is4() || !tt.want {
				return
			}
			e := NewICMPError(ErrorRoute, false, 0)
			answer := make([]byte, MaxICMPErrorBytes)
			n := PutICMPError(answer, &e, peer6, tt.b)
			if n == 0 {
				t.Fatal("no error may be sent")
			}
			m := answer[IPv6Bytes:n]
			if got := binary.BigEndian.Uint32(m[4:]); m[0] != icmp6Parameter || m[1] != 0 || int(got) != tt.at {
				t.Errorf("error of type %d, code %d points to %d, want %d", m[0], m[1], got, tt.at)
			}
		})
	}
}

// changed returns a copy of b with other bytes at an offset.
func changed(b []byte, at int, with ...byte) []byte {
	b = slices.Clone(b)
	copy(b[at:], with)
	return b
}

// endless returns an IPv6 packet whose extension headers never end.
func endless() []byte {
	b := make([]byte, IPv6Bytes+2000)
	putIPv6(b, guest6, peer6, hopByHop, 0, 64, 2000)
	return b
}

func TestIPv6Extensions(t *testing.T) {
	udp := udpPacket(false, []byte("ahoy"))[IPv6Bytes:]
	extensions := []byte{
		destOptions, 0, 1, 4, 0, 0, 0, 0, // hop-by-hop: padding
		fragment, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // destination options, 16 bytes
		byte(UDP), 0, 0, 0, 1, 2, 3, 4, // an atomic fragment (RFC 6946)
	}
	b := make([]byte, IPv6Bytes, 200)
	putIPv6(b, guest6, peer6, hopByHop, 0, 64, len(extensions)+len(udp))
	b = append(append(b, extensions...), udp...)
	p := parse(t, b)
	if p.Protocol != UDP || p.HeaderBytes != IPv6Bytes+len(extensions) || p.ID != 0x01020304 || p.IsFragment() {
		t.Errorf("got %+v", p)
	}
	if p.protocolAt != IPv6Bytes+24 {
		t.Errorf("protocol is named at %d, want %d", p.protocolAt, IPv6Bytes+24)
	}
	// In a real fragment, offsets count from behind the fragment header, so the parser
	// stops there whatever follows.
	b[IPv6Bytes+24], b[IPv6Bytes+27] = destOptions, 1
	p = parse(t, b)
	if p.Protocol != destOptions || !p.IsFragment() || len(p.Payload) != len(udp) {
		t.Errorf("first fragment: got %+v", p)
	}
}

func TestTrailingBytesAreIgnored(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		var p IP
		if err := ParseIP(append(udpPacket(is4, []byte("ahoy")), "padding"...), &p); err != nil {
			t.Fatal(err)
		}
		if string(p.Payload[UDPBytes:]) != "ahoy" {
			t.Errorf("payload %q", p.Payload[UDPBytes:])
		}
	}
}

func TestParseTransportErrors(t *testing.T) {
	tcp, udp := tcpPacket(true, ACK, nil)[IPv4Bytes:], udpPacket(true, noise(4))[IPv4Bytes:]
	parseTCP := func(b []byte) error { return ParseTCP(b, new(TCPHeader)) }
	parseUDP := func(b []byte) error { return ParseUDP(b, new(UDPHeader)) }
	parseEcho := func(b []byte) error { return ParseEcho(ICMP, b, new(Echo)) }
	parseVNet := func(b []byte) error { return new(VNetHdr).Parse(b) }
	tests := []struct {
		name  string
		parse func([]byte) error
		b     []byte
		want  error
	}{
		{"TCP header cut", parseTCP, tcp[:19], ErrShort},
		{"TCP header of 16 bytes", parseTCP, changed(tcp, 12, 0x40), ErrBad},
		{"TCP options cut", parseTCP, changed(tcp, 12, 0x60), ErrShort},
		{"UDP header cut", parseUDP, udp[:7], ErrShort},
		{"UDP length below the header's", parseUDP, changed(udp, 4, 0, 7), ErrBad},
		{"UDP length beyond the packet", parseUDP, changed(udp, 4, 0, 13), ErrShort},
		{"echo cut", parseEcho, make([]byte, 7), ErrShort},
		{"echo with a code", parseEcho, []byte{ICMPEchoRequest, 1, 0, 0, 0, 0, 0, 0}, ErrBad},
		{"timestamp request", parseEcho, []byte{13, 0, 0, 0, 0, 0, 0, 0}, ErrBad},
		{"virtio header cut", parseVNet, make([]byte, 11), ErrShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.parse(tt.b); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestTCPOptions(t *testing.T) {
	var syn [TCPBytes + SYNOptionBytes]byte
	PutTCP(syn[:], &TCPHeader{Flags: SYN})
	written := func(scale int) []byte {
		PutSYNOptions(syn[:], 1460, scale)
		var h TCPHeader
		if err := ParseTCP(syn[:], &h); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(h.Options)
	}
	tests := []struct {
		name string
		b    []byte
		want TCPOptions
	}{
		{"none", nil, TCPOptions{}},
		{"ours", written(7), TCPOptions{MSS: 1460, Scale: 7, HasScale: true}},
		{"ours without scale", written(-1), TCPOptions{MSS: 1460}},
		{"as Linux sends them", []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 14},
			TCPOptions{MSS: 1460, SACKPermitted: true, Timestamps: true, Scale: 14, HasScale: true}},
		{"behind the end", []byte{0, 2, 4, 5, 0xb4}, TCPOptions{}},
		{"length 0", []byte{2, 0, 5, 0xb4}, TCPOptions{}},
		{"length 1", []byte{9, 1, 2, 4, 5, 0xb4}, TCPOptions{}},
		{"cut", []byte{1, 1, 2, 4, 5}, TCPOptions{}},
		{"a kind alone", []byte{1, 2}, TCPOptions{}},
		{"wrong size of a known kind is skipped", []byte{2, 3, 5, 3, 3, 1}, TCPOptions{Scale: 1, HasScale: true}},
		{"unknown is skipped", []byte{254, 4, 1, 2, 2, 4, 2, 0x18}, TCPOptions{MSS: 536}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ParseTCPOptions(tt.b); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestProtocolString(t *testing.T) {
	for p, want := range map[Protocol]string{TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMPv6: "icmp6", 0: "proto-0", 132: "proto-132"} {
		if p.String() != want {
			t.Errorf("protocol %d is %q, want %q", uint8(p), p, want)
		}
	}
}

// sameIP compares two headers.
var sameIP = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.AllowUnexported(IP{}),
}

// FuzzIP parses any bytes. A header without options must be written back unchanged.
func FuzzIP(f *testing.F) {
	for _, is4 := range []bool{true, false} {
		f.Add(udpPacket(is4, noise(20)))
		f.Add(tcpPacket(is4, SYN, nil))
		src, dst := addresses(is4)
		p := IP{Src: src, Dst: dst, Protocol: UDP, TTL: 3, TOS: 0xb9, More: true, Offset: 1480, ID: 0xabcd}
		b := make([]byte, 100)
		n := p.Put(b, 8)
		f.Add(b[:n+8])
	}
	f.Add(endless())
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again IP
		if err := ParseIP(b, &p); err != nil {
			return
		}
		w := make([]byte, IPv6Bytes+FragmentBytes+len(p.Payload))
		n := p.Put(w, len(p.Payload))
		copy(w[n:], p.Payload)
		if err := ParseIP(w[:n+len(p.Payload)], &again); err != nil {
			t.Fatalf("what was written does not parse: %v", err)
		}
		if p.Src.Is6() && !p.IsFragment() {
			p.ID = 0 // of an atomic fragment, which becomes a plain packet
		}
		p.HeaderBytes, p.protocolAt = again.HeaderBytes, again.protocolAt
		if d := cmp.Diff(p, again, sameIP); d != "" {
			t.Errorf("parse(write(p)) differs (-p +parsed):\n%s", d)
		}
		if p.Src.Is4() && Checksum(w[:n]) != 0 {
			t.Error("wrong header checksum")
		}
	})
}

func FuzzTransport(f *testing.F) {
	f.Add(tcpPacket(true, SYN|ACK, noise(9))[IPv4Bytes:])
	f.Add(udpPacket(true, noise(9))[IPv4Bytes:])
	f.Add([]byte{ICMPv6EchoRequest, 0, 1, 2, 3, 4, 5, 6, 7})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h TCPHeader
		if ParseTCP(b, &h) == nil {
			ParseTCPOptions(h.Options)
			w := make([]byte, TCPBytes)
			PutTCP(w, &h)
			want := slices.Clone(b[:TCPBytes])
			want[12], want[16], want[17] = TCPBytes/4<<4, 0, 0
			if !bytes.Equal(w, want) {
				t.Errorf("TCP header written as % x, want % x", w, want)
			}
		}
		var u UDPHeader
		if ParseUDP(b, &u) == nil {
			w := make([]byte, UDPBytes)
			PutUDP(w, u.SrcPort, u.DstPort, len(u.Payload))
			want := slices.Clone(b[:UDPBytes])
			want[6], want[7] = 0, 0
			if !bytes.Equal(w, want) {
				t.Errorf("UDP header written as % x, want % x", w, want)
			}
		}
		var e Echo
		for _, proto := range []Protocol{ICMP, ICMPv6} {
			if ParseEcho(proto, b, &e) == nil {
				w := make([]byte, ICMPBytes)
				PutEcho(w, proto, &e)
				want := slices.Clone(b[:ICMPBytes])
				want[2], want[3] = 0, 0
				if !bytes.Equal(w, want) {
					t.Errorf("echo header written as % x, want % x", w, want)
				}
			}
		}
		var v VNetHdr
		if v.Parse(b) == nil {
			w := make([]byte, VNetHdrBytes)
			v.Put(w)
			if !bytes.Equal(w[:10], b[:10]) {
				t.Errorf("virtio header written as % x, want % x", w, b[:VNetHdrBytes])
			}
		}
	})
}

func TestHeadersAllocateNothing(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		pkt := tcpPacket(is4, ACK, noise(100))
		src, dst := addresses(is4)
		w := make([]byte, 200)
		allocs := testing.AllocsPerRun(100, func() {
			var p IP
			var h TCPHeader
			if ParseIP(pkt, &p) != nil || ParseTCP(p.Payload, &h) != nil {
				t.Fatal("does not parse")
			}
			ParseTCPOptions(h.Options)
			n := PutIP(w, src, dst, TCP, 0, TCPBytes)
			PutTCP(w[n:], &h)
			TransportChecksum(src, dst, TCP, w[n:n+TCPBytes])
		})
		if allocs != 0 {
			t.Errorf("IPv4 %v: %v allocations, want 0", is4, allocs)
		}
	}
}

func TestVNetHdrOrder(t *testing.T) {
	b := make([]byte, VNetHdrBytes)
	h := VNetHdr{Flags: 1, GSOType: 4, HeaderBytes: 40, GSOSize: 1448, ChecksumStart: 20, ChecksumOffset: 16}
	h.Put(b)
	if binary.NativeEndian.Uint16(b[2:]) != 40 || binary.NativeEndian.Uint16(b[4:]) != 1448 ||
		binary.NativeEndian.Uint16(b[6:]) != 20 || binary.NativeEndian.Uint16(b[8:]) != 16 {
		t.Errorf("% x", b)
	}
}

func BenchmarkParse(b *testing.B) {
	for name, is4 := range map[string]bool{"IPv4": true, "IPv6": false} {
		b.Run(name, func(b *testing.B) {
			pkt := tcpPacket(is4, ACK, noise(100))
			var p IP
			var h TCPHeader
			for b.Loop() {
				if ParseIP(pkt, &p) != nil || ParseTCP(p.Payload, &h) != nil {
					b.Fatal("does not parse")
				}
			}
		})
	}
}
