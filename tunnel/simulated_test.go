package tunnel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestSimulated(t *testing.T) {
	same := func(n int, mb float64) []*simLink {
		var l []*simLink
		for range n {
			l = append(l, &simLink{rate: mbit(mb), delay: time.Millisecond})
		}
		return l
	}
	delays := same(12, 100)
	for i, l := range delays {
		l.delay = time.Millisecond + time.Duration(i)*49*time.Millisecond/11
	}
	rates := same(4, 100)
	rates[2].rate, rates[3].rate = mbit(50), mbit(20)
	lossy := same(4, 100)
	lossy[1].loss = 0.01
	tests := []struct {
		name  string
		links []*simLink
		least float64 // share of the sum
	}{
		{"one link", same(1, 100), 0.97},
		{"12 × 100 Mbit/s", same(12, 100), 0.97},
		{"2 × 1 Gbit/s", same(2, 1000), 0.97},
		{"2 × 2 Mbit/s", same(2, 2), 0.9},
		{"100/100/50/20", rates, 0.97},
		{"delays of 1…50 ms", delays, 0.95},
		{"1 % loss on one of 4", lossy, 0.95},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(1, tt.links...)
			s.run(2 * time.Second)
			got := s.rate(2 * time.Second)
			if share := got / s.sum(); share < tt.least {
				t.Errorf("%.1f %% of the sum carried, want %.0f", share*100, tt.least*100)
			}
			if late := s.in.buf.Stats().Late; s.outOfOrder > int(late) {
				t.Errorf("%d packets out of order, %d late", s.outOfOrder, late)
			}
			for i, l := range s.links {
				if q := l.idleAt - s.now; q > l.maxQueue() {
					t.Errorf("link %d has a queue of %v", i, q)
				}
			}
		})
	}
}

func TestSimulatedDeath(t *testing.T) {
	var links []*simLink
	for range 4 {
		links = append(links, &simLink{rate: mbit(100), delay: time.Millisecond})
	}
	s := newSim(3, links...)
	s.run(2 * time.Second)
	lost := s.in.buf.Stats().Lost
	s.longestSilence, links[1].dead = 0, true
	s.run(time.Second)
	if s.longestSilence > 60*time.Millisecond {
		t.Errorf("nothing was delivered for %v", s.longestSilence)
	}
	if n := s.in.buf.Stats().Lost - lost; n > 0 {
		t.Errorf("%d packets were lost", n)
	}
	if got := s.rate(time.Second) / mbit(300); got < 0.97 {
		t.Errorf("three links carry %.1f %% of their capacity", got*100)
	}
	links[1].dead = false
	s.run(3 * time.Second)
	if got := s.rate(time.Second) / mbit(400); got < 0.95 {
		t.Errorf("four links carry %.1f %% of their capacity after the return", got*100)
	}
}

// TestSimulatedDeathOfHalf offers five sixths of the remaining capacity when one of two
// paths dies: no packet may be dropped for having waited.
func TestSimulatedDeathOfHalf(t *testing.T) {
	for seed := range uint64(20) {
		links := []*simLink{{rate: mbit(50), delay: time.Millisecond}, {rate: mbit(50), delay: time.Millisecond}}
		s := newSimPair(seed, links...)
		s.run(time.Second)
		s.datagrams(42)
		s.run(time.Second + time.Duration(seed)*time.Millisecond)
		links[seed%2].dead = true
		lost := s.in.buf.Stats().Lost
		s.run(500 * time.Millisecond)
		if n := s.in.buf.Stats().Lost - lost; s.dropped > 0 || n > 0 {
			t.Errorf("seed %d: %d packets dropped, %d lost", seed, s.dropped, n)
		}
	}
}

// TestSimulatedLate stops the sending end for a while, in which the device holds new
// packets: all of them must be sent afterwards.
func TestSimulatedLate(t *testing.T) {
	for seed := range uint64(20) {
		var links []*simLink
		for range 3 {
			links = append(links, &simLink{rate: mbit(100), delay: time.Millisecond})
		}
		s := newSimPair(seed, links...)
		s.run(time.Second)
		s.datagrams(250)
		s.run(time.Second + time.Duration(seed)*time.Millisecond)
		s.dropped = 0
		s.haltedUntil = s.now + 100*time.Millisecond
		s.run(time.Second)
		if n := s.in.buf.Stats().Lost; s.dropped > 0 || n > 0 {
			t.Errorf("seed %d: %d packets dropped, %d lost", seed, s.dropped, n)
		}
	}
}

