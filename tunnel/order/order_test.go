package order

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// record keeps what was delivered: each packet's data is its number.
type record struct{ got []int }

func (r *record) Deliver(p Packet) { r.got = append(r.got, int(binary.BigEndian.Uint32(p.Data))) }

func number(n int) Packet { return Packet{Data: binary.BigEndian.AppendUint32(nil, uint32(n))} }

// bed is a Buffer with a clock that stands still unless told.
type bed struct {
	*Buffer
	record
	now time.Duration
}

func newBed(cfg Config) *bed {
	b := &bed{now: time.Second}
	b.Buffer = New(cfg, &b.record)
	return b
}

func (b *bed) data(path, seq, before int) {
	b.Data(b.now, &Arrival{Path: path, Seq: uint32(seq), Before: uint16(before), Packet: number(seq)})
}

func (b *bed) settle() { b.Settle(b.now); b.Recycle() }

func (b *bed) want(t *testing.T, seqs ...int) {
	t.Helper()
	b.settle()
	if !slices.Equal(b.got, seqs) {
		t.Errorf("delivered %v, want %v", b.got, seqs)
	}
}

func TestOrder(t *testing.T) {
	tests := []struct {
		name string
		do   func(b *bed)
		want []int
	}{
		{"in order", func(b *bed) { b.data(0, 0, 0); b.data(0, 1, 1); b.data(1, 2, 1) }, []int{0, 1, 2}},
		{"one overtakes another", func(b *bed) { b.data(0, 0, 0); b.data(1, 2, 1); b.data(0, 1, 1) }, []int{0, 1, 2}},
		{"a gap holds its own flow only", func(b *bed) { // flows: 0, 2, 4 and 1, 3
			b.data(0, 0, 0)
			b.data(0, 1, 0)
			b.data(1, 4, 2)
			b.data(1, 3, 2)
		}, []int{0, 1, 3}},
		{"it waits as long as a path may still bring it", func(b *bed) { b.data(0, 0, 0); b.data(1, 1, 1); b.data(1, 3, 1) }, []int{0, 1}},
		{"lost when all paths are beyond it", func(b *bed) { b.data(0, 0, 0); b.data(1, 1, 1); b.data(1, 3, 1); b.data(0, 4, 1) }, []int{0, 1, 3, 4}},
		{"a mark is as good as a packet", func(b *bed) { b.data(0, 0, 0); b.data(1, 1, 1); b.data(1, 3, 1); b.Mark(0, 4, false) }, []int{0, 1, 3}},
		{"not while it may be sent again", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Hole(1, 2, 3, b.now+20*ms)
			b.data(1, 3, 1)
			b.data(0, 4, 1)
		}, []int{0, 1}},
		{"sent again", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Hole(1, 2, 3, b.now+20*ms)
			b.data(1, 3, 1)
			b.Data(b.now, &Arrival{Path: 0, Seq: 2, Before: 1, Resent: true, Packet: number(2)})
		}, []int{0, 1, 2, 3}},
		{"what is sent again says nothing of its path", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.data(1, 3, 1)
			b.Data(b.now, &Arrival{Path: 0, Seq: 5, Before: 1, Resent: true, Packet: number(5)})
		}, []int{0, 1}},
		{"a dead path is waited for until the others have told", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.data(1, 3, 1)
			b.data(2, 4, 1)
			b.Dead(0, 1)
		}, []int{0, 1}},
		{"and not after", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.data(1, 3, 1)
			b.data(2, 4, 1)
			b.Dead(0, 1)
			b.Dead(0, 2)
		}, []int{0, 1, 3, 4}},
		{"an idle path counts as far as the others were", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Mark(0, 1, true)
			b.data(1, 3, 1)
			b.settle()
			b.now += 3 * ms
		}, []int{0, 1, 3}},
		{"one with a longer delay later", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Mark(0, 1, true)
			b.Delay(0, 20*ms)
			b.data(1, 3, 1)
			b.settle()
			b.now += 3 * ms
		}, []int{0, 1}},
		{"nothing waits longer than the hold", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 2, 1)
			b.settle()
			b.now += 201 * ms
		}, []int{0, 2}},
		{"late", func(b *bed) {
			b.data(0, 0, 0)
			b.data(1, 2, 1)
			b.now += 201 * ms
			b.settle()
			b.data(0, 1, 1)
		}, []int{0, 2, 1}},
		{"twice", func(b *bed) { b.data(0, 0, 0); b.data(1, 0, 0); b.data(1, 2, 1); b.data(0, 2, 1); b.data(0, 1, 1) }, []int{0, 1, 2}},
		{"a gap of two flows", func(b *bed) { // 1 is of the flow of 3, 2 of that of 4
			b.data(0, 0, 0)
			b.data(1, 3, 2)
			b.data(1, 4, 2)
			b.data(0, 2, 0)
			b.data(0, 1, 0)
		}, []int{0, 2, 4, 1, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(Config{})
			tt.do(b)
			b.want(t, tt.want...)
		})
	}
}

