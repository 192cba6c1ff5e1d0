package tunnel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"cleat/packet"
	"cleat/tunnel/order"
	"cleat/tunnel/wire"
)

// onWire is a packet as a path brings it.
type onWire struct {
	b       []byte
	partial bool
}

// whole is the packet with its checksum.
func (w onWire) whole() []byte {
	b := bytes.Clone(w.b)
	if !w.partial {
		return b
	}
	at, proto := packet.IPv4Bytes, b[9]
	if b[0]>>4 == 6 {
		at, proto = packet.IPv6Bytes, b[6]
	}
	vnet := packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(at), ChecksumOffset: packet.TCPChecksumOffset}
	if packet.Protocol(proto) == packet.UDP {
		vnet.ChecksumOffset = packet.UDPChecksumOffset
	}
	_ = vnet.CompleteChecksum(b)
	return b
}

// cut is what a super-packet is on the way.
func (s *super) cut(t testing.TB, partial bool) []onWire {
	t.Helper()
	vnet, pkt := s.build()
	var split packet.Splitter
	if err := split.Start(&vnet, pkt); err != nil {
		t.Fatal(err)
	}
	var all []onWire
	for i := range split.Len() {
		b := make([]byte, split.Bytes(i))
		n, payload := split.Segment(b, i, partial)
		copy(b[n:], payload)
		w := onWire{b, partial}
		if s.size == 0 && !partial { // Segment gives it as it came
			w.b = onWire{b, true}.whole()
		}
		all = append(all, w)
	}
	return all
}

// merged is what a merger writes to the device.
func merged(t testing.TB, pieces []onWire) [][]byte {
	t.Helper()
	dev := newDevice(t)
	defer dev.close()
	var m merger
	m.init(&Tunnel{cfg: Config{Device: dev.fd}})
	var out [][]byte
	for _, p := range pieces {
		tag := uint8(0)
		if p.partial {
			tag = wire.Partial
		}
		m.Deliver(order.Packet{Data: bytes.Clone(p.b), Tag: tag})
		out = append(out, dev.written()...)
	}
	m.flush()
	out = append(out, dev.written()...)
	if n := m.t.stats.writeErrors.Load(); n > 0 {
		t.Fatalf("%d writes failed", n)
	}
	return out
}

// checkMerged fails the test unless what a merger writes stands for the same packets.
func checkMerged(t testing.TB, pieces []onWire) (writes int) {
	t.Helper()
	written := merged(t, pieces)
	var got [][]byte
	for _, w := range written {
		if len(w) > 1<<16 {
			t.Errorf("wrote a packet of %d bytes", len(w))
		}
		got = append(got, splits(t, w)...)
	}
	if len(got) != len(pieces) {
		t.Fatalf("%d packets came out, want %d", len(got), len(pieces))
	}
	for i, p := range pieces {
		if want := p.whole(); !bytes.Equal(anonymous(got[i]), anonymous(want)) {
			t.Fatalf("packet %d of %d came out as\n% x…, want\n% x…", i, len(pieces), got[i][:min(len(got[i]), 90)], want[:min(len(want), 90)])
		}
	}
	return len(written)
}

// anonymous is a packet without its ID where that says nothing: not fragmented and not
// to be (RFC 6864 section 4.1).
func anonymous(b []byte) []byte {
	if len(b) < packet.IPv4Bytes || b[0] != 0x45 || b[6]&0x40 == 0 || packet.Checksum(b[:packet.IPv4Bytes]) != 0 {
		return b
	}
	b = bytes.Clone(b)
	clear(b[4:6])
	clear(b[10:12])
	return b
}

func TestMerge(t *testing.T) {
	stamps := []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	payload := noise(rand.New(rand.NewPCG(1, 1)), 1<<16)
	tests := []struct {
		name   string
		super  super
		writes int
	}{
		{"TCP", super{proto: packet.TCP, flags: packet.ACK, size: 1448, payload: payload[:20000]}, 1},
		{"TCP with options and PSH", super{proto: packet.TCP, flags: packet.ACK | packet.PSH, options: stamps, size: 1000, payload: payload[:20000]}, 1},
		{"TCP that ends", super{proto: packet.TCP, flags: packet.ACK | packet.FIN, size: 1000, payload: payload[:2500]}, 2},
		{"TCP whose window was reduced", super{proto: packet.TCP, flags: packet.ACK | packet.CWR, size: 1000, payload: payload[:3000]}, 2},
		{"TCP that echoes congestion", super{proto: packet.TCP, flags: packet.ACK | packet.ECE, size: 1000, payload: payload[:3000]}, 3},
		{"TCP around 0", super{proto: packet.TCP, flags: packet.ACK, seq: 1<<32 - 1500, size: 1000, payload: payload[:3000]}, 1},
		{"TCP, 64 KiB", super{proto: packet.TCP, flags: packet.ACK, size: 1200, payload: payload[:65400]}, 2},
		{"UDP", super{proto: packet.UDP, size: 1200, payload: payload[:20000]}, 1},
		{"UDP of 1 byte each", super{proto: packet.UDP, size: 1, payload: payload[:100]}, 2},
		{"one packet", super{proto: packet.UDP, payload: payload[:100]}, 1},
	}
	for _, tt := range tests {
		for _, v6 := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, IPv6 %v, partial %v", tt.name, v6, partial), func(t *testing.T) {
					s := tt.super
					s.v6, s.flow, s.ttl, s.id = v6, 1000, 64, 0xfff0
					if len(s.payload) > 65000 && !v6 {
						s.payload = s.payload[:65300]
					}
					if n := checkMerged(t, s.cut(t, partial)); n != tt.writes {
						t.Errorf("%d writes, want %d", n, tt.writes)
					}
				})
			}
		}
	}
}

