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

// recorder records delivered packets; the data of a packet is its number.
type recorder struct{ got []int }

func (r *recorder) Deliver(p Packet) { r.got = append(r.got, int(binary.BigEndian.Uint32(p.Data))) }

func numbered(n int) Packet { return Packet{Data: binary.BigEndian.AppendUint32(nil, uint32(n))} }

// testBuffer is a Buffer with a manual clock.
type testBuffer struct {
	*Buffer
	recorder
	now time.Duration
}

func newTestBuffer(cfg Config) *testBuffer {
	b := &testBuffer{now: time.Second}
	b.Buffer = New(cfg, &b.recorder)
	return b
}

func (b *testBuffer) data(path, seq, before int) {
	b.Data(b.now, &Arrival{Path: path, Seq: uint32(seq), FlowDistance: uint16(before), Packet: numbered(seq)})
}

func (b *testBuffer) settle() { b.Settle(b.now); b.Recycle() }

func (b *testBuffer) want(t *testing.T, seqs ...int) {
	t.Helper()
	b.settle()
	if !slices.Equal(b.got, seqs) {
		t.Errorf("delivered %v, want %v", b.got, seqs)
	}
}

func TestOrder(t *testing.T) {
	tests := []struct {
		name string
		do   func(b *testBuffer)
		want []int
	}{
		{"in order", func(b *testBuffer) { b.data(0, 0, 0); b.data(0, 1, 1); b.data(1, 2, 1) }, []int{0, 1, 2}},
		{"one packet overtakes another", func(b *testBuffer) { b.data(0, 0, 0); b.data(1, 2, 1); b.data(0, 1, 1) }, []int{0, 1, 2}},
		{"a gap delays only its own flow", func(b *testBuffer) { // flows: 0, 2, 4 and 1, 3
			b.data(0, 0, 0)
			b.data(0, 1, 0)
			b.data(1, 4, 2)
			b.data(1, 3, 2)
		}, []int{0, 1, 3}},
		{"a packet waits as long as a path may deliver it", func(b *testBuffer) { b.data(0, 0, 0); b.data(1, 1, 1); b.data(1, 3, 1) }, []int{0, 1}},
		{"a packet is lost when all paths are past it", func(b *testBuffer) { b.data(0, 0, 0); b.data(1, 1, 1); b.data(1, 3, 1); b.data(0, 4, 1) }, []int{0, 1, 3, 4}},
		{"a mark counts like a packet", func(b *testBuffer) { b.data(0, 0, 0); b.data(1, 1, 1); b.data(1, 3, 1); b.Mark(0, 4, false) }, []int{0, 1, 3}},
		{"a packet is not lost while it may be resent", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Hole(1, 2, 3, b.now+20*ms)
			b.data(1, 3, 1)
			b.data(0, 4, 1)
		}, []int{0, 1}},
		{"a resent packet is delivered", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Hole(1, 2, 3, b.now+20*ms)
			b.data(1, 3, 1)
			b.Data(b.now, &Arrival{Path: 0, Seq: 2, FlowDistance: 1, Resent: true, Packet: numbered(2)})
		}, []int{0, 1, 2, 3}},
		{"a resent packet says nothing about its path", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.data(1, 3, 1)
			b.Data(b.now, &Arrival{Path: 0, Seq: 5, FlowDistance: 1, Resent: true, Packet: numbered(5)})
		}, []int{0, 1}},
		{"a dead path is waited for until the others confirm its death", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.data(1, 3, 1)
			b.data(2, 4, 1)
			b.Dead(0, 1)
		}, []int{0, 1}},
		{"a confirmed death ends the wait", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.data(1, 3, 1)
			b.data(2, 4, 1)
			b.Dead(0, 1)
			b.Dead(0, 2)
		}, []int{0, 1, 3, 4}},
		{"an idle path counts as far as the others were", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Mark(0, 1, true)
			b.data(1, 3, 1)
			b.settle()
			b.now += 3 * ms
		}, []int{0, 1, 3}},
		{"an idle path with a longer delay counts later", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 1, 1)
			b.Mark(0, 1, true)
			b.Delay(0, 20*ms)
			b.data(1, 3, 1)
			b.settle()
			b.now += 3 * ms
		}, []int{0, 1}},
		{"no packet waits longer than the hold", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 2, 1)
			b.settle()
			b.now += 201 * ms
		}, []int{0, 2}},
		{"late", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 2, 1)
			b.now += 201 * ms
			b.settle()
			b.data(0, 1, 1)
		}, []int{0, 2, 1}},
		{"twice", func(b *testBuffer) {
			b.data(0, 0, 0)
			b.data(1, 0, 0)
			b.data(1, 2, 1)
			b.data(0, 2, 1)
			b.data(0, 1, 1)
		}, []int{0, 1, 2}},
		{"a gap in two flows", func(b *testBuffer) { // 1 belongs to the flow of 3, 2 to that of 4
			b.data(0, 0, 0)
			b.data(1, 3, 2)
			b.data(1, 4, 2)
			b.data(0, 2, 0)
			b.data(0, 1, 0)
		}, []int{0, 2, 4, 1, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newTestBuffer(Config{})
			tt.do(b)
			b.want(t, tt.want...)
		})
	}
}

