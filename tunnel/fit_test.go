package tunnel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"cleat/packet"
	"cleat/tunnel/sched"
)

// syn returns a SYN with the given options, padded. Its checksum is complete unless
// partial.
func syn(v6, partial bool, options []byte) []byte {
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	s := superPacket{v6: v6, proto: packet.TCP, flow: 1000, ttl: 64, flags: packet.SYN, options: options}
	vnet, pkt := s.build()
	if !partial {
		_ = vnet.CompleteChecksum(pkt)
	}
	return pkt
}

func TestClampMSS(t *testing.T) {
	tests := []struct {
		name    string
		options []byte
		at      int // offset of the MSS in the options; -1: none
		mss     uint16
	}{
		{"alone", []byte{2, 4, 5, 180}, 2, 1460},
		{"large", []byte{2, 4, 255, 215}, 2, 65495},
		{"after a NOP", []byte{1, 2, 4, 5, 180}, 3, 1460},
		{"after timestamps", []byte{8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 2, 4, 5, 180}, 12, 1460},
		{"after an option of odd length", []byte{3, 3, 7, 2, 4, 5, 180}, 5, 1460},
		{"small enough", []byte{2, 4, 2, 24}, 2, 536},
		{"none", []byte{1, 1, 3, 3}, -1, 0},
		{"after the end of options", []byte{0, 2, 4, 5, 180}, -1, 0},
		{"of wrong length", []byte{2, 5, 5, 180, 1}, -1, 0},
		{"after an option of length 0", []byte{3, 0, 2, 4, 5, 180}, -1, 0},
		{"truncated", []byte{1, 1, 2, 4}, -1, 0},
	}
	const limit = 1400
	for _, tt := range tests {
		for _, v6 := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, IPv6 %v, partial %v", tt.name, v6, partial), func(t *testing.T) {
					pkt := syn(v6, partial, bytes.Clone(tt.options))
					want := bytes.Clone(pkt)
					at := transportOffset(pkt)
					if most := uint16(limit - at - packet.TCPBytes); tt.at >= 0 && tt.mss > most {
						options := bytes.Clone(tt.options)
						binary.BigEndian.PutUint16(options[tt.at:], most)
						want = syn(v6, partial, options)
					}
					if clampMSS(pkt, limit, partial); !bytes.Equal(pkt, want) {
						t.Errorf("got\n% x, want\n% x", pkt, want)
					}
				})
			}
		}
	}
	t.Run("not a SYN", func(t *testing.T) {
		pkt := syn(false, false, []byte{2, 4, 5, 180})
		pkt[packet.IPv4Bytes+13] = packet.ACK
		want := bytes.Clone(pkt)
		if clampMSS(pkt, limit, false); !bytes.Equal(pkt, want) {
			t.Error("changed a packet that is not a SYN")
		}
	})
	t.Run("truncated at each byte", func(t *testing.T) {
		pkt := syn(true, false, []byte{1, 2, 4, 5, 180})
		for n := range pkt {
			clampMSS(bytes.Clone(pkt[:n]), limit, false)
		}
	})
}

// TestClampMSSOfEveryValue checks the checksum, which is updated rather than recomputed.
func TestClampMSSOfEveryValue(t *testing.T) {
	for mss := 1; mss < 1<<16; mss += 13 {
		for odd := range 2 {
			options := append(make([]byte, 0, 8), []byte{1, 1}[:odd]...)
			options = append(options, 2, 4, byte(mss>>8), byte(mss))
			pkt := syn(false, false, options)
			clampMSS(pkt, 700+mss%701, false)
			var ip packet.IP
			if packet.ParseIP(pkt, &ip) != nil || packet.TransportChecksum(ip.Src, ip.Dst, ip.Protocol, ip.Payload) != 0 {
				t.Fatalf("MSS of %d at offset %d: wrong checksum", mss, odd)
			}
		}
	}
}

// TestTooBig sends packets that are too big for paths of 1,400 bytes.
func TestTooBig(t *testing.T) {
	limit := 1400 - Overhead(false, false)
	fits := superPacket{proto: packet.UDP, flow: 1, ttl: 64, payload: make([]byte, limit-packet.IPv4Bytes-packet.UDPBytes)}
	big := fits
	big.payload = make([]byte, 3000)
	cuttable := big
	cuttable.fragmentable = true
	fits6, big6 := fits, big
	fits6.v6, fits6.payload, big6.v6 = true, fits.payload[:len(fits.payload)-20], true
	segments := superPacket{proto: packet.TCP, flow: 1, ttl: 64, flags: packet.ACK, size: 1400, payload: make([]byte, 5000), fragmentable: true}
	tests := []struct {
		name    string
		s       superPacket
		packets int
		refused bool
	}{
		{"largest", fits, 1, false},
		{"largest, IPv6", fits6, 1, false},
		{"DF", big, 0, true},
		{"without DF", cuttable, 3, false},
		{"IPv6", big6, 0, true},
		{"segments", segments, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
			e.oneLane()
			e.a.paths[0].mtu = 1400
			e.a.out.innerMTU = e.a.innerMTU()
			e.devA.provide(tt.s.deviceRead())
			if err := e.a.out.read(e.a.now()); err != nil {
				t.Fatal(err)
			}
			o := e.a.out
			n := 0
			for _, q := range o.queue.bulk.elements {
				if n += q.count; len(q.pkt) > limit {
					t.Errorf("a packet of %d bytes is queued, at most %d fit", len(q.pkt), limit)
				}
			}
			if n != tt.packets {
				t.Errorf("%d packets are queued, want %d", n, tt.packets)
			}
			answers := e.devA.readAll()
			if refused := e.a.stats.tooBig.Load() == 1 && len(answers) == 1; refused != tt.refused {
				t.Fatalf("refused: %v (%d answers), want %v", refused, len(answers), tt.refused)
			}
			if tt.refused {
				checkTooBig(t, answers[0], &tt.s, limit)
			}
			if kept := o.supply.entriesInUse(); kept != n {
				t.Errorf("%d entries are in use", kept)
			}
		})
	}
}