// TestMergeApart has packets follow each other that must not be joined.
func TestMergeApart(t *testing.T) {
	tcp := super{proto: packet.TCP, flow: 1000, ttl: 64, tos: 2, flags: packet.ACK, seq: 1000, size: 100, payload: make([]byte, 200), options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}}
	udp := super{proto: packet.UDP, flow: 1000, ttl: 64, tos: 2, size: 100, payload: make([]byte, 200)}
	tests := []struct {
		name   string
		first  super
		change func(s *super)
	}{
		{"another TCP flow", tcp, func(s *super) { s.flow++ }},
		{"another UDP flow", udp, func(s *super) { s.flow++ }},
		{"a gap", tcp, func(s *super) { s.seq++ }},
		{"out of order", tcp, func(s *super) { s.seq -= 100 }},
		{"another TTL", tcp, func(s *super) { s.ttl-- }},
		{"another TTL of UDP", udp, func(s *super) { s.ttl-- }},
		{"another TOS", tcp, func(s *super) { s.tos = 3 }},
		{"another TOS of UDP", udp, func(s *super) { s.tos = 3 }},
		{"other timestamps", tcp, func(s *super) { s.options = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 3} }},
		{"another window", tcp, func(s *super) { s.window++ }},
		{"no options", tcp, func(s *super) { s.options = nil }},
		{"larger segments", udp, func(s *super) { s.payload, s.size = make([]byte, 202), 101 }},
		{"the other version", udp, func(s *super) { s.v6 = !s.v6 }},
	}
	for _, tt := range tests {
		for _, v6 := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, IPv6 %v, partial %v", tt.name, v6, partial), func(t *testing.T) {
					tt.first.v6 = v6
					next := tt.first
					next.seq, next.id = next.seq+200, next.id+2
					same := append(tt.first.cut(t, partial), next.cut(t, partial)...)
					if n := checkMerged(t, same); n != 1 {
						t.Fatalf("without a change: %d writes", n)
					}
					tt.change(&next)
					if n := checkMerged(t, append(tt.first.cut(t, partial), next.cut(t, partial)...)); n != 2 {
						t.Errorf("%d writes, want 2", n)
					}
				})
			}
		}
	}
	t.Run("an ID of its own without DF", func(t *testing.T) {
		first := udp
		first.cuttable = true
		next := first
		for id, want := range []int{2, 2, 1, 2} {
			next.id = uint16(id)
			if n := checkMerged(t, append(first.cut(t, true), next.cut(t, true)...)); n != want {
				t.Errorf("%d writes with an ID of %d, want %d", n, id, want)
			}
		}
	})
	t.Run("partial and complete", func(t *testing.T) {
		next := udp
		if n := checkMerged(t, append(udp.cut(t, true), next.cut(t, false)...)); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
}

// TestMergeKeepsMistakes flips each bit of headers and some of the payload: joining must
// not repair what is wrong.
func TestMergeKeepsMistakes(t *testing.T) {
	for _, proto := range []packet.Protocol{packet.TCP, packet.UDP} {
		for _, v6 := range []bool{false, true} {
			s := super{v6: v6, proto: proto, flow: 1000, ttl: 64, flags: packet.ACK, size: 50, payload: make([]byte, 150)}
			for i := range 3 {
				for bit := range 8 * len(s.cut(t, false)[i].b) {
					pieces := s.cut(t, false)
					pieces[i].b[bit/8] ^= 1 << (bit % 8)
					if readable(pieces[i].b) {
						checkMerged(t, pieces)
					}
				}
			}
		}
	}
}

// readable tells whether a kernel would take a packet of that size.
func readable(b []byte) bool { return b[0]>>4 == 4 || b[0]>>4 == 6 }

func TestMergeStrange(t *testing.T) {
	s := super{proto: packet.UDP, flow: 1, ttl: 64, size: 50, payload: make([]byte, 100)}
	pieces := s.cut(t, false)
	none := s.cut(t, false)
	for _, p := range none { // no checksum at all (RFC 768)
		binary.BigEndian.PutUint16(p.b[packet.IPv4Bytes+packet.UDPChecksumOffset:], 0)
	}
	checkMerged(t, append(append(pieces, onWire{b: []byte{0x45}}, onWire{b: []byte("neither")}), none...))
	if got := merged(t, []onWire{{b: nil}}); len(got) > 0 {
		t.Errorf("nothing is written as % x", got)
	}
}

// FuzzMerge delivers packets of some flows mixed, lost, swapped and corrupted.
func FuzzMerge(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, harm uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(harm)))
		var pieces []onWire
		s := randomSuper(r)
		for range 1 + r.IntN(3) {
			pieces = append(pieces, s.cut(t, r.IntN(2) == 0)...)
			if s.seq += uint32(len(s.payload)); r.IntN(2) == 0 {
				s = randomSuper(r)
			}
		}
		for range harm % 8 {
			i, j := r.IntN(len(pieces)), r.IntN(len(pieces))
			switch p := pieces[i]; {
			case r.IntN(3) == 0:
				pieces[i], pieces[j] = pieces[j], pieces[i]
			case len(pieces) > 1 && r.IntN(3) == 0:
				pieces = append(pieces[:i], pieces[i+1:]...)
			case p.partial:
				p.b[len(p.b)-1] ^= 1
			default:
				p.b[4+r.IntN(len(p.b)-4)] ^= 1 << r.IntN(8)
			}
		}
		checkMerged(t, pieces)
	})
}
