package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// superHeader returns the virtio header of a super-packet made by udpPacket or tcpPacket.
func superHeader(pkt []byte, size int) VNetHdr {
	var p IP
	if ParseIP(pkt, &p) != nil {
		panic("not a packet")
	}
	h := VNetHdr{Flags: NeedsChecksum, GSOType: GSOUDP, GSOSize: uint16(size),
		ChecksumStart: uint16(p.HeaderBytes), ChecksumOffset: UDPChecksumOffset}
	if p.Protocol == TCP {
		h.GSOType, h.ChecksumOffset = GSOTCPv4, TCPChecksumOffset
		if p.Src.Is6() {
			h.GSOType = GSOTCPv6
		}
	}
	return h
}

// split returns all packets of a Splitter.
func split(t *testing.T, h *VNetHdr, pkt []byte) [][]byte {
	t.Helper()
	var s Splitter
	if err := s.Start(h, pkt); err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	b := make([]byte, s.MaxBytes())
	for n := s.Next(b); n > 0; n = s.Next(b) {
		all = append(all, slices.Clone(b[:n]))
	}
	if n := s.Next(b); n != 0 {
		t.Errorf("another packet of %d bytes after the end", n)
	}
	return all
}

// slowSplit is the simple twin of Splitter for super-packets without IP options: it
// builds each segment with the functions that write headers.
func slowSplit(h *VNetHdr, pkt []byte) [][]byte {
	var p IP
	if ParseIP(pkt, &p) != nil {
		panic("not a packet")
	}
	header := UDPBytes
	var tcp TCPHeader
	if p.Protocol == TCP {
		if ParseTCP(p.Payload, &tcp) != nil {
			panic("not a segment")
		}
		header = TCPBytes + len(tcp.Options)
	}
	payload := p.Payload[header:]
	var all [][]byte
	for at := 0; at < len(payload) || at == 0; at += int(h.GSOSize) {
		piece := payload[at:min(at+int(h.GSOSize), len(payload))]
		ip := p
		if p.Src.Is4() {
			ip.ID = uint32(uint16(p.ID) + uint16(len(all)))
		}
		b := make([]byte, 40+60+len(piece))
		n := ip.Put(b, header+len(piece))
		b = b[:n+header+len(piece)]
		seg := b[n:]
		copy(seg, p.Payload[:header])
		copy(seg[header:], piece)
		field := UDPChecksumOffset
		if p.Protocol == TCP {
			field = TCPChecksumOffset
			binary.BigEndian.PutUint32(seg[4:], tcp.Seq+uint32(at))
			if at > 0 {
				seg[13] &^= CWR
			}
			if at+int(h.GSOSize) < len(payload) {
				seg[13] &^= FIN | PSH
			}
		} else {
			binary.BigEndian.PutUint16(seg[4:], uint16(len(seg)))
		}
		seg[field], seg[field+1] = 0, 0
		sum := TransportChecksum(p.Src, p.Dst, p.Protocol, seg)
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(seg[field:], sum)
		all = append(all, b)
	}
	return all
}

func TestSplit(t *testing.T) {
	const flags = FIN | PSH | CWR | ACK
	tests := []struct {
		name    string
		payload int
		size    int
		want    int // packets
	}{
		{"a multiple", 3000, 1000, 3},
		{"a rest", 3001, 1000, 4},
		{"less than one", 999, 1000, 1},
		{"empty", 0, 1000, 1},
		{"as much as goes", 65000, 1448, 45},
		{"one byte each", 300, 1, 300},
	}
	for _, tt := range tests {
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, IPv4 %v", tt.name, is4), func(t *testing.T) {
				payload := noise(tt.payload)
				for _, pkt := range [][]byte{udpPacket(is4, payload), tcpPacket(is4, flags, payload)} {
					h := superHeader(pkt, tt.size)
					got := split(t, &h, pkt)
					if len(got) != tt.want {
						t.Fatalf("%d packets, want %d", len(got), tt.want)
					}
					var joined []byte
					for i, b := range got {
						p := parse(t, b)
						if p.Protocol == UDP {
							joined = append(joined, p.Payload[UDPBytes:]...)
							continue
						}
						var seg TCPHeader
						if err := ParseTCP(p.Payload, &seg); err != nil {
							t.Fatal(err)
						}
						if seg.Seq != 0xfffffff0+uint32(len(joined)) {
							t.Errorf("segment %d begins at %d", i, seg.Seq)
						}
						if first, last := seg.Flags&CWR != 0, seg.Flags&FIN != 0; first != (i == 0) || last != (i == len(got)-1) {
							t.Errorf("segment %d of %d has flags %#x", i, len(got), seg.Flags)
						}
						joined = append(joined, seg.Payload...)
					}
					if !bytes.Equal(joined, payload) {
						t.Error("payload changed")
					}
				}
			})
		}
	}
}

