package traffic

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// plainTracker is a slow reference: it remembers every packet.
type plainTracker struct {
	seen                          map[uint64]bool
	next                          uint64
	unique, reordered, duplicated uint64
}

func (p *plainTracker) add(seq uint64) {
	if p.seen == nil {
		p.seen = map[uint64]bool{}
	}
	switch {
	case seq >= p.next:
		p.next = seq + 1
	case p.next-seq > trackWindow: // undecidable by contract
		p.reordered++
		p.unique++
		return
	case p.seen[seq]:
		p.duplicated++
		return
	default:
		p.reordered++
	}
	p.seen[seq] = true
	p.unique++
}

func compareTrackers(t *testing.T, seqs []uint64) {
	t.Helper()
	var fast tracker
	var plain plainTracker
	for _, s := range seqs {
		fast.add(s, 0, 0)
		plain.add(s)
	}
	got := [3]uint64{fast.unique, fast.reordered, fast.duplicated}
	want := [3]uint64{plain.unique, plain.reordered, plain.duplicated}
	if got != want {
		t.Errorf("unique, reordered, duplicated %v, want %v", got, want)
	}
}

func TestTracker(t *testing.T) {
	const w = trackWindow
	tests := []struct {
		name string
		seqs []uint64
		want [3]uint64 // unique, reordered, duplicated
	}{
		{"in order", []uint64{0, 1, 2, 3}, [3]uint64{4, 0, 0}},
		{"one lost", []uint64{0, 2, 3}, [3]uint64{3, 0, 0}},
		{"first lost", []uint64{1, 2}, [3]uint64{2, 0, 0}},
		{"two exchanged", []uint64{0, 2, 1, 3}, [3]uint64{4, 1, 0}},
		{"twice", []uint64{0, 1, 1, 2}, [3]uint64{3, 0, 1}},
		{"late twice", []uint64{0, 2, 1, 1}, [3]uint64{3, 1, 1}},
		{"a gap of the window", []uint64{0, w, w - 1, 0}, [3]uint64{4, 2, 0}},
		{"the oldest of the window", []uint64{0, w - 1, 0}, [3]uint64{2, 0, 1}},
		{"the place was used before", []uint64{0, 1, w, w + 1, 2}, [3]uint64{5, 1, 0}},
		{"a jump clears everything", []uint64{0, 1, 5 * w, 5*w - 1, 5*w - 1}, [3]uint64{4, 1, 1}},
		{"a jump forgets old places", []uint64{0, 1, 2, 5*w + 3, 5*w + 1}, [3]uint64{5, 1, 0}},
		{"the last number", []uint64{1<<64 - 2, 1<<64 - 3}, [3]uint64{2, 1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tr tracker
			for _, s := range tt.seqs {
				tr.add(s, 0, 0)
			}
			if got := [3]uint64{tr.unique, tr.reordered, tr.duplicated}; got != tt.want {
				t.Errorf("unique, reordered, duplicated %v, want %v", got, tt.want)
			}
			compareTrackers(t, tt.seqs)
		})
	}
}

func TestTrackerAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var seqs []uint64
		at := uint64(0)
		for range 5000 {
			switch r.IntN(20) {
			case 0:
				at += r.Uint64N(2 * trackWindow)
			case 1:
				at -= min(at, r.Uint64N(2*trackWindow))
			default:
				at++
			}
			seqs = append(seqs, at)
		}
		compareTrackers(t, seqs)
	}
}

func FuzzTracker(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var seqs []uint64
		for ; len(b) >= 3; b = b[3:] {
			seqs = append(seqs, uint64(binary.BigEndian.Uint16(b))<<4+uint64(b[2]))
		}
		compareTrackers(t, seqs)
	})
}

// TestJitter follows RFC 3550 section 6.4.1 step by step.
func TestJitter(t *testing.T) {
	const offset = 1_000_000_000 // between the clocks: must have no effect
	tests := []struct {
		name    string
		transit []int64
		want    int64
	}{
		{"one packet", []int64{50}, 0},
		{"constant transit", []int64{50, 50, 50}, 0},
		{"one step of 160", []int64{50, 210}, 10},
		{"there and back", []int64{50, 210, 50}, 19}, // 10 + (160-10)/16 = 19.375
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tr tracker
			for i, d := range tt.transit {
				sent := int64(i) * 1000
				tr.add(uint64(i), sent, sent+d+offset)
			}
			if got := int64(time.Duration(tr.jitter)); got != tt.want {
				t.Errorf("jitter %d ns, want %d", got, tt.want)
			}
		})
	}
}
