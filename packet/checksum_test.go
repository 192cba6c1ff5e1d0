package packet

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// slowSum is the definition in RFC 1071, one word at a time.
func slowSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		word := uint32(b[i]) << 8
		if i+1 < len(b) {
			word |= uint32(b[i+1])
		}
		sum += word
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return uint16(sum)
}

func TestChecksumKnown(t *testing.T) {
	tests := []struct {
		name string
		b    []byte
		want uint16
	}{
		{"nothing", nil, 0xffff},
		{"one byte", []byte{0x12}, ^uint16(0x1200)},
		{"the example of RFC 1071", []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}, ^uint16(0xddf2)},
		{"all ones", []byte{0xff, 0xff, 0xff, 0xff}, 0},
		{"a carry out of 64 bits", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1}, ^uint16(1)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Checksum(tt.b); got != tt.want {
				t.Errorf("checksum %#04x, want %#04x", got, tt.want)
			}
		})
	}
}

func TestSumOfPiecesIsSumOfWhole(t *testing.T) {
	b := noise(301)
	want := Fold(Sum(b, 0))
	for cut := 0; cut <= 300; cut += 2 {
		if got := Fold(Sum(b[cut:], Sum(b[:cut], 0))); got != want {
			t.Fatalf("cut at %d: %#04x, want %#04x", cut, got, want)
		}
	}
}

func FuzzSum(f *testing.F) {
	for _, n := range []int{0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 1500} {
		f.Add(noise(n))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, want := Fold(Sum(b, 0)), slowSum(b)
		// 0 and 0xffff are the same number; the order decides which one results.
		if got != want && (got%0xffff != 0 || want%0xffff != 0) {
			t.Errorf("sum %#04x, want %#04x", got, want)
		}
	})
}

func TestCompleteChecksum(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		for _, payload := range []int{0, 1, 1400} {
			t.Run(fmt.Sprintf("IPv4 %v, %d bytes", is4, payload), func(t *testing.T) {
				for _, pkt := range [][]byte{udpPacket(is4, noise(payload)), tcpPacket(is4, ACK, noise(payload))} {
					p := parse(t, pkt)
					h := VNetHdr{Flags: NeedsChecksum, ChecksumStart: uint16(p.HeaderBytes), ChecksumOffset: UDPChecksumOffset}
					if p.Protocol == TCP {
						h.ChecksumOffset = TCPChecksumOffset
					}
					pseudo := Fold(PseudoSum(p.Src, p.Dst, p.Protocol, len(p.Payload)))
					binary.BigEndian.PutUint16(p.Payload[h.ChecksumOffset:], pseudo)
					if err := h.CompleteChecksum(pkt); err != nil {
						t.Fatal(err)
					}
					parse(t, pkt)
				}
			})
		}
	}
}

func TestCompleteChecksumOutside(t *testing.T) {
	tests := []struct {
		name string
		h    VNetHdr
		want error
	}{
		{"not asked for", VNetHdr{ChecksumStart: 0xffff, ChecksumOffset: 0xffff}, nil},
		{"begins outside", VNetHdr{Flags: NeedsChecksum, ChecksumStart: 31}, ErrBad},
		{"ends outside", VNetHdr{Flags: NeedsChecksum, ChecksumStart: 20, ChecksumOffset: 9}, ErrBad},
		{"the very last word", VNetHdr{Flags: NeedsChecksum, ChecksumStart: 20, ChecksumOffset: 8}, nil},
		{"as far as numbers go", VNetHdr{Flags: NeedsChecksum, ChecksumStart: 0xffff, ChecksumOffset: 0xffff}, ErrBad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.h.CompleteChecksum(make([]byte, 30)); err != tt.want {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestZeroUDPChecksumIsSentAsOnes(t *testing.T) {
	pkt := udpPacket(true, []byte{0, 0})
	p := parse(t, pkt)
	// Choose the payload so that the sum is 0.
	p.Payload[UDPChecksumOffset], p.Payload[UDPChecksumOffset+1] = 0, 0
	binary.BigEndian.PutUint16(p.Payload[UDPBytes:], TransportChecksum(p.Src, p.Dst, UDP, p.Payload))
	binary.BigEndian.PutUint16(p.Payload[UDPChecksumOffset:], Fold(PseudoSum(p.Src, p.Dst, UDP, len(p.Payload))))
	h := VNetHdr{Flags: NeedsChecksum, ChecksumStart: IPv4Bytes, ChecksumOffset: UDPChecksumOffset}
	if err := h.CompleteChecksum(pkt); err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint16(p.Payload[UDPChecksumOffset:]); got != 0xffff {
		t.Errorf("checksum field %#04x, want 0xffff: 0 would say that there is none", got)
	}
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{20, 64, 1500, 65535} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			buf := noise(n)
			b.SetBytes(int64(n))
			for b.Loop() {
				Sum(buf, 0)
			}
		})
	}
}
