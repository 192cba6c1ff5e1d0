package wire

import (
	"bytes"
	"errors"
	"testing"

	"cleat/packet"
)

func TestShim(t *testing.T) {
	tests := []struct {
		name string
		shim Shim
		want []byte
	}{
		{"zero", Shim{}, append([]byte{0x10, 0, 0x88, 0xb5}, make([]byte, 16)...)},
		{"data", Shim{Seq: 0x01020304, Kind: Data, Epoch: 3, Flags: Partial | Datagram, Path: 5, Before: 0x0607, PathSeq: 0x08090a0b, Time: 0x0c0d0e0f},
			[]byte{0x10, 0, 0x88, 0xb5, 1, 2, 3, 4, 0x0f, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
		{"sent again", Shim{Kind: Again, Flags: Partial, Path: 63},
			[]byte{0x10, 0, 0x88, 0xb5, 0, 0, 0, 0, 0x11, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"hello", Shim{Kind: Hello, Epoch: 1, Path: 255, Time: 1<<32 - 1},
			[]byte{0x10, 0, 0x88, 0xb5, 0, 0, 0, 0, 0x44, 255, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := bytes.Repeat([]byte{0xee}, HeaderBytes+1)
			if tt.shim.Put(b); !bytes.Equal(b[:HeaderBytes], tt.want) || b[HeaderBytes] != 0xee {
				t.Fatalf("header is % x, want % x and nothing behind it", b, tt.want)
			}
			var got Shim
			if err := got.Parse(b); err != nil || got != tt.shim {
				t.Errorf("read back %+v, %v; want %+v", got, err, tt.shim)
			}
			for cut := range HeaderBytes {
				if err := got.Parse(b[:cut]); !errors.Is(err, ErrNotNative) {
					t.Errorf("%d bytes of the header: %v, want ErrNotNative", cut, err)
				}
			}
			Stamp(b, 77)
			if err := got.Parse(b); err != nil || got.Time != 77 {
				t.Errorf("after a stamp of 77 the time is %d, %v", got.Time, err)
			}
			if got.Time = tt.shim.Time; got != tt.shim {
				t.Errorf("the stamp changed %+v to %+v", tt.shim, got)
			}
		})
	}
}

func TestShimRefused(t *testing.T) {
	var whole [HeaderBytes]byte
	(&Shim{Seq: 1}).Put(whole[:])
	tests := []struct {
		name  string
		at    int
		value byte
		want  error
	}{
		{"no sequence number", 0, 0, ErrNotNative},
		{"a key", 0, 0x30, ErrNotNative},
		{"version 1", 1, 1, ErrNotNative},
		{"another EtherType", 2, 8, ErrNotNative},
		{"a kind that is not known", 8, 0x50, packet.ErrBad},
		{"the last kind", 8, 0xf0, packet.ErrBad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := whole
			b[tt.at] = tt.value
			var s Shim
			if err := s.Parse(b[:]); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func FuzzShim(f *testing.F) {
	var b [HeaderBytes]byte
	f.Add(b[:])
	(&Shim{Seq: 1, Kind: Again, Epoch: 2, Flags: 3, Path: 4, Before: 5, PathSeq: 6, Time: 7}).Put(b[:])
	f.Add(b[:])
	f.Add(b[:HeaderBytes-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Shim
		if s.Parse(b) != nil {
			return
		}
		var again [HeaderBytes]byte
		if s.Put(again[:]); !bytes.Equal(again[:], b[:HeaderBytes]) {
			t.Errorf("% x is written again as % x", b[:HeaderBytes], again)
		}
	})
}
