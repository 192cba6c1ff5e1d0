package tunnel

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"cleat/internal/linkzoo"
)

var (
	simFirst    = flag.Uint64("sim.first", 200, "first of the random networks to simulate")
	simNetworks = flag.Uint64("sim.networks", 10, "number of random networks to simulate")
	simSeconds  = flag.Int("sim.seconds", 8, "seconds to measure after the start")
)

// simulateTCP returns the throughput of TCP connections through a tunnel over such links,
// in bytes/s: in their first seconds, and after they have found their windows. The tunnel
// has been up for a while when they start, each at its own time.
func simulateTCP(seed uint64, connections int, links ...simLink) (first, then float64) {
	const up, found = 2 * time.Second, 4 * time.Second
	var own []*simLink
	for _, l := range links {
		own = append(own, &l)
	}
	s, rng := newSimPair(seed, own...), rand.New(rand.NewPCG(seed, 19))
	s.run(up)
	var all []*simTCP
	for i := range connections {
		s.run(time.Duration(rng.IntN(500)) * time.Millisecond)
		all = append(all, newSimTCP(s.simClock, i, s.offer, s.reverse.offer))
	}
	got := func(d time.Duration) float64 {
		n := 0
		for _, c := range all {
			n -= c.inOrderBytes
		}
		s.run(d)
		for _, c := range all {
			n += c.inOrderBytes
		}
		return float64(n) / d.Seconds()
	}
	first = got(found)
	return first, got(time.Duration(*simSeconds) * time.Second)
}

// randomLinks returns one to three useful links.
func randomLinks(seed uint64) []simLink {
	rng := rand.New(rand.NewPCG(seed, 13))
	var links []simLink
	for range 1 + rng.IntN(3) {
		links = append(links, simLink{rate: mbit(math.Pow(10, 0.8+0.8*rng.Float64())), delay: time.Duration(1+rng.IntN(20)) * time.Millisecond})
	}
	return links
}

// ratios are the mean and the least of the factors by which a change multiplies the
// throughput of random networks.
type ratios struct{ mean, least float64 }

func newRatios() ratios { return ratios{least: math.Inf(1)} }

func (r *ratios) add(v float64) {
	r.mean += v / float64(*simNetworks)
	r.least = min(r.least, v)
}

func (r *ratios) String() string { return fmt.Sprintf("%.3f, worst %.3f", r.mean, r.least) }

// TestSimulatedBadPath adds a path of little use to useful ones: TCP connections must not
// carry less. Once they have found their windows, equal networks vary by half a percent,
// as the first case shows, which adds nothing but shifts all start times. Before that, a
// connection may carry twice as much as with another start time, depending on whether its
// slow start ends early. So only the average of the first seconds is checked.
func TestSimulatedBadPath(t *testing.T) {
	lossy := simLink{rate: mbit(5), delay: 2 * time.Millisecond, loss: 0.15}
	later := lossy
	later.deadUntil = 9 * time.Second
	tests := []struct {
		name  string
		bad   *simLink
		least float64
	}{
		{"nothing", nil, 0.97},
		{"slow", &simLink{rate: mbit(0.5), delay: 2 * time.Millisecond}, 0.95},
		{"far", &simLink{rate: mbit(2), delay: 150 * time.Millisecond}, 0.93}, // one drop in 8 s, in one network of 50
		{"lossy", &lossy, 0.97},
		{"lossy, added later", &later, 0.93},
		{"longer and lossy", &simLink{rate: mbit(10), delay: 10 * time.Millisecond, loss: 0.1}, 0.95},
		{"all of these", &simLink{rate: mbit(0.5), delay: 150 * time.Millisecond, loss: 0.3}, 0.97},
		{"dead", &simLink{rate: mbit(50), delay: time.Millisecond, dead: true}, 0.97},
		{"dies", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, diesAt: 7 * time.Second}, 0.9},
		{"flaps", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, flapTime: 700 * time.Millisecond}, 0.95},
		{"comes and goes", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, unplugTime: 700 * time.Millisecond}, 0.95},
		{"comes and goes, very lossy", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, loss: 0.15, unplugTime: 700 * time.Millisecond}, 0.95},
		{"flaps fast", &simLink{rate: mbit(5), delay: 5 * time.Millisecond, flapTime: 200 * time.Millisecond}, 0.95},
	}
	for _, connections := range []int{1, 4} {
		alone := sync.OnceValue(func() (all [][2]float64) {
			for i := range *simNetworks {
				first, then := simulateTCP(*simFirst+i, connections, randomLinks(*simFirst+i)...)
				all = append(all, [2]float64{first, then})
			}
			return all
		})
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, %d", tt.name, connections), func(t *testing.T) {
				t.Parallel()
				first, then := newRatios(), newRatios()
				for i, without := range alone() {
					links := randomLinks(*simFirst + uint64(i))
					if tt.bad != nil {
						links = append(links, *tt.bad)
					}
					a, b := simulateTCP(*simFirst+uint64(i)+1e6, connections, links...)
					first.add(a / without[0])
					then.add(b / without[1])
				}
				t.Logf("at first %v, later %v", &first, &then)
				leastFirst := 0.93
				if tt.name == "far" { // slow start takes longer where round trips do
					leastFirst = 0.85
				}
				if first.mean < leastFirst || then.mean < 0.98 || then.least < tt.least {
					t.Errorf("with the path, the throughput changes by %v at first, want %.2f; by %v later, want 0.98 and %.2f", &first, leastFirst, &then, tt.least)
				}
			})
		}
	}
}

