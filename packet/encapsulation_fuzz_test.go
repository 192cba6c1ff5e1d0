package packet

import (
	"bytes"
	"testing"
)

// FuzzGRE parses GRE headers. A header without checksum must be written back unchanged.
func FuzzGRE(f *testing.F) {
	f.Add([]byte{0x30, 0, 0x08, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x45})
	f.Add([]byte{0x80, 0, 0x08, 0, 0xf7, 0xff, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var g GRE
		n, err := ParseGRE(b, &g)
		if err != nil {
			return
		}
		if n < 4 || n > len(b) {
			t.Fatalf("a header of %d bytes in %d", n, len(b))
		}
		if b[0]&0x80 != 0 {
			return
		}
		again := make([]byte, g.Bytes())
		var back GRE
		if m := g.Put(again); m != n {
			t.Errorf("%d bytes were read, %d written", n, m)
		}
		if _, err := ParseGRE(again, &back); err != nil || back != g {
			t.Errorf("%+v is read again as %+v, %v", g, back, err)
		}
	})
}

// FuzzVNetHdr parses virtio headers. They must be written back unchanged, except for the
// number of buffers.
func FuzzVNetHdr(f *testing.F) {
	f.Add([]byte{1, 1, 54, 0, 180, 5, 34, 0, 16, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h VNetHdr
		if h.Parse(b) != nil {
			return
		}
		again := make([]byte, VNetHdrBytes)
		h.Put(again)
		if !bytes.Equal(again[:10], b[:10]) {
			t.Errorf("%x is written as %x", b[:10], again)
		}
	})
}
