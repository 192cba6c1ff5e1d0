package packet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

func TestEcho(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		for _, request := range []bool{true, false} {
			t.Run(fmt.Sprintf("IPv4 %v, request %v", is4, request), func(t *testing.T) {
				src, dst := addresses(is4)
				proto := ICMPv6
				if is4 {
					proto = ICMP
				}
				want := Echo{Request: request, ID: 0xbeef, Seq: 3, Payload: []byte("ahoy")}
				b := make([]byte, 100)
				n := PutIP(b, src, dst, proto, 0, ICMPBytes+4)
				PutEcho(b[n:], proto, &want)
				copy(b[n+ICMPBytes:], want.Payload)
				b = b[:n+ICMPBytes+4]
				PutICMPChecksum(b[n:], src, dst)
				p := parse(t, b)
				var got Echo
				if err := ParseEcho(p.Protocol, p.Payload, &got); err != nil {
					t.Fatal(err)
				}
				if got.Request != want.Request || got.ID != want.ID || got.Seq != want.Seq || !bytes.Equal(got.Payload, want.Payload) {
					t.Errorf("got %+v, want %+v", got, want)
				}
			})
		}
	}
}

func TestICMPErrorKinds(t *testing.T) {
	tests := []struct {
		kind   ErrorKind
		name   string
		v4, v6 [2]uint8
		rest4  uint32
		rest6  uint32
	}{
		{ErrorNet, "network", [2]uint8{3, 0}, [2]uint8{1, 0}, 0, 0},
		{ErrorHost, "host", [2]uint8{3, 1}, [2]uint8{1, 3}, 0, 0},
		{ErrorProtocol, "protocol", [2]uint8{3, 2}, [2]uint8{4, 1}, 0, 6},
		{ErrorPort, "port", [2]uint8{3, 3}, [2]uint8{1, 4}, 0, 0},
		{ErrorProhibited, "prohibited", [2]uint8{3, 13}, [2]uint8{1, 1}, 0, 0},
		{ErrorTooBig, "too big", [2]uint8{3, 4}, [2]uint8{2, 0}, 1400, 1400},
		{ErrorTTL, "hop limit", [2]uint8{11, 0}, [2]uint8{3, 0}, 0, 0},
		{ErrorReassembly, "reassembly", [2]uint8{11, 1}, [2]uint8{3, 1}, 0, 0},
	}
	gateways := map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2001:db8::1")}
	for _, tt := range tests {
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, IPv4 %v", tt.name, is4), func(t *testing.T) {
				code, rest, proto := tt.v6, tt.rest6, ICMPv6
				if is4 {
					code, rest, proto = tt.v4, tt.rest4, ICMP
				}
				offending := udpPacket(is4, noise(30))
				e := NewICMPError(tt.kind, is4, 1400)
				b := make([]byte, MaxICMPErrorBytes)
				n := PutICMPError(b, &e, gateways[is4], offending)
				p := parse(t, b[:n])
				src, _ := addresses(is4)
				if p.Protocol != proto || p.Src != gateways[is4] || p.Dst != src {
					t.Errorf("%s from %s to %s", p.Protocol, p.Src, p.Dst)
				}
				if !bytes.Equal(p.Payload[ICMPBytes:], offending) {
					t.Error("the offending packet is not quoted")
				}
				var got ICMPError
				if err := ParseICMPError(p.Protocol, p.Payload, &got); err != nil {
					t.Fatal(err)
				}
				if got.Type != code[0] || got.Code != code[1] || got.Rest != rest {
					t.Errorf("type %d code %d rest %d, want %d %d %d", got.Type, got.Code, got.Rest, code[0], code[1], rest)
				}
				if got.Original.Src != src || got.Original.Protocol != UDP {
					t.Errorf("quoted: %+v", got.Original)
				}
			})
		}
	}
}

func TestICMPErrorSizes(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		want := 1280
		if is4 {
			want = 576
		}
		_, gateway := addresses(is4)
		offending := udpPacket(is4, noise(9000))
		e := NewICMPError(ErrorPort, is4, 0)
		b := make([]byte, MaxICMPErrorBytes)
		n := PutICMPError(b, &e, gateway, offending)
		if n != want {
			t.Errorf("IPv4 %v: %d bytes, want %d", is4, n, want)
		}
		p := parse(t, b[:n])
		var got ICMPError
		if err := ParseICMPError(p.Protocol, p.Payload, &got); err != nil {
			t.Errorf("IPv4 %v: a quotation that was cut does not parse: %v", is4, err)
		}
		var u UDPHeader
		if err := ParseUDP(got.Original.Payload, &u); !errors.Is(err, ErrShort) {
			t.Errorf("IPv4 %v: what was cut parses as whole: %v", is4, err)
		}
	}
}