func TestNeverWhole(t *testing.T) {
	// TestNeverWhole checks that giving up a gap releases only the packets that waited
	// for it.
	b := newTestBuffer(Config{})
	b.data(0, 0, 0)
	b.data(1, 2, 1)
	b.settle()
	b.now += 150 * ms
	b.data(1, 4, 1) // after a second gap
	b.settle()
	b.now += 60 * ms // more than the hold since the first gap, not since the second
	b.want(t, 0, 2)
}

func TestBounds(t *testing.T) {
	t.Run("window", func(t *testing.T) {
		b := newTestBuffer(Config{Window: 64})
		b.data(0, 0, 0)
		b.data(1, 2, 1)
		b.data(1, 70, 0)
		if !slices.Contains(b.got, 2) {
			t.Errorf("a packet that has left the window still waits: %v", b.got)
		}
		b.data(0, 1, 1)
		if s := b.Stats(); s.TooOld != 1 {
			t.Errorf("one packet was behind the window, %d counted", s.TooOld)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		b := newTestBuffer(Config{MaxBytes: 40})
		b.data(0, 0, 0)
		for seq := 2; seq < 100; seq++ {
			b.data(1, seq, 1)
			if w := b.Stats().WaitingBytes; w > 40 {
				t.Fatalf("%d bytes wait, 40 are allowed", w)
			}
		}
		b.now += time.Second
		b.settle()
		if len(b.got) != 99 {
			t.Errorf("%d of 99 packets were delivered", len(b.got))
		}
	})
	t.Run("a number that was never sent", func(t *testing.T) {
		b := newTestBuffer(Config{Window: 64})
		b.data(0, 0, 0)
		b.data(0, 1<<30, 0)
		for seq := 1; seq < 400; seq++ {
			b.data(0, seq, 1)
		}
		b.settle()
		if len(b.got) < 200 || b.got[len(b.got)-1] != 399 {
			t.Errorf("%d of 399 packets were delivered after a forged number", len(b.got))
		}
	})
	t.Run("two packets with the same predecessor", func(t *testing.T) {
		b := newTestBuffer(Config{})
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
	t.Run("numbers wrap", func(t *testing.T) {
		b := newTestBuffer(Config{})
		b.Start(1<<32 - 3)
		for i := range 6 {
			b.Data(b.now, &Arrival{Seq: uint32(1<<32 - 3 + i), FlowDistance: 1, Packet: numbered(i)})
		}
		b.want(t, 0, 1, 2, 3, 4, 5)
	})
}

// TestRandomNetworks sends flows over random paths and checks that every flow is
// delivered in order except for late packets, no packet twice, and none after too long a
// wait or never.
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
		sent = append(sent, flight{at: at + delay[p], a: Arrival{Path: p, Seq: uint32(seq), FlowDistance: uint16(before), Packet: numbered(seq)}})
	}
	for p := range paths {
		sent = append(sent, flight{at: at + delay[p] + ms, mark: true, a: Arrival{Path: p, Seq: uint32(packets)}})
	}
	slices.SortStableFunc(sent, func(x, y flight) int { return int(x.at - y.at) })
	b := newTestBuffer(Config{Hold: 100 * ms})
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

func checkFlows(t *testing.T, b *testBuffer, flowOf []int, lost map[int]bool) {
	seen, highest, backwards := map[int]bool{}, map[int]int{}, 0
	for _, seq := range b.got {
		if seen[seq] {
			t.Fatalf("packet %d was delivered twice", seq)
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
		t.Errorf("%d packets are out of their flow's order, %d counted as late", backwards, s.Late)
	}
	if s.Late > 0 && s.Forced == 0 {
		t.Errorf("%d packets were given up too early", s.Late)
	}
	for seq := range flowOf {
		if seen[seq] == lost[seq] {
			t.Errorf("packet %d: lost %v, delivered %v", seq, lost[seq], seen[seq])
		}
	}
	if s.Waiting != 0 || s.WaitingBytes != 0 {
		t.Errorf("%d packets, %d bytes still wait", s.Waiting, s.WaitingBytes)
	}
}

func TestNoAllocation(t *testing.T) {
	b := New(Config{}, discard{})
	seq, now := uint32(0), time.Second
	data := make([]byte, 1400)
	round := func() {
		for i := range uint32(64) { // pairs that overtake each other
			b.Data(now, &Arrival{Path: int(i & 1), Seq: seq + i ^ 1, FlowDistance: 1, Packet: Packet{Data: data}})
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
		buf := newTestBuffer(Config{Window: 64, MaxBytes: 256})
		for len(b) >= 4 {
			path, seq, before := int(b[0]&7), int(b[1])|int(b[0]>>7)<<9, int(b[2])
			switch b[3] & 7 {
			case 0:
				buf.Mark(path, uint32(seq), b[2]&1 != 0)
			case 1:
				buf.Dead(path, int(b[2]&7))
			case 2:
				buf.Alive(path)
			case 3:
				buf.Hole(path, uint32(seq), uint32(seq+before), buf.now+5*ms)
			default:
				buf.data(path, seq, before)
			}
			buf.now += time.Duration(b[3]>>3) * ms / 4
			buf.settle()
			b = b[4:]
		}
		if s := buf.Stats(); s.WaitingBytes > 256 || s.Waiting > 64 {
			t.Fatalf("%d packets of %d bytes wait", s.Waiting, s.WaitingBytes)
		}
		buf.now += time.Second
		buf.settle()
		if buf.Waiting() {
			t.Fatal("packets wait longer than allowed")
		}
	})
}