// TestSimulatedFlood offers twice what the paths carry, regardless of drops: the queue
// must stay bounded, and the paths full.
func TestSimulatedFlood(t *testing.T) {
	for _, rate := range []float64{5, 100} {
		s := newSimPair(1, &simLink{rate: mbit(rate), delay: time.Millisecond})
		s.run(time.Second)
		s.datagrams(2 * rate)
		s.run(2 * time.Second)
		share := s.rate(3*time.Second) / mbit(rate)
		waits, most := s.now-s.queue.oldest().first().readAt, max(s.out.maxWait(), time.Duration(minQueueBytes/mbit(rate)*1e9))
		if share < 0.95 || waits > most+10*time.Millisecond {
			t.Errorf("%g Mbit/s: packets wait %v, want %v; %.1f %% carried", rate, waits, most, share*100)
		}
	}
}

// TestSimulatedLongQueue lets packets wait for a second, as configured.
func TestSimulatedLongQueue(t *testing.T) {
	s := newSimPair(1, &simLink{rate: mbit(100), delay: time.Millisecond})
	s.out.t.queue.Store(int64(time.Second))
	s.run(time.Second)
	s.datagrams(200)
	s.run(1500 * time.Millisecond)
	if waits := s.now - s.queue.oldest().first().readAt; s.dropped > 0 || waits < 600*time.Millisecond {
		t.Errorf("%d packets were dropped; the oldest has waited %v", s.dropped, waits)
	}
}

// TestSimulatedLossAfterDeath loses packets for good after a path has died: they must be
// given up as soon as the living paths are past them, not after the longest wait.
func TestSimulatedLossAfterDeath(t *testing.T) {
	lossy := func() *simLink { return &simLink{rate: mbit(20), delay: 2 * time.Millisecond, loss: 0.1} }
	links := []*simLink{lossy(), lossy(), {rate: mbit(20), delay: 2 * time.Millisecond}}
	s := newSim(6, links...)
	s.run(2 * time.Second)
	links[2].dead = true
	s.run(500 * time.Millisecond)
	before := s.in.buf.Stats()
	s.keepsNothing = true
	s.run(3 * time.Second)
	st := s.in.buf.Stats()
	if lost, forced := st.Lost-before.Lost, st.Forced-before.Forced; lost == 0 || forced > 0 {
		t.Errorf("%d packets were given up, %d of them only after the longest wait", lost, forced)
	}
}

// TestSimulatedFlapping checks that the queue stays short although a path that carries
// nothing dies again and again.
func TestSimulatedFlapping(t *testing.T) {
	s := newSimPair(1, &simLink{rate: mbit(7), delay: 11 * time.Millisecond},
		&simLink{rate: mbit(5), delay: 5 * time.Millisecond, flapTime: 200 * time.Millisecond})
	s.run(2 * time.Second)
	c := newSimTCP(s.simClock, 0, s.offer, s.reverse.offer)
	s.run(10 * time.Second)
	if s.deaths < 5 || s.dropped == 0 || c.srtt > 150*time.Millisecond {
		t.Errorf("%d deaths, %d packets dropped, round trips of %v", s.deaths, s.dropped, c.srtt)
	}
}

// TestSimulatedHold cuts a path and all reports, so that nobody notices its death:
// packets of the other path must not wait longer than allowed.
func TestSimulatedHold(t *testing.T) {
	s := newSim(7, &simLink{rate: mbit(50), delay: 2 * time.Millisecond}, &simLink{rate: mbit(20), delay: 2 * time.Millisecond})
	s.run(time.Second)
	s.links[1].dead = true
	for _, l := range s.reverse.links {
		l.dead = true
	}
	s.run(50 * time.Millisecond)
	s.longestSilence = 0
	s.run(2 * time.Second)
	if s.longestSilence = max(s.longestSilence, s.now-s.lastDeliveryAt); s.longestSilence > 300*time.Millisecond {
		t.Errorf("nothing was delivered for %v", s.longestSilence)
	}
}

