package probe

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// simulated is a path with a clock of its own.
type simulated struct {
	t      *testing.T
	s      *search
	now    time.Time
	passes func(size int) bool // whether a datagram and its answer arrive
	every  time.Duration
	delay  time.Duration // of an answer
	coming []answer
	sent   int // datagrams
	bytes  int
}

type answer struct {
	at   time.Time
	size int
}

const tick = 100 * time.Millisecond

func newSimulated(t *testing.T, limit int, passes func(int) bool) *simulated {
	return &simulated{t: t, s: newSearch(limit), now: time.Unix(1000, 0), passes: passes, delay: 20 * time.Millisecond, every: confirmOften}
}

// run lets time pass, until done returns true. It returns how long that took; the test fails if it takes long.
func (p *simulated) run(within time.Duration, done func() bool) time.Duration {
	p.t.Helper()
	began := p.now
	for !done() {
		if p.now.Sub(began) > within {
			p.t.Fatalf("after %v the result is %d: %+v", within, p.s.result, *p.s)
		}
		p.tick()
	}
	return p.now.Sub(began)
}

func (p *simulated) tick() {
	for _, size := range p.s.next(p.now, p.every) {
		p.sent++
		p.bytes += size
		if size > p.s.limit {
			p.t.Fatalf("%d bytes were sent, more than %d", size, p.s.limit)
		}
		if p.passes(size) {
			p.coming = append(p.coming, answer{p.now.Add(p.delay), size})
		}
	}
	p.now = p.now.Add(tick)
	for len(p.coming) > 0 && !p.coming[0].at.After(p.now) {
		p.s.passed(p.coming[0].size, p.now)
		p.coming = p.coming[1:]
	}
}

// finds runs until the search has found a size.
func (p *simulated) finds(size int, within time.Duration) time.Duration {
	p.t.Helper()
	return p.run(within, func() bool { return p.s.result == size && !p.s.isSearching() })
}

func upTo(mtu int) func(int) bool { return func(size int) bool { return size <= mtu } }

// TestSearch finds the sizes of paths.
func TestSearch(t *testing.T) {
	for _, c := range []struct {
		name       string
		limit, mtu int
		within     time.Duration
	}{
		{"the path passes what the device does", 1500, 1500, time.Second},
		{"and more", 1500, 9000, time.Second},
		{"jumbo frames", 9000, 9000, time.Second},
		{"a switch without jumbo frames", 9000, 1500, 15 * time.Second},
		{"PPPoE", 1500, 1492, 15 * time.Second},
		{"a tunnel", 1500, 1420, 15 * time.Second},
		{"a size that is not common", 1500, 1367, 15 * time.Second},
		{"one byte less than the limit", 1500, 1499, 15 * time.Second},
		{"less than any common size", 1500, 300, 30 * time.Second},
		{"the smallest device", 576, 576, time.Second},
		{"loopback", 65535, 65535, time.Second},
		{"far above the common sizes", 65535, 40000, 60 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newSimulated(t, c.limit, upTo(c.mtu))
			p.finds(min(c.limit, c.mtu), c.within)
		})
	}
}

// TestSearchSoon checks that a size that passes is known before the largest one is.
func TestSearchSoon(t *testing.T) {
	p := newSimulated(t, 1500, upTo(1367))
	took := p.run(3*time.Second, func() bool { return p.s.result != 0 })
	if p.s.result > 1367 || p.s.result < 1300 {
		t.Errorf("the first result is %d, after %v", p.s.result, took)
	}
}

// TestBlackHole checks what follows when a path changes.
func TestBlackHole(t *testing.T) {
	p := newSimulated(t, 1500, upTo(1500))
	p.finds(1500, time.Second)
	p.passes = upTo(1400)
	took := p.run(8*time.Second, func() bool { return p.s.result <= 1400 })
	t.Logf("a path that containers use: after %v", took)
	p.finds(1400, 20*time.Second)
	p.passes = upTo(1500)
	took = p.finds(1500, limitEvery+confirmOften+time.Second)
	t.Logf("the limit passes again: after %v", took)
	p.passes = upTo(1400)
	p.finds(1400, 30*time.Second)
	p.passes = upTo(1450)
	took = p.finds(1450, raiseEvery+time.Minute)
	t.Logf("a larger size below the limit passes: after %v", took)
}