func TestICMPErrorIsNotSent(t *testing.T) {
	icmp := func(is4 bool, typ uint8) []byte {
		src, dst := addresses(is4)
		proto := ICMPv6
		if is4 {
			proto = ICMP
		}
		b := make([]byte, IPBytes(src)+ICMPBytes)
		n := PutIP(b, src, dst, proto, 0, ICMPBytes)
		b[n] = typ
		return b
	}
	between := func(src, dst string) []byte {
		b := udpPacket(netip.MustParseAddr(src).Is4(), noise(4))
		PutIP(b, netip.MustParseAddr(src), netip.MustParseAddr(dst), UDP, 0, UDPBytes+4)
		return b
	}
	fragmentOf := func(is4 bool, offset int, proto Protocol) []byte {
		src, dst := addresses(is4)
		p := IP{Src: src, Dst: dst, Protocol: proto, TTL: 1, More: true, Offset: offset, ID: 1}
		b := make([]byte, 100)
		n := p.Put(b, 16)
		return b[:n+16]
	}
	tests := []struct {
		name string
		kind ErrorKind
		pkt  []byte
		sent bool
	}{
		{"to a datagram", ErrorPort, udpPacket(true, nil), true},
		{"to an echo request", ErrorHost, icmp(true, ICMPEchoRequest), true},
		{"to an echo request, IPv6", ErrorHost, icmp(false, ICMPv6EchoRequest), true},
		{"to an unreachable", ErrorHost, icmp(true, 3), false},
		{"to a source quench", ErrorHost, icmp(true, 4), false},
		{"to a redirect", ErrorHost, icmp(true, 5), false},
		{"to a time exceeded", ErrorHost, icmp(true, 11), false},
		{"to a parameter problem", ErrorHost, icmp(true, 12), false},
		{"to an ICMPv6 error", ErrorHost, icmp(false, 1), false},
		{"to an unknown ICMPv6 error", ErrorHost, icmp(false, 127), false},
		{"to an ICMPv6 redirect", ErrorHost, icmp(false, 137), false},
		{"to a first fragment", ErrorHost, fragmentOf(true, 0, UDP), true},
		{"to a first fragment, IPv6", ErrorHost, fragmentOf(false, 0, UDP), true},
		{"to a later fragment", ErrorHost, fragmentOf(true, 8, UDP), false},
		{"to a later fragment, IPv6", ErrorHost, fragmentOf(false, 8, UDP), false},
		{"to a first fragment of who knows what", ErrorHost, fragmentOf(false, 0, destOptions), false},
		{"to multicast", ErrorPort, between("192.0.2.2", "224.0.0.251"), false},
		{"to broadcast", ErrorPort, between("192.0.2.2", "255.255.255.255"), false},
		{"to IPv6 multicast", ErrorPort, between("2001:db8::2", "ff02::fb"), false},
		{"to IPv6 multicast, too big", ErrorTooBig, between("2001:db8::2", "ff0e::1"), true},
		{"from nowhere", ErrorPort, between("0.0.0.0", "198.51.100.1"), false},
		{"from multicast", ErrorPort, between("224.0.0.1", "198.51.100.1"), false},
		{"from broadcast", ErrorPort, between("255.255.255.255", "198.51.100.1"), false},
		{"from loopback", ErrorPort, between("127.0.0.1", "198.51.100.1"), false},
		{"from the unspecified", ErrorPort, between("::", "2001:db8::1"), false},
		{"to garbage", ErrorPort, []byte{0x45, 1, 2}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			is4 := tt.pkt[0]>>4 == 4
			e := NewICMPError(tt.kind, is4, 1400)
			_, gateway := addresses(is4)
			n := PutICMPError(make([]byte, MaxICMPErrorBytes), &e, gateway, tt.pkt)
			if (n > 0) != tt.sent {
				t.Errorf("error of %d bytes, want one: %v", n, tt.sent)
			}
		})
	}
	e := NewICMPError(ErrorPort, false, 0)
	if n := PutICMPError(make([]byte, MaxICMPErrorBytes), &e, peer6, udpPacket(true, nil)); n != 0 {
		t.Error("an IPv6 host answers an IPv4 packet")
	}
}

func FuzzICMPError(f *testing.F) {
	for _, is4 := range []bool{true, false} {
		b := make([]byte, MaxICMPErrorBytes)
		_, gateway := addresses(is4)
		e := NewICMPError(ErrorTooBig, is4, 1280)
		n := PutICMPError(b, &e, gateway, udpPacket(is4, noise(600)))
		f.Add(b[:n])
		f.Add(udpPacket(is4, noise(600)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p IP
		if ParseIP(b, &p) == nil {
			var e ICMPError
			_ = ParseICMPError(p.Protocol, p.Payload, &e)
		}
		for _, is4 := range []bool{true, false} {
			_, gateway := addresses(is4)
			e := NewICMPError(ErrorPort, is4, 0)
			w := make([]byte, MaxICMPErrorBytes)
			n := PutICMPError(w, &e, gateway, b)
			if n == 0 {
				continue
			}
			var got ICMPError
			p := parse(t, w[:n])
			if err := ParseICMPError(p.Protocol, p.Payload, &got); err != nil {
				t.Errorf("our own error does not parse: %v", err)
			}
			if PutICMPError(make([]byte, MaxICMPErrorBytes), &e, gateway, w[:n]) != 0 {
				t.Error("an error is answered with an error")
			}
		}
	})
}

func TestICMPErrorAllocatesNothing(t *testing.T) {
	pkt, b := udpPacket(false, noise(2000)), make([]byte, MaxICMPErrorBytes)
	allocs := testing.AllocsPerRun(100, func() {
		e := NewICMPError(ErrorPort, false, 0)
		if PutICMPError(b, &e, peer6, pkt) == 0 {
			t.Fatal("no error")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}
