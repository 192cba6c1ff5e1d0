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

// wirePacket is a packet as it arrives by a path.
type wirePacket struct {
	b       []byte
	partial bool
}

// withChecksum returns the packet with a complete checksum.
func (w wirePacket) withChecksum() []byte {
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

// segments returns the packets of a super-packet.
func (s *superPacket) segments(t testing.TB, partial bool) []wirePacket {
	t.Helper()
	vnet, pkt := s.build()
	var split packet.Splitter
	if err := split.Start(&vnet, pkt); err != nil {
		t.Fatal(err)
	}
	var all []wirePacket
	for i := range split.Len() {
		b := make([]byte, split.Bytes(i))
		n, payload := split.Segment(b, i, partial)
		copy(b[n:], payload)
		w := wirePacket{b, partial}
		if s.size == 0 && !partial { // Segment returns it unchanged
			w.b = wirePacket{b, true}.withChecksum()
		}
		all = append(all, w)
	}
	return all
}

// mergeAll returns what a merger writes to the device.
func mergeAll(t testing.TB, pieces []wirePacket) [][]byte {
	t.Helper()
	dev := newDevice(t)
	defer dev.close()
	var m merger
	m.t = &Tunnel{cfg: Config{Device: dev.fd}}
	var out [][]byte
	for _, p := range pieces {
		tag := uint8(0)
		if p.partial {
			tag = wire.Partial
		}
		m.Deliver(order.Packet{Data: bytes.Clone(p.b), Tag: tag})
		out = append(out, dev.readAll()...)
	}
	m.flush()
	out = append(out, dev.readAll()...)
	if n := m.t.stats.writeErrors.Load(); n > 0 {
		t.Fatalf("%d writes failed", n)
	}
	return out
}

// checkMerged checks that what a merger writes stands for the same packets, and returns
// the number of writes.
func checkMerged(t testing.TB, pieces []wirePacket) (writes int) {
	t.Helper()
	written := mergeAll(t, pieces)
	var got [][]byte
	for _, w := range written {
		if len(w) > 1<<16 {
			t.Errorf("wrote a packet of %d bytes", len(w))
		}
		got = append(got, splitRead(t, w)...)
	}
	if len(got) != len(pieces) {
		t.Fatalf("%d packets were written, want %d", len(got), len(pieces))
	}
	for i, p := range pieces {
		if want := p.withChecksum(); !bytes.Equal(withoutID(got[i]), withoutID(want)) {
			t.Fatalf("packet %d of %d was written as\n% x…, want\n% x…", i, len(pieces), got[i][:min(len(got[i]), 90)], want[:min(len(want), 90)])
		}
	}
	return len(written)
}

// withoutID clears a packet's ID if that has no meaning: not fragmented, and not to be
// fragmented (RFC 6864 section 4.1).
func withoutID(b []byte) []byte {
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
	payload := randomBytes(rand.New(rand.NewPCG(1, 1)), 1<<16)
	tests := []struct {
		name   string
		super  superPacket
		writes int
	}{
		{"TCP", superPacket{proto: packet.TCP, flags: packet.ACK, size: 1448, payload: payload[:20000]}, 1},
		{"TCP with options and PSH", superPacket{proto: packet.TCP, flags: packet.ACK | packet.PSH, options: stamps, size: 1000, payload: payload[:20000]}, 1},
		{"TCP with FIN", superPacket{proto: packet.TCP, flags: packet.ACK | packet.FIN, size: 1000, payload: payload[:2500]}, 2},
		{"TCP with CWR", superPacket{proto: packet.TCP, flags: packet.ACK | packet.CWR, size: 1000, payload: payload[:3000]}, 2},
		{"TCP with ECE", superPacket{proto: packet.TCP, flags: packet.ACK | packet.ECE, size: 1000, payload: payload[:3000]}, 3},
		{"TCP, sequence numbers wrap", superPacket{proto: packet.TCP, flags: packet.ACK, seq: 1<<32 - 1500, size: 1000, payload: payload[:3000]}, 1},
		{"TCP, 64 KiB", superPacket{proto: packet.TCP, flags: packet.ACK, size: 1200, payload: payload[:65400]}, 2},
		{"UDP", superPacket{proto: packet.UDP, size: 1200, payload: payload[:20000]}, 1},
		{"UDP, 1 byte each", superPacket{proto: packet.UDP, size: 1, payload: payload[:100]}, 2},
		{"one packet", superPacket{proto: packet.UDP, payload: payload[:100]}, 1},
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
					if n := checkMerged(t, s.segments(t, partial)); n != tt.writes {
						t.Errorf("%d writes, want %d", n, tt.writes)
					}
				})
			}
		}
	}
}