// TestGone checks that nothing changes while the other host does not answer, and that it is asked seldom.
func TestGone(t *testing.T) {
	none := func(int) bool { return false }
	p := newSimulated(t, 1500, none)
	p.run(time.Hour, func() bool { return p.now.Sub(time.Unix(1000, 0)) > 30*time.Minute })
	if p.s.result != 0 {
		t.Errorf("the result for a host that has never answered is %d", p.s.result)
	}
	if perMinute := p.sent / 30; perMinute > 12 {
		t.Errorf("a host that does not answer gets %d datagrams a minute", perMinute)
	}
	p.passes = upTo(1372)
	p.finds(1372, retryEvery+20*time.Second)
	p.passes = none
	until := p.now.Add(10 * time.Minute)
	p.run(time.Hour, func() bool { return p.now.After(until) })
	if p.s.result != 1372 {
		t.Errorf("the result for a host that is gone is %d", p.s.result)
	}
}

// TestLimitChanges changes the MTU of the device.
func TestLimitChanges(t *testing.T) {
	p := newSimulated(t, 1500, upTo(9000))
	p.finds(1500, time.Second)
	p.s.setLimit(1300, p.now)
	if p.s.result != 1300 {
		t.Errorf("the result is %d at once, want 1300", p.s.result)
	}
	p.finds(1300, time.Second)
	p.s.setLimit(9000, p.now)
	if p.s.result != 1300 {
		t.Errorf("the result is %d at once, want 1300", p.s.result)
	}
	p.finds(9000, time.Second)
	p.s.setLimit(1500, p.now)
	p.passes = upTo(1420)
	p.finds(1420, 15*time.Second)
}

// TestIdleCost counts what an idle path costs.
func TestIdleCost(t *testing.T) {
	for _, c := range []struct {
		name      string
		mtu, most int // datagrams a minute
	}{
		{"a path that passes all", 1500, 2},
		{"a path that does not", 1372, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newSimulated(t, 1500, upTo(c.mtu))
			p.every = confirmIdle
			p.finds(c.mtu, 20*time.Second)
			p.sent, p.bytes = 0, 0
			until := p.now.Add(9 * time.Minute)
			p.run(time.Hour, func() bool { return p.now.After(until) })
			t.Logf("%.1f datagrams and %d bytes a minute", float64(p.sent)/9, p.bytes/9)
			if p.sent > c.most*9 {
				t.Errorf("%d datagrams in 9 minutes", p.sent)
			}
		})
	}
}

// TestRandomPaths goes through random paths that change and lose datagrams. The seed of a failure is in its name.
func TestRandomPaths(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 24))
			limit := []int{1280, 1500, 1500, 9000, 65535}[r.IntN(5)]
			loss := []float64{0, 0.01, 0.1}[r.IntN(3)]
			mtu := 0
			p := newSimulated(t, limit, func(size int) bool { return size <= mtu && r.Float64() >= loss })
			p.delay = time.Duration(r.IntN(450)) * time.Millisecond
			for range 5 {
				mtu = 200 + r.IntN(limit+500-200)
				p.every = []time.Duration{confirmOften, confirmUsed, confirmIdle}[r.IntN(3)]
				within := raiseEvery + 5*time.Minute
				if loss > 0 { // a size that was lost three times comes with the next raise
					within = 10 * (raiseEvery + 5*time.Minute)
				}
				want := min(mtu, limit)
				p.run(within, func() bool { return !p.s.isSearching() && p.s.result == want })
				if p.s.result > mtu {
					t.Errorf("the result is %d on a path of %d", p.s.result, mtu)
				}
			}
		})
	}
}

// BenchmarkIdle measures a look at the searches for 1,000 hosts of which none is due, as it happens every searchTick.
func BenchmarkIdle(b *testing.B) {
	now := time.Unix(1000, 0)
	var all []*search
	for range 1000 {
		s := newSearch(1500)
		s.next(now, confirmIdle)
		s.passed(1500, now)
		all = append(all, s)
	}
	for b.Loop() {
		for _, s := range all {
			if s.next(now, confirmIdle) != nil {
				b.Fatal("a search is due")
			}
		}
	}
}