func TestSplitWithoutGSO(t *testing.T) {
	pkt := udpPacket(true, noise(100))
	want := slices.Clone(pkt)
	h := superHeader(pkt, 0)
	h.GSOType = GSONone
	binary.BigEndian.PutUint16(pkt[IPv4Bytes+UDPChecksumOffset:], Fold(PseudoSum(guest4, peer4, UDP, UDPBytes+100)))
	got := split(t, &h, pkt)
	if len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Errorf("a plain packet became %d others", len(got))
	}
}

func TestSplitErrors(t *testing.T) {
	udp, tcp6 := udpPacket(true, noise(100)), tcpPacket(false, ACK, noise(100))
	with := func(pkt []byte, change func(*VNetHdr)) VNetHdr {
		h := superHeader(pkt, 10)
		change(&h)
		return h
	}
	tests := []struct {
		name string
		h    VNetHdr
		pkt  []byte
		want error
	}{
		{"segments of 0 bytes", with(udp, func(h *VNetHdr) { h.GSOSize = 0 }), udp, ErrBad},
		{"another protocol", with(udp, func(h *VNetHdr) { h.GSOType = GSOTCPv4 }), udp, ErrBad},
		{"another version", with(tcp6, func(h *VNetHdr) { h.GSOType = GSOTCPv4 }), tcp6, ErrBad},
		{"an unknown type", with(udp, func(h *VNetHdr) { h.GSOType = 3 }), udp, ErrBad},
		{"cut", with(udp, func(*VNetHdr) {}), udp[:50], ErrShort},
		{"a fragment", with(udp, func(*VNetHdr) {}), changed(udp, 6, 0x20), ErrBad},
		{"no room for UDP", with(udp, func(*VNetHdr) {}), changed(udp, 2, 0, 27), ErrShort},
		{"no room for TCP", with(tcp6, func(*VNetHdr) {}), changed(tcp6, 4, 0, 19), ErrShort},
		{"checksum outside", with(udp, func(h *VNetHdr) { h.GSOType, h.ChecksumStart = GSONone, 200 }), udp, ErrBad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s Splitter
			if err := s.Start(&tt.h, tt.pkt); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if n := s.Next(make([]byte, 200)); n != 0 {
				t.Errorf("%d bytes of a packet that is none", n)
			}
		})
	}
}

// FuzzSplit compares Splitter with slowSplit where that one works: no IP options, no
// extension headers.
func FuzzSplit(f *testing.F) {
	for _, is4 := range []bool{true, false} {
		for _, pkt := range [][]byte{udpPacket(is4, noise(500)), tcpPacket(is4, FIN|CWR|ACK, noise(500))} {
			h := superHeader(pkt, 99)
			v := make([]byte, VNetHdrBytes)
			h.Put(v)
			f.Add(append(v, pkt...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h VNetHdr
		var s Splitter
		if h.Parse(b) != nil || s.Start(&h, b[VNetHdrBytes:]) != nil {
			return
		}
		pkt := b[VNetHdrBytes:]
		buf := make([]byte, s.MaxBytes())
		var p IP
		plain := h.GSOType != GSONone && ParseIP(pkt, &p) == nil && p.HeaderBytes == IPBytes(p.Src)
		var want [][]byte
		if plain {
			want = slowSplit(&h, clearHeader(pkt))
		}
		count := 0
		for n := s.Next(buf); n > 0; n = s.Next(buf) {
			if plain && (count >= len(want) || !bytes.Equal(clearHeader(buf[:n]), want[count])) {
				t.Fatalf("packet %d differs from the slow twin's", count)
			}
			if count++; count > 1<<16 {
				t.Fatal("no end")
			}
		}
		if plain && count != len(want) {
			t.Errorf("%d packets, the slow twin made %d", count, len(want))
		}
	})
}

// clearHeader zeroes what the functions that write headers do not keep: the flow label
// and the reserved flag.
func clearHeader(b []byte) []byte {
	b = slices.Clone(b)
	if b[0]>>4 == 6 {
		b[1], b[2], b[3] = b[1]&0xf0, 0, 0
		return b
	}
	b[6] &= 0x7f
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], Checksum(b[:IPv4Bytes]))
	return b
}

func TestSplitAllocatesNothing(t *testing.T) {
	pkt := udpPacket(true, noise(60000))
	h := superHeader(pkt, 1400)
	b := make([]byte, 2000)
	allocs := testing.AllocsPerRun(10, func() {
		var s Splitter
		if err := s.Start(&h, pkt); err != nil {
			t.Fatal(err)
		}
		for s.Next(b) > 0 {
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func BenchmarkSplit(b *testing.B) {
	pkt := tcpPacket(true, ACK, noise(65000))
	h := superHeader(pkt, 1448)
	buf := make([]byte, 2000)
	b.SetBytes(65000)
	for b.Loop() {
		var s Splitter
		if s.Start(&h, pkt) != nil {
			b.Fatal("does not start")
		}
		for s.Next(buf) > 0 {
		}
	}
}