func TestNeverWhole(t *testing.T) {
	// A gap that is given up releases what waited for it, not what waits for another.
	b := newBed(Config{})
	b.data(0, 0, 0)
	b.data(1, 2, 1)
	b.settle()
	b.now += 150 * ms
	b.data(1, 4, 1) // behind a second gap
	b.settle()
	b.now += 60 * ms // more than the hold since the first, not since the second
	b.want(t, 0, 2)
}

func TestBounds(t *testing.T) {
	t.Run("window", func(t *testing.T) {
		b := newBed(Config{Window: 64})
		b.data(0, 0, 0)
		b.data(1, 2, 1)
		b.data(1, 70, 0)
		if !slices.Contains(b.got, 2) {
			t.Errorf("a packet that the window has left still waits: %v", b.got)
		}
		b.data(0, 1, 1)
		if s := b.Stats(); s.Old != 1 {
			t.Errorf("one packet came behind the window, %d counted", s.Old)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		b := newBed(Config{MaxBytes: 40})
		b.data(0, 0, 0)
		for seq := 2; seq < 100; seq++ {
			b.data(1, seq, 1)
			if w := b.Stats().WaitBytes; w > 40 {
				t.Fatalf("%d bytes wait, 40 are allowed", w)
			}
		}
		b.now += time.Second
		b.settle()
		if len(b.got) != 99 {
			t.Errorf("%d packets of 99 were delivered", len(b.got))
		}
	})
	t.Run("a number that was never sent", func(t *testing.T) {
		b := newBed(Config{Window: 64})
		b.data(0, 0, 0)
		b.data(0, 1<<30, 0)
		for seq := 1; seq < 400; seq++ {
			b.data(0, seq, 1)
		}
		b.settle()
		if len(b.got) < 200 || b.got[len(b.got)-1] != 399 {
			t.Errorf("after a forged number %d packets of 399 were delivered", len(b.got))
		}
	})
	t.Run("two that claim the same predecessor", func(t *testing.T) {
		b := newBed(Config{})
		b.data(0, 0, 0)
		b.data(1, 2, 1)
		b.data(1, 3, 2)
		b.data(1, 4, 1)
		b.data(0, 1, 1)
		b.settle()
		b.now += time.Second
		b.settle()
		if len(b.got) != 5 || b.Waiting() {
			t.Errorf("delivered %v, waiting %v", b.got, b.Waiting())
		}
	})
	t.Run("numbers that wrap", func(t *testing.T) {
		b := newBed(Config{})
		b.Start(1<<32 - 3)
		for i := range 6 {
			b.Data(b.now, &Arrival{Seq: uint32(1<<32 - 3 + i), Before: 1, Packet: number(i)})
		}
		b.want(t, 0, 1, 2, 3, 4, 5)
	})
}

// TestRandomNetworks sends flows over random paths and looks that every flow arrives
// in order but for late packets, nothing comes twice, nothing that came stays away and
// nothing waits longer than allowed.
func TestRandomNetworks(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { randomNetwork(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

type flight struct {
	at   time.Duration
	a    Arrival
	mark bool
}

func randomNetwork(t *testing.T, rng *rand.Rand) {
	paths, flows, packets := 1+rng.IntN(6), 1+rng.IntN(5), 400
	delay, loss := make([]time.Duration, paths), make([]float64, paths)
	for i := range delay {
		delay[i] = time.Duration(rng.IntN(30)) * ms
		if rng.IntN(3) == 0 {
			loss[i] = rng.Float64() * 0.2
		}
	}
	flowOf, last := make([]int, packets), make([]int, flows)
	var sent []flight
	lost := map[int]bool{}
	at := time.Second
	for seq := range packets {
		at += time.Duration(rng.IntN(300)) * time.Microsecond
		f, p := rng.IntN(flows), rng.IntN(paths)
		flowOf[seq] = f
		before := 0
		if last[f] > 0 {
			before = seq - (last[f] - 1)
		}
		last[f] = seq + 1
		if lost[seq] = rng.Float64() < loss[p]; lost[seq] {
			continue
		}
		sent = append(sent, flight{at: at + delay[p], a: Arrival{Path: p, Seq: uint32(seq), Before: uint16(before), Packet: number(seq)}})
	}
	for p := range paths {
		sent = append(sent, flight{at: at + delay[p] + ms, mark: true, a: Arrival{Path: p, Seq: uint32(packets)}})
	}
	slices.SortStableFunc(sent, func(x, y flight) int { return int(x.at - y.at) })
	b := newBed(Config{Hold: 100 * ms})
	for i, d := range delay {
		b.Delay(i, d-slices.Min(delay))
	}
	for _, f := range sent {
		b.now = f.at
		if f.mark {
			b.Mark(f.a.Path, f.a.Seq, true)
		} else {
			b.Data(b.now, &f.a)
		}
		b.settle()
	}
	b.now += 25 * ms
	b.settle()
	checkFlows(t, b, flowOf, lost)
}

func checkFlows(t *testing.T, b *bed, flowOf []int, lost map[int]bool) {
	seen, highest, backwards := map[int]bool{}, map[int]int{}, 0
	for _, seq := range b.got {
		if seen[seq] {
			t.Fatalf("%d was delivered twice", seq)
		}
		seen[seq] = true
		if f := flowOf[seq]; seq < highest[f] {
			backwards++
		} else {
			highest[f] = seq
		}
	}
	s := b.Stats()
	if backwards > int(s.Late) {
		t.Errorf("%d packets out of their flow's order, %d counted as late", backwards, s.Late)
	}
	if s.Late > 0 && s.Forced == 0 {
		t.Errorf("%d packets were given up too early", s.Late)
	}
	for seq := range flowOf {
		if seen[seq] == lost[seq] {
			t.Errorf("packet %d: lost %v, delivered %v", seq, lost[seq], seen[seq])
		}
	}
	if s.Waiting != 0 || s.WaitBytes != 0 {
		t.Errorf("%d packets, %d bytes wait for nothing", s.Waiting, s.WaitBytes)
	}
}

func TestNoAllocation(t *testing.T) {
	b := New(Config{}, discard{})
	seq, now := uint32(0), time.Second
	data := make([]byte, 1400)
	round := func() {
		for i := range uint32(64) { // pairs that overtake each other
			b.Data(now, &Arrival{Path: int(i & 1), Seq: seq + i ^ 1, Before: 1, Packet: Packet{Data: data}})
		}
		seq += 64
		now += ms
		b.Settle(now)
		b.Recycle()
	}
	for range 10 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%.1f allocations for 64 packets", n)
	}
}

type discard struct{}

func (discard) Deliver(Packet) {}

func FuzzBuffer(f *testing.F) {
	f.Add([]byte{0, 0, 1, 2, 1, 1, 1, 1, 0, 9, 4, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		bed := newBed(Config{Window: 64, MaxBytes: 256})
		for len(b) >= 4 {
			path, seq, before := int(b[0]&7), int(b[1])|int(b[0]>>7)<<9, int(b[2])
			switch b[3] & 7 {
			case 0:
				bed.Mark(path, uint32(seq), b[2]&1 != 0)
			case 1:
				bed.Dead(path, int(b[2]&7))
			case 2:
				bed.Alive(path)
			case 3:
				bed.Hole(path, uint32(seq), uint32(seq+before), bed.now+5*ms)
			default:
				bed.data(path, seq, before)
			}
			bed.now += time.Duration(b[3]>>3) * ms / 4
			bed.settle()
			b = b[4:]
		}
		if s := bed.Stats(); s.WaitBytes > 256 || s.Waiting > 64 {
			t.Fatalf("%d packets of %d bytes wait", s.Waiting, s.WaitBytes)
		}
		bed.now += time.Second
		bed.settle()
		if bed.Waiting() {
			t.Fatal("packets wait for longer than allowed")
		}
	})
}