// TestMergeApart checks that unrelated packets are not merged.
func TestMergeApart(t *testing.T) {
	tcp := superPacket{proto: packet.TCP, flow: 1000, ttl: 64, tos: 2, flags: packet.ACK, seq: 1000, size: 100, payload: make([]byte, 200), options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}}
	udp := superPacket{proto: packet.UDP, flow: 1000, ttl: 64, tos: 2, size: 100, payload: make([]byte, 200)}
	tests := []struct {
		name   string
		first  superPacket
		change func(s *superPacket)
	}{
		{"another TCP flow", tcp, func(s *superPacket) { s.flow++ }},
		{"another UDP flow", udp, func(s *superPacket) { s.flow++ }},
		{"a gap", tcp, func(s *superPacket) { s.seq++ }},
		{"out of order", tcp, func(s *superPacket) { s.seq -= 100 }},
		{"another TTL", tcp, func(s *superPacket) { s.ttl-- }},
		{"another TTL of UDP", udp, func(s *superPacket) { s.ttl-- }},
		{"another TOS", tcp, func(s *superPacket) { s.tos = 3 }},
		{"another TOS of UDP", udp, func(s *superPacket) { s.tos = 3 }},
		{"different timestamps", tcp, func(s *superPacket) { s.options = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 3} }},
		{"different window", tcp, func(s *superPacket) { s.window++ }},
		{"no options", tcp, func(s *superPacket) { s.options = nil }},
		{"larger segments", udp, func(s *superPacket) { s.payload, s.size = make([]byte, 202), 101 }},
		{"different IP version", udp, func(s *superPacket) { s.v6 = !s.v6 }},
	}
	for _, tt := range tests {
		for _, v6 := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, IPv6 %v, partial %v", tt.name, v6, partial), func(t *testing.T) {
					tt.first.v6 = v6
					next := tt.first
					next.seq, next.id = next.seq+200, next.id+2
					same := append(tt.first.segments(t, partial), next.segments(t, partial)...)
					if n := checkMerged(t, same); n != 1 {
						t.Fatalf("%d writes without a change, want 1", n)
					}
					tt.change(&next)
					if n := checkMerged(t, append(tt.first.segments(t, partial), next.segments(t, partial)...)); n != 2 {
						t.Errorf("%d writes, want 2", n)
					}
				})
			}
		}
	}
	t.Run("IDs without DF", func(t *testing.T) {
		first := udp
		first.fragmentable = true
		next := first
		for id, want := range []int{2, 2, 1, 2} {
			next.id = uint16(id)
			if n := checkMerged(t, append(first.segments(t, true), next.segments(t, true)...)); n != want {
				t.Errorf("%d writes with an ID of %d, want %d", n, id, want)
			}
		}
	})
	t.Run("partial and complete", func(t *testing.T) {
		next := udp
		if n := checkMerged(t, append(udp.segments(t, true), next.segments(t, false)...)); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
}

// TestMergeKeepsCorruption flips each bit of headers and some of the payload: merging must
// not repair a corrupt packet.
func TestMergeKeepsCorruption(t *testing.T) {
	for _, proto := range []packet.Protocol{packet.TCP, packet.UDP} {
		for _, v6 := range []bool{false, true} {
			s := superPacket{v6: v6, proto: proto, flow: 1000, ttl: 64, flags: packet.ACK, size: 50, payload: make([]byte, 150)}
			for i := range 3 {
				for bit := range 8 * len(s.segments(t, false)[i].b) {
					pieces := s.segments(t, false)
					pieces[i].b[bit/8] ^= 1 << (bit % 8)
					if hasIPVersion(pieces[i].b) {
						checkMerged(t, pieces)
					}
				}
			}
		}
	}
}

// hasIPVersion reports whether a kernel would accept a packet of that size.
func hasIPVersion(b []byte) bool { return b[0]>>4 == 4 || b[0]>>4 == 6 }

func TestMergeInvalid(t *testing.T) {
	s := superPacket{proto: packet.UDP, flow: 1, ttl: 64, size: 50, payload: make([]byte, 100)}
	pieces := s.segments(t, false)
	none := s.segments(t, false)
	for _, p := range none { // no checksum (RFC 768)
		binary.BigEndian.PutUint16(p.b[packet.IPv4Bytes+packet.UDPChecksumOffset:], 0)
	}
	checkMerged(t, append(append(pieces, wirePacket{b: []byte{0x45}}, wirePacket{b: []byte("neither")}), none...))
	if got := mergeAll(t, []wirePacket{{b: nil}}); len(got) > 0 {
		t.Errorf("an empty packet is written as % x", got)
	}
}

// FuzzMerge delivers packets of several flows mixed, lost, swapped and corrupted.
func FuzzMerge(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, harm uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(harm)))
		var pieces []wirePacket
		s := randomSuperPacket(r)
		for range 1 + r.IntN(3) {
			pieces = append(pieces, s.segments(t, r.IntN(2) == 0)...)
			if s.seq += uint32(len(s.payload)); r.IntN(2) == 0 {
				s = randomSuperPacket(r)
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