// TestSimulatedStarvation delays the receiver's reports: a starved processor must not
// kill a path.
func TestSimulatedStarvation(t *testing.T) {
	s := newSim(4, &simLink{rate: mbit(100), delay: time.Millisecond}, &simLink{rate: mbit(100), delay: 5 * time.Millisecond})
	s.run(time.Second)
	s.in.reporter.due, s.in.reporter.last = s.now+300*time.Millisecond, s.now+300*time.Millisecond
	for range 300 {
		s.run(time.Millisecond)
		if set := s.sender.LiveSet(); set != 3 {
			t.Fatalf("paths in use: %b", set)
		}
	}
}

// TestSimulatedAtRandom checks properties of random networks: the sum is not below the
// best single path, and queues and reordering are bounded.
func TestSimulatedAtRandom(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			var links []*simLink
			best := 0.0
			for range 1 + rng.IntN(6) {
				l := &simLink{rate: mbit(math.Pow(10, 0.5+2*rng.Float64())), delay: time.Duration(1+rng.IntN(40)) * time.Millisecond}
				if rng.IntN(3) == 0 {
					l.loss = rng.Float64() * 0.03
				}
				best = max(best, l.rate*(1-l.loss))
				links = append(links, l)
			}
			s := newSim(seed, links...)
			s.run(3 * time.Second)
			got := s.rate(2 * time.Second)
			if got < 0.93*best {
				t.Errorf("%d links carry %.1f Mbit/s, the best one alone %.1f", len(links), got*8e-6, best*8e-6)
			}
			for i, l := range links {
				if q := l.idleAt - s.now; q > l.maxQueue() {
					t.Errorf("link %d (%.1f Mbit/s) has a queue of %v", i, l.rate*8e-6, q)
				}
			}
			if st := s.in.buf.Stats(); s.outOfOrder > int(st.Late) {
				t.Errorf("%d packets out of order, %d late", s.outOfOrder, st.Late)
			}
			t.Logf("%d links, %.1f of %.1f Mbit/s (best %.1f), %+v", len(links), got*8e-6, s.sum()*8e-6, best*8e-6, s.in.buf.Stats())
		})
	}
}

// TestSimulatedStart has both ends measure new paths at once, as they do: reports wait
// behind the other end's padding, so more padding is sent than fits the queues. The
// measured rates must persist although only probes follow, and no path may be declared
// dead.
func TestSimulatedStart(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 17))
		var links []*simLink
		for range 3 {
			links = append(links, &simLink{rate: mbit(5 + 195*rng.Float64()), delay: time.Duration(rng.IntN(10000)) * time.Microsecond, queue: time.Duration(3+rng.IntN(60)) * time.Millisecond})
		}
		s := newSimPair(seed, links...)
		for range 4 {
			s.run(700 * time.Millisecond)
			for i, l := range links {
				if rate := s.sender.Status(s.now, i).RateBitsPerSec / 8; rate < 0.4*l.rate || rate > 2.5*l.rate {
					t.Errorf("seed %d: on a link of %.1f Mbit/s, padding measured %.1f", seed, l.rate*8e-6, rate*8e-6)
				}
			}
		}
		if n := s.deaths + s.reverse.deaths; n > 0 {
			t.Errorf("seed %d: %d false deaths", seed, n)
		}
	}
}

// TestSimulatedSlowStart checks that slow paths, and paths beside them, are not declared
// dead while they are measured.
func TestSimulatedSlowStart(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 17))
		some := func(rate float64, most time.Duration) *simLink {
			return &simLink{rate: mbit(rate), delay: time.Duration(rng.IntN(20)) * time.Millisecond, queue: 25*time.Millisecond + time.Duration(rng.Int64N(int64(most)))}
		}
		links := []*simLink{some(0.5, 400*time.Millisecond)}
		for range 1 + rng.IntN(2) {
			links = append(links, some(5+195*rng.Float64(), 40*time.Millisecond))
		}
		s := newSimPair(seed, links...)
		s.run(3 * time.Second)
		if n := s.deaths + s.reverse.deaths; n > 0 {
			t.Errorf("seed %d: %d false deaths", seed, n)
		}
	}
}
