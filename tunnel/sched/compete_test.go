package sched

import (
	"testing"
	"time"
)

// rival is a TCP connection (Reno) that shares a link with a path.
type rival struct {
	window   float64 // packets
	arrivals []time.Duration
	reduced  time.Duration
	packets  int // delivered
}

func (v *rival) send(l *link) {
	for len(v.arrivals) > 0 && v.arrivals[0] <= l.now {
		v.arrivals = v.arrivals[1:]
		v.packets++
		v.window += 1 / v.window
	}
	for float64(len(v.arrivals)) < v.window {
		start := max(l.now, l.free)
		if start-l.now > l.limit {
			if l.now-v.reduced > 2*l.delay+l.limit {
				v.window, v.reduced = v.window/2, l.now
			}
			return
		}
		l.free = start + time.Duration(1500/l.rate*1e9)
		v.arrivals = append(v.arrivals, l.free+2*l.delay)
	}
}

// TestCompetition checks that a path shares a link with a TCP connection that fills its queue,
// and keeps a short queue again when that has ended.
func TestCompetition(t *testing.T) {
	const rate = 20e6 / 8
	l := newLink(rate, 10*ms)
	l.limit = 60 * ms
	l.run(2*time.Second, 2*rate)
	l.rival = &rival{window: 10}
	l.run(10*time.Second, 2*rate) // it finds its share
	if l.rival.packets = 0; !l.p.control.competition.active {
		t.Error("the path does not compete")
	}
	l.run(30*time.Second, 2*rate)
	own, others := float64(l.bytes), float64(1500*l.rival.packets)
	if share := own / (own + others); share < 0.25 || share > 0.75 {
		t.Errorf("the path has %.0f %% of the link, want 25 to 75 %%", 100*share)
	}
	if used := (own + others) / 30 / rate; used < 0.9 {
		t.Errorf("%.0f %% of the link is used, want 90 %%", 100*used)
	}
	l.rival = nil
	l.run(15*time.Second, 2*rate)
	if l.p.control.competition.active {
		t.Error("the path competes with nobody")
	}
	if l.run(2*time.Second, 2*rate); l.longest > 15*ms {
		t.Errorf("queue of %v afterwards, want at most 15ms", l.longest)
	}
}

// TestNewRoute checks that a path whose delay has become longer does not compete.
func TestNewRoute(t *testing.T) {
	const rate = 20e6 / 8
	l := newLink(rate, 10*ms)
	l.run(2*time.Second, 2*rate)
	l.p.drain.lastAt = l.now // the next one will be because of the delay
	for l.delay = 40 * ms; l.now < 8*time.Second; {
		if l.run(100*ms, 2*rate); l.p.control.competition.active {
			t.Fatalf("the path competes after %v", l.now)
		}
	}
	if l.run(2*time.Second, 2*rate); float64(l.bytes) < 0.9*2*rate {
		t.Errorf("%d bytes/s, want 90 %% of %.0f", l.bytes/2, rate)
	}
}

// TestCompanions checks that paths in the same queue are recognized, and reduce their windows
// together.
func TestCompanions(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(bin int) float64 // queue of the second path, µs
		want int
	}{
		{"the same queue", func(bin int) float64 { return 10e3 + 500*float64(bin) + 300 }, 1},
		{"a longer queue", func(bin int) float64 { return 16e3 + 500*float64(bin) }, 0},
		{"another queue", func(bin int) float64 { return 40e3 - 400*float64(bin) }, 0},
	} {
		s := newSender(2)
		for i, p := range s.paths {
			p.delay.smoothedRTT, p.control.capacity = 50*ms, 1e6
			p.control.competition = competition{active: true, base: float64(1000 * i), window: 1e5, highest: 1e5}
			for bin := range 40 {
				queue := 10e3 + 500*float64(bin)
				if i == 1 {
					queue = c.with(bin)
				}
				p.levels.add(time.Duration(bin+1)*binTime, float64(1000*i)+queue)
			}
		}
		s.paths[0].control.competition.reductions = 1
		s.findCompanions(2 * time.Second)
		if got := s.paths[0].control.competition.companions; got != c.want {
			t.Errorf("%s: %d companions, want %d", c.name, got, c.want)
		}
		if reduced := s.paths[1].control.competition.window < 1e5; reduced != (c.want > 0) {
			t.Errorf("%s: the second path has reduced its window: %v", c.name, reduced)
		}
	}
}