// checkTooBig checks an ICMP error (RFC 1191, RFC 8201).
func checkTooBig(t *testing.T, read []byte, s *superPacket, limit int) {
	t.Helper()
	b := read[packet.VNetHdrBytes:]
	var ip packet.IP
	if err := packet.ParseIP(b, &ip); err != nil {
		t.Fatal(err)
	}
	src, dst := s.addresses()
	if ip.Src != dst || ip.Dst != src {
		t.Errorf("from %v to %v", ip.Src, ip.Dst)
	}
	p := ip.Payload
	kind, sum, mtu := [2]byte{3, 4}, packet.Checksum(p), int(binary.BigEndian.Uint16(p[6:]))
	if s.v6 {
		kind, sum, mtu = [2]byte{2, 0}, packet.TransportChecksum(ip.Src, ip.Dst, packet.ICMPv6, p), int(binary.BigEndian.Uint32(p[4:]))
	}
	if [2]byte(p) != kind || sum != 0 || mtu != limit {
		t.Errorf("type and code %v, checksum off by %#x, MTU %d; want %v, 0, %d", p[:2], sum, mtu, kind, limit)
	}
}

// TestFragmentsAreWhole reassembles the fragments made by fit.
func TestFragmentsAreWhole(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	e.oneLane()
	s := superPacket{proto: packet.UDP, flow: 1, ttl: 64, id: 77, payload: make([]byte, 4000), fragmentable: true}
	for i := range s.payload {
		s.payload[i] = byte(i * 7)
	}
	e.a.out.innerMTU = 600
	e.devA.provide(s.deviceRead())
	if err := e.a.out.read(e.a.now()); err != nil {
		t.Fatal(err)
	}
	whole := make([]byte, packet.UDPBytes+len(s.payload))
	for _, q := range e.a.out.queue.bulk.elements {
		var ip packet.IP
		if err := packet.ParseIP(q.pkt, &ip); err != nil || ip.ID != 77 || packet.Checksum(q.pkt[:ip.HeaderBytes]) != 0 {
			t.Fatalf("%+v, %v", ip, err)
		}
		if end := ip.Offset + len(ip.Payload); ip.More != (end < len(whole)) {
			t.Errorf("the fragment up to %d of %d has more fragments: %v", end, len(whole), ip.More)
		}
		copy(whole[ip.Offset:], ip.Payload)
	}
	src, dst := s.addresses()
	if sum := packet.TransportChecksum(src, dst, packet.UDP, whole); sum != 0 || !bytes.Equal(whole[packet.UDPBytes:], s.payload) {
		t.Errorf("checksum is off by %#x, or the payload differs", sum)
	}
}

// TestMarkCE tests the column CE of the decapsulation table in RFC 6040 section 4.2.
func TestMarkCE(t *testing.T) {
	tests := []struct {
		name string
		ecn  uint8
		keep bool
	}{
		{"not ECT", 0, false},
		{"ECT(1)", 1, true},
		{"ECT(0)", 2, true},
		{"CE", 3, true},
	}
	for _, tt := range tests {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 %v", tt.name, v6), func(t *testing.T) {
				s := superPacket{v6: v6, proto: packet.UDP, ttl: 64, tos: 0xb8 | tt.ecn, payload: make([]byte, 9)}
				_, pkt := s.build()
				want := bytes.Clone(pkt)
				if tt.keep {
					s.tos = 0xb8 | 3
					_, want = s.build()
				}
				if keep := markCE(pkt); keep != tt.keep || !bytes.Equal(pkt, want) {
					t.Errorf("kept: %v, want %v;\n% x, want\n% x", keep, tt.keep, pkt[:20], want[:20])
				}
			})
		}
	}
	for n := range 45 {
		markCE(append([]byte{0x4f, 1}, make([]byte, n)...)) // a header longer than the packet
		markCE(append([]byte{0x60, 0x10}, make([]byte, n)...))
	}
}
