package wire

import (
	"bytes"
	"errors"
	"testing"

	"cleat/packet"
)

// parse parses a header that is not sealed.
func parse(s *Shim, b []byte) error {
	if err := s.ParseClear(b); err != nil {
		return err
	}
	return s.ParseRest(b)
}

func TestShim(t *testing.T) {
	tests := []struct {
		name string
		shim Shim
		want []byte
	}{
		{"zero", Shim{}, append([]byte{0x30, 0, 0x88, 0xb5}, make([]byte, 20)...)},
		{"data", Shim{Tag: 0x01020304, PathSeq: 0x05060708, Path: 9, Kind: Data, Flags: Partial | Datagram, FlowDistance: 0x0a0b, Seq: 0x0c0d0e0f, Time: 0x10111213},
			[]byte{0x30, 0, 0x88, 0xb5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x03, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}},
		{"resent", Shim{Kind: Resend, Flags: Partial, Path: 63},
			[]byte{0x30, 0, 0x88, 0xb5, 0, 0, 0, 0, 0, 0, 0, 0, 63, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"control", Shim{Kind: Control, Path: 1, Time: 1<<32 - 1},
			[]byte{0x30, 0, 0x88, 0xb5, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x30, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := bytes.Repeat([]byte{0xee}, HeaderBytes+1)
			if tt.shim.Put(b); !bytes.Equal(b[:HeaderBytes], tt.want) || b[HeaderBytes] != 0xee {
				t.Fatalf("header is % x, want % x and nothing after it", b, tt.want)
			}
			var got Shim
			if err := parse(&got, b); err != nil || got != tt.shim {
				t.Errorf("parsed as %+v, %v; want %+v", got, err, tt.shim)
			}
			for cut := range HeaderBytes {
				want := ErrNotNative
				if cut >= ClearBytes {
					want = packet.ErrShort
				}
				if err := parse(&got, b[:cut]); !errors.Is(err, want) {
					t.Errorf("%d bytes of the header: %v, want %v", cut, err, want)
				}
			}
			Stamp(b, 77)
			if err := parse(&got, b); err != nil || got.Time != 77 {
				t.Errorf("after a stamp of 77 the time is %d, %v", got.Time, err)
			}
			if got.Time = tt.shim.Time; got != tt.shim {
				t.Errorf("Stamp changed %+v to %+v", tt.shim, got)
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
		{"no key field", 0, 0x10, ErrNotNative},
		{"no sequence number", 0, 0x20, ErrNotNative},
		{"a checksum", 0, 0xb0, ErrNotNative},
		{"GRE version 1", 1, 1, ErrNotNative},
		{"another EtherType", 2, 8, ErrNotNative},
		{"unknown bit beside the path", pathAt, 0x80, packet.ErrBad},
		{"control in the clear part, data in the rest", pathAt, controlBit, packet.ErrBad},
		{"data in the clear part, control in the rest", kindAt, byte(Control) << 4, packet.ErrBad},
		{"unknown kind", kindAt, 0x40, packet.ErrBad},
		{"last kind", kindAt, 0xf0, packet.ErrBad},
		{"unknown flag", kindAt, 4, packet.ErrBad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := whole
			b[tt.at] = tt.value
			var s Shim
			if err := parse(&s, b[:]); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func FuzzShim(f *testing.F) {
	var b [HeaderBytes]byte
	f.Add(b[:])
	(&Shim{Tag: 1, PathSeq: 2, Kind: Resend, Flags: 3, Path: 4, FlowDistance: 5, Seq: 6, Time: 7}).Put(b[:])
	f.Add(b[:])
	f.Add(b[:HeaderBytes-1])
	f.Add(b[:ClearBytes-1])
	(&Shim{Kind: Control, Path: 63}).Put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Shim
		if parse(&s, b) != nil {
			return
		}
		var again [HeaderBytes]byte
		if s.Put(again[:]); !bytes.Equal(again[:], b[:HeaderBytes]) {
			t.Errorf("% x is written again as % x", b[:HeaderBytes], again)
		}
		if form := FormOf(b); form != Session {
			t.Errorf("% x has the form %d", b[:HeaderBytes], form)
		}
	})
}
