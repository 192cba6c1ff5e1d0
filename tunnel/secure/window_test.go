package secure

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// slowWindow is a plain implementation of Window.
type slowWindow struct {
	size, highest uint64
	any           bool
	seen          map[uint64]bool
}

func newSlowWindow(size int) *slowWindow {
	return &slowWindow{size: uint64(size), seen: map[uint64]bool{}}
}

func (w *slowWindow) isNew(counter uint64) bool {
	tooOld := w.any && counter < w.highest && w.highest-counter >= w.size
	return !tooOld && !w.seen[counter]
}

func (w *slowWindow) mark(counter uint64) bool {
	if !w.isNew(counter) {
		return false
	}
	w.seen[counter], w.any, w.highest = true, true, max(w.highest, counter)
	return true
}

// windowPair is a Window and its slow twin.
type windowPair struct {
	t    testing.TB
	fast *Window
	slow *slowWindow
}

func newWindowPair(t testing.TB, size int) *windowPair {
	t.Helper()
	return &windowPair{t, &Window{words: make([]uint64, size/64)}, newSlowWindow(size)}
}

// mark marks a counter in both and compares the results.
func (p *windowPair) mark(counter uint64) {
	p.t.Helper()
	p.look(counter)
	if got, want := p.fast.Mark(counter), p.slow.mark(counter); got != want {
		p.t.Fatalf("mark %d with highest %d: %v, want %v", counter, p.slow.highest, got, want)
	}
	p.look(counter)
	if p.fast.Highest() != p.slow.highest {
		p.t.Fatalf("highest is %d, want %d", p.fast.Highest(), p.slow.highest)
	}
}

func (p *windowPair) look(counter uint64) {
	p.t.Helper()
	if got, want := p.fast.IsNew(counter), p.slow.isNew(counter); got != want {
		p.t.Fatalf("%d with highest %d: IsNew is %v, want %v", counter, p.slow.highest, got, want)
	}
}

// lookAround compares every counter in the window and a little beyond it.
func (p *windowPair) lookAround() {
	p.t.Helper()
	for d := range p.slow.size + 130 {
		p.look(p.slow.highest + 65 - d)
	}
}

func TestWindowInOrder(t *testing.T) {
	p := newWindowPair(t, 128)
	for counter := range uint64(1000) {
		p.mark(counter)
		p.mark(counter)
		p.lookAround()
	}
}

func TestWindowEdges(t *testing.T) {
	for _, c := range []struct {
		name     string
		size     int
		counters []uint64
	}{
		{"starts at 0", 64, []uint64{0, 0, 1, 0}},
		{"starts in the middle, then earlier counters", 64, []uint64{1000, 937, 936, 999, 1000}},
		{"oldest counter in the window", 64, []uint64{100, 37, 36, 37}},
		{"a whole window ahead", 64, []uint64{5, 69, 5, 6, 69}},
		{"one less than a window ahead", 64, []uint64{5, 68, 5, 68}},
		{"two windows ahead", 128, []uint64{1, 2, 3, 258, 131, 130, 258}},
		{"a whole ring ahead, same bits", 128, []uint64{7, 135, 7, 8, 135}},
		{"word by word", 256, []uint64{10, 63, 64, 127, 200, 63, 64, 65, 199, 201}},
		{"several words", 512, []uint64{3, 70, 140, 300, 470, 600, 70, 140, 141, 300}},
		{"largest counter", 64, []uint64{math.MaxUint64, math.MaxUint64, math.MaxUint64 - 63, math.MaxUint64 - 64, 0}},
		{"from the smallest to the largest", 64, []uint64{0, math.MaxUint64, 0, 1, math.MaxUint64 - 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newWindowPair(t, c.size)
			for _, counter := range c.counters {
				p.mark(counter)
				p.lookAround()
			}
		})
	}
}

// TestWindowRandomly mixes counters in order with jumps, late ones and repeats.
func TestWindowRandomly(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0))
		p := newWindowPair(t, 64<<random.IntN(4))
		var next uint64
		if seed%3 == 0 {
			next = math.MaxUint64 - 100_000
		}
		for range 2000 {
			p.mark(step(&next, p.slow.size, random.IntN(100), random.Uint64()))
		}
		p.lookAround()
	}
}

// step returns the next counter to try: mostly one of the newest, sometimes a jump.
func step(next *uint64, size uint64, kind int, random uint64) uint64 {
	switch {
	case kind < 50:
		*next++
	case kind < 90:
		return *next - random%(size+size/4)
	case kind < 99:
		*next += random % size
	default:
		*next += random % (4 * size)
	}
	return *next
}

