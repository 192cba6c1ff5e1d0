package tunnel

import (
	"testing"
	"time"

	"cleat/internal/linkzoo"
)

// rivalLink is a link of 50 Mbit/s with a delay and a queue of 100 ms.
func rivalLink(delay time.Duration) linkzoo.Link {
	return linkzoo.Link{Rate: 50e6, BackRate: 50e6, Burst: 10 * simSize, Queue: 100 * time.Millisecond, Delay: delay}
}

// TestSimulatedRivals has a cubic stream of others in the bottleneck of all paths. Whatever the
// paths and streams, the tunnel takes about as much as one cubic stream over the shortest path. A
// competitor with a longer round trip than that keeps less.
func TestSimulatedRivals(t *testing.T) {
	t.Parallel()
	near, far := rivalLink(5*time.Millisecond), rivalLink(40*time.Millisecond)
	for _, c := range []struct {
		name       string
		links      []linkzoo.Link
		competitor float64 // least share of the competitor, which is on the first link
	}{
		{"one link", []linkzoo.Link{near}, 0.4},
		{"near first", []linkzoo.Link{near, far}, 0.4},
		{"far first", []linkzoo.Link{far, near}, 0.27},
		{"six", []linkzoo.Link{near, far, near, far, near, far}, 0.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, streams := range []int{1, 8} {
				z := linkzoo.Case{Seed: 1, Kind: linkzoo.Shared, Links: c.links, Traffic: linkzoo.Traffic{Streams: streams, Congestion: "cubic"}}
				for i := range z.Links {
					z.Links[i].Bottleneck = 1
				}
				z.Links[0].Competitor = true
				if r := runZoo(z); r.ofBest() < 0.85 || r.competitor < c.competitor {
					t.Errorf("want at least 0.85 × best and %g for the competitor: %s", c.competitor, &r)
				}
			}
		})
	}
}

// simulateRival runs a stream over one link. The function that it returns runs it for as long
// again and returns what the stream carried meanwhile, as a share of the link.
func simulateRival(competitor bool) (s *simNet, z *zooNet, share func(time.Duration) float64) {
	l := rivalLink(10 * time.Millisecond)
	l.Competitor = competitor
	c := linkzoo.Case{Seed: 1, Links: []linkzoo.Link{l}, Traffic: linkzoo.Traffic{Streams: 1, Congestion: "cubic"}}
	z = newZooNet(&c)
	s = newDirections(z.clock, z.rng, z.there, z.back)
	s.run(2 * time.Second)
	delivered := z.traffic(s, &c)
	return s, z, func(d time.Duration) float64 {
		before := delivered()
		s.run(d)
		return (delivered() - before) / d.Seconds() / (l.Rate / 8)
	}
}

// TestSimulatedRivalGone has the competitor stop.
func TestSimulatedRivalGone(t *testing.T) {
	t.Parallel()
	s, z, share := simulateRival(true)
	if beside := share(20 * time.Second); !s.sender.Status(s.now, 0).Contended || beside > 0.75 {
		t.Errorf("%.2f of the link beside a competitor, contended: %v", beside, s.sender.Status(s.now, 0).Contended)
	}
	z.competitors[0].window = 0
	share(45 * time.Second)
	alone := share(10 * time.Second)
	if s.sender.Status(s.now, 0).Contended || alone < 0.93 {
		t.Errorf("%.2f of the link long after the competitor has stopped, contended: %v", alone, s.sender.Status(s.now, 0).Contended)
	}
}

// TestSimulatedLongerRoute has the path become longer, which is no competitor's queue.
func TestSimulatedLongerRoute(t *testing.T) {
	t.Parallel()
	s, z, share := simulateRival(false)
	share(5 * time.Second)
	z.there[0].delay += 30 * time.Millisecond
	share(60 * time.Second)
	if carried := share(10 * time.Second); s.sender.Status(s.now, 0).Contended || carried < 0.93 {
		t.Errorf("%.2f of a link that has become longer, contended: %v", carried, s.sender.Status(s.now, 0).Contended)
	}
}