// TestSimulatedBest checks that TCP connections over several paths carry no less than
// over the best one.
func TestSimulatedBest(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			r := newRatios()
			for seed := range *simNetworks {
				best, links := 0.0, randomLinks(seed)
				for _, l := range links {
					_, alone := simulateTCP(seed, connections, l)
					best = max(best, alone)
				}
				_, all := simulateTCP(seed, connections, links...)
				r.add(all / best)
			}
			t.Log(&r)
			if r.least < 0.95 || r.mean < 1.2 {
				t.Errorf("all paths carry %v times as much as the best one", &r)
			}
		})
	}
}

// TestSimulatedBuckets runs one TCP connection over links with buckets of 64 kB, one of which is
// slow: padding overflows it for a third of a second.
func TestSimulatedBuckets(t *testing.T) {
	for _, rates := range [][]float64{{50, 50, 2}, {200, 100, 50, 20, 7}} {
		t.Run(fmt.Sprint(rates), func(t *testing.T) {
			t.Parallel()
			const lead, measure = 3 * time.Second, 10 * time.Second
			c := linkzoo.Case{Seed: 1}
			for _, r := range rates {
				c.Links = append(c.Links, linkzoo.Link{Rate: r * 1e6, BackRate: r * 1e6, Burst: 64e3, Queue: 50 * time.Millisecond, Delay: 20 * time.Microsecond})
			}
			z := newZooNet(&c)
			s := newDirections(z.clock, z.rng, z.there, z.back)
			s.run(lead)
			stream := newSimTCP(s.simClock, 0, s.offer, s.reverse.offer)
			s.run(measure)
			share := float64(stream.inOrderBytes) * 8 / measure.Seconds() / c.Capacity(lead, lead+measure)
			t.Logf("%.1f %%", share*100)
			if share < 0.985 {
				t.Errorf("%.1f %% of the sum carried, want 98.5", share*100)
			}
		})
	}
}

// TestSimulatedUnlike runs one TCP connection over links of different delays.
func TestSimulatedUnlike(t *testing.T) {
	tests := []struct {
		name   string
		delays []int // ms
		least  float64
	}{
		{"5 and 40 ms", []int{5, 40}, 0.75},
		{"1 to 30 ms", []int{1, 10, 20, 30}, 0.8},
		{"alike", []int{1, 1, 2, 2}, 0.97},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var links []*simLink
			for _, d := range tt.delays {
				links = append(links, &simLink{rate: mbit(25), delay: time.Duration(d) * time.Millisecond})
			}
			s := newSimPair(1, links...)
			c := newSimTCP(s.simClock, 0, s.offer, s.reverse.offer)
			s.run(14 * time.Second)
			before := c.inOrderBytes
			s.run(4 * time.Second)
			share := float64(c.inOrderBytes-before) / 4 / s.sum()
			t.Logf("%.1f %%", share*100)
			if share < tt.least {
				t.Errorf("%.1f %% of the sum carried, want %.0f", share*100, tt.least*100)
			}
		})
	}
}

// TestSimulatedUnplugged has one of four links go down for half of each second, with a
// notification at one end: the connection must use most of what the links carry while
// they are up.
func TestSimulatedUnplugged(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			link := simLink{rate: mbit(100), delay: 200 * time.Microsecond}
			links := []simLink{link, link, link, link}
			links[3].unplugTime = 500 * time.Millisecond
			_, then := simulateTCP(1, connections, links...)
			share := then / mbit(350)
			t.Logf("%.1f %%", share*100)
			if share < 0.96 {
				t.Errorf("%.1f %% of the links' capacity carried, want 96", share*100)
			}
		})
	}
}

// TestSimulatedEarly starts a TCP connection while the paths are being measured: its slow
// start must not end because of that.
func TestSimulatedEarly(t *testing.T) {
	for _, after := range []time.Duration{1, 50, 100, 150} {
		t.Run(fmt.Sprint(int(after), " ms"), func(t *testing.T) {
			t.Parallel()
			var links []*simLink
			for range 4 {
				links = append(links, &simLink{rate: mbit(50), delay: 40 * time.Millisecond, queue: 50 * time.Millisecond})
			}
			s := newSimPair(1, links...)
			s.run(after * time.Millisecond)
			c := newSimTCP(s.simClock, 0, s.offer, s.reverse.offer)
			s.run(4 * time.Second)
			share := float64(c.inOrderBytes) / 4 / s.sum()
			t.Logf("%.1f %%", share*100)
			if share < 0.4 {
				t.Errorf("%.1f %% of the sum carried at first, want 40", share*100)
			}
		})
	}
}