// FuzzWindow marks a script of counters: pieces of three bytes, the kind of step and its
// length.
func FuzzWindow(f *testing.F) {
	f.Add(byte(0), uint64(0), []byte{0, 0, 0, 60, 0, 1, 95, 1, 0, 99, 2, 0})
	f.Add(byte(1), ^uint64(1000), []byte{99, 255, 255, 60, 0, 64, 60, 0, 128})
	f.Fuzz(func(t *testing.T, size byte, start uint64, script []byte) {
		p, next := newWindowPair(t, 64<<(size%4)), start
		for ; len(script) >= 3; script = script[3:] {
			p.mark(step(&next, p.slow.size, int(script[0])%100, uint64(binary.BigEndian.Uint16(script[1:]))))
		}
		p.lookAround()
	})
}

func TestWindowAllocatesNothing(t *testing.T) {
	w := NewWindow()
	var counter uint64
	if n := testing.AllocsPerRun(1000, func() {
		counter += 3000
		if !w.IsNew(counter) || !w.Mark(counter) || w.Mark(counter) || !w.Mark(counter-1) {
			t.Fatalf("counter %d", counter)
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func TestExtend(t *testing.T) {
	const cycle, half = 1 << 32, 1 << 31
	for _, c := range []struct {
		name    string
		low     uint32
		highest uint64
		want    uint64
	}{
		{"nothing seen", 0, 0, 0},
		{"nothing seen, a first counter", 77, 0, 77},
		{"nothing seen, from far", math.MaxUint32, 0, math.MaxUint32},
		{"next", 8, 7, 8},
		{"same", 7, 7, 7},
		{"late", 3, 7, 3},
		{"next cycle", 2, cycle - 3, cycle + 2},
		{"late, from the last cycle", math.MaxUint32, 5 * cycle, 5*cycle - 1},
		{"furthest ahead", half, 3 * cycle, 3*cycle + half},
		{"furthest back", half + 1, 3 * cycle, 2*cycle + half + 1},
		{"largest counter", math.MaxUint32, math.MaxUint64 - 5, math.MaxUint64},
		{"beyond the largest counter", 0, math.MaxUint64 - 5, math.MaxUint64 - math.MaxUint32},
		{"RFC 9000 appendix A.3, in 32 bits", 0x9b32_9b32, 0xa82f_30ea_0000_0001, 0xa82f_30e9_9b32_9b32},
	} {
		if got := Extend(c.low, c.highest); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

// slowExtend tries all candidates.
func slowExtend(low uint32, highest uint64) uint64 {
	best, distance := uint64(0), uint64(math.MaxUint64)
	for _, cycle := range []uint64{highest>>32 - 1, highest >> 32, highest>>32 + 1} {
		if cycle > math.MaxUint32 { // below 0, or beyond 2^64-1
			continue
		}
		c := cycle<<32 | uint64(low)
		if d := max(c, highest) - min(c, highest); d <= distance { // ascending, so the upper of two equally near ones
			best, distance = c, d
		}
	}
	return best
}

func TestExtendRandomly(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		highest := random.Uint64() >> random.IntN(64)
		if random.IntN(2) == 0 {
			highest = ^highest
		}
		low := uint32(highest) + uint32(random.IntN(5)-2)
		if random.IntN(2) == 0 {
			low += 1 << 31
		}
		if random.IntN(4) == 0 {
			low = random.Uint32()
		}
		if got, want := Extend(low, highest), slowExtend(low, highest); got != want {
			t.Fatalf("Extend(%#x, %#x) is %#x, want %#x", low, highest, got, want)
		}
	}
}

// TestExtendAcrossCycles has a sender count on and a receiver extend 32 bits, with a
// window.
func TestExtendAcrossCycles(t *testing.T) {
	w := NewWindow()
	for counter := uint64(0); counter < 1<<36; counter += 1<<31 - 7 {
		for _, c := range []uint64{counter + 5, counter, counter + 6} {
			if got := Extend(uint32(c), w.Highest()); got != c {
				t.Fatalf("counter %#x was extended to %#x", c, got)
			}
			if !w.Mark(c) {
				t.Fatalf("counter %#x was refused", c)
			}
		}
	}
}

// FuzzExtend compares Extend with its slow twin.
func FuzzExtend(f *testing.F) {
	f.Add(uint32(0), uint64(0))
	f.Add(uint32(1<<31), uint64(1<<32))
	f.Add(uint32(3), ^uint64(0))
	f.Fuzz(func(t *testing.T, low uint32, highest uint64) {
		if got, want := Extend(low, highest), slowExtend(low, highest); got != want {
			t.Errorf("Extend(%#x, %#x) is %#x, want %#x", low, highest, got, want)
		}
	})
}
