package packet

import (
	"bytes"
	"errors"
	"testing"
)

func TestGRE(t *testing.T) {
	tests := []struct {
		name string
		gre  GRE
		want []byte
	}{
		{"bare", GRE{Protocol: EtherTypeIPv4}, []byte{0, 0, 8, 0}},
		{"with a sequence number", GRE{Protocol: EtherTypeIPv6, HasSeq: true, Seq: 0x01020304}, []byte{0x10, 0, 0x86, 0xdd, 1, 2, 3, 4}},
		{"with key and sequence number", GRE{Protocol: EtherTypeIPv4, HasKey: true, Key: 7, HasSeq: true, Seq: 9},
			[]byte{0x30, 0, 8, 0, 0, 0, 0, 7, 0, 0, 0, 9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := make([]byte, tt.gre.Bytes())
			if n := tt.gre.Put(b); n != len(b) || !bytes.Equal(b, tt.want) {
				t.Fatalf("header is % x, want % x", b, tt.want)
			}
			var got GRE
			if n, err := ParseGRE(append(b, 0x45), &got); err != nil || n != len(b) || got != tt.gre {
				t.Errorf("read back %+v, %d bytes, %v; want %+v, %d", got, n, err, tt.gre, len(b))
			}
			for cut := range b {
				if _, err := ParseGRE(b[:cut], &got); !errors.Is(err, ErrShort) {
					t.Errorf("%d bytes of the header: %v, want ErrShort", cut, err)
				}
			}
		})
	}
}

func TestGRERefused(t *testing.T) {
	tests := []struct {
		name string
		b    []byte
	}{
		{"routing (RFC 1701)", []byte{0x40, 0, 8, 0}},
		{"version 1 (PPTP)", []byte{0, 1, 8, 0}},
		{"reserved bit", []byte{0x08, 0, 8, 0}},
		{"wrong checksum", []byte{0x80, 0, 8, 0, 1, 2, 0, 0, 0x45}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var g GRE
			if _, err := ParseGRE(tt.b, &g); !errors.Is(err, ErrBad) {
				t.Errorf("got %v, want ErrBad", err)
			}
		})
	}
	// The checksum covers header and payload (RFC 2784 section 2.5).
	b := []byte{0x80, 0, 8, 0, 0, 0, 0, 0, 0x45, 0x11}
	sum := Checksum(b)
	b[4], b[5] = byte(sum>>8), byte(sum)
	var g GRE
	if n, err := ParseGRE(b, &g); err != nil || n != 8 {
		t.Errorf("a right checksum: %d bytes, %v", n, err)
	}
}
