package usernet

import "testing"

func newTestPool(t *testing.T, size, count int) *pool {
	t.Helper()
	p, err := newPool(size, count)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func TestPoolExhausted(t *testing.T) {
	const count = 16
	p := newTestPool(t, largeBytes, count)
	var all []*buffer
	for i := range count {
		if scarce := p.scarce(); scarce != (i > count/2) {
			t.Errorf("with %d of %d in use: scarce is %v", i, count, scarce)
		}
		if low := p.low(); low != (i > count/8*7) {
			t.Errorf("with %d of %d in use: low is %v", i, count, low)
		}
		b := p.get()
		if b == nil || len(b.mem) != largeBytes || cap(b.mem) != largeBytes {
			t.Fatalf("buffer %d: %v", i, b)
		}
		for _, other := range all {
			if &other.mem[0] == &b.mem[0] {
				t.Fatal("two buffers share memory")
			}
		}
		b.mem[0], b.mem[largeBytes-1] = byte(i), byte(i)
		all = append(all, b)
	}
	if !p.empty() || p.get() != nil {
		t.Error("get returns more buffers than there are")
	}
	for i, b := range all {
		if b.mem[0] != byte(i) || b.mem[largeBytes-1] != byte(i) {
			t.Errorf("buffer %d was overwritten", i)
		}
	}
	all[3].free()
	if p.empty() || p.used != count-1 {
		t.Errorf("after one was freed: empty is %v, %d in use", p.empty(), p.used)
	}
	if b := p.get(); b != all[3] {
		t.Error("get does not return the buffer freed last")
	}
}

func TestPoolUsableAfterTrim(t *testing.T) {
	p := newTestPool(t, smallBytes, 64)
	var all []*buffer
	for b := p.get(); b != nil; b = p.get() {
		b.mem[0] = 1
		all = append(all, b)
	}
	p.trim() // all are in use: trim must do nothing
	for _, b := range all {
		if b.mem[0] != 1 {
			t.Fatal("the memory of a buffer in use was freed")
		}
		b.free()
	}
	p.trim()
	for range all {
		p.get().mem[smallBytes-1] = 2
	}
	if !p.empty() {
		t.Error("the pool has grown")
	}
}

func TestPoolAllocations(t *testing.T) {
	p := newTestPool(t, smallBytes, 4)
	p.get().free()
	if n := testing.AllocsPerRun(100, func() { p.get().free() }); n != 0 && !raceDetector {
		t.Errorf("%v allocations, want 0", n)
	}
}
