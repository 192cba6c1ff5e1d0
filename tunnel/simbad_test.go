package tunnel

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

var (
	simFirst    = flag.Uint64("sim.first", 200, "first of the random networks that are judged")
	simNetworks = flag.Uint64("sim.networks", 10, "how many random networks are judged")
	simSeconds  = flag.Int("sim.seconds", 8, "for how long, after what comes before, seconds")
)

// carried is what TCP connections get through a tunnel over links like these, in bytes/s: in
// their first seconds, and when they have found their windows. The tunnel has been up for a
// while when they begin, each at a moment of its own.
func carried(seed uint64, connections int, links ...simLink) (first, then float64) {
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
		all = append(all, newSimTCP(s.simClock, i, s.offer, s.back.offer))
	}
	got := func(d time.Duration) float64 {
		n := 0
		for _, c := range all {
			n -= c.got
		}
		s.run(d)
		for _, c := range all {
			n += c.got
		}
		return float64(n) / d.Seconds()
	}
	first = got(found)
	return first, got(time.Duration(*simSeconds) * time.Second)
}

// someLinks are one to three that are of use.
func someLinks(seed uint64) []simLink {
	rng := rand.New(rand.NewPCG(seed, 13))
	var links []simLink
	for range 1 + rng.IntN(3) {
		links = append(links, simLink{rate: mbit(math.Pow(10, 0.8+0.8*rng.Float64())), delay: time.Duration(1+rng.IntN(20)) * time.Millisecond})
	}
	return links
}

// ratios are what a change makes of what random networks carry, on average and at worst.
type ratios struct{ mean, least float64 }

func newRatios() ratios { return ratios{least: math.Inf(1)} }

func (r *ratios) add(v float64) {
	r.mean += v / float64(*simNetworks)
	r.least = min(r.least, v)
}

func (r *ratios) String() string { return fmt.Sprintf("%.3f, at worst %.3f", r.mean, r.least) }

// TestSimulatedBadPath adds a path that is of little use to those that are: what TCP
// connections carry is not less for it. When they have found their windows, the same networks
// vary by half a percent, as the first case shows: it adds nothing, but has everything begin at
// other moments. Before that one connection of one network may carry twice as much as at another
// moment: whether its slow start ends early decides. So of the first seconds, only the average
// is judged.
func TestSimulatedBadPath(t *testing.T) {
	lossy := simLink{rate: mbit(5), delay: 2 * time.Millisecond, loss: 0.15}
	later := lossy
	later.comes = 9 * time.Second
	tests := []struct {
		name  string
		bad   *simLink
		least float64
	}{
		{"nothing", nil, 0.97},
		{"slow", &simLink{rate: mbit(0.5), delay: 2 * time.Millisecond}, 0.97},
		{"far", &simLink{rate: mbit(2), delay: 150 * time.Millisecond}, 0.93}, // one drop in 8 s, in one network of 50
		{"lossy", &lossy, 0.97},
		{"lossy, later", &later, 0.93},
		{"longer, lossy", &simLink{rate: mbit(10), delay: 10 * time.Millisecond, loss: 0.1}, 0.95},
		{"all of it", &simLink{rate: mbit(0.5), delay: 150 * time.Millisecond, loss: 0.3}, 0.97},
		{"dead", &simLink{rate: mbit(50), delay: time.Millisecond, dead: true}, 0.97},
		{"dies", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, dies: 7 * time.Second}, 0.9},
		{"flaps", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, flaps: 700 * time.Millisecond}, 0.95},
		{"comes and goes", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, pulls: 700 * time.Millisecond}, 0.95},
		{"comes and goes, loses much", &simLink{rate: mbit(20), delay: 5 * time.Millisecond, loss: 0.15, pulls: 700 * time.Millisecond}, 0.95},
		{"flaps fast", &simLink{rate: mbit(5), delay: 5 * time.Millisecond, flaps: 200 * time.Millisecond}, 0.95},
	}
	for _, connections := range []int{1, 4} {
		alone := sync.OnceValue(func() (all [][2]float64) {
			for i := range *simNetworks {
				first, then := carried(*simFirst+i, connections, someLinks(*simFirst+i)...)
				all = append(all, [2]float64{first, then})
			}
			return all
		})
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, %d", tt.name, connections), func(t *testing.T) {
				t.Parallel()
				first, then := newRatios(), newRatios()
				for i, without := range alone() {
					links := someLinks(*simFirst + uint64(i))
					if tt.bad != nil {
						links = append(links, *tt.bad)
					}
					a, b := carried(*simFirst+uint64(i)+1e6, connections, links...)
					first.add(a / without[0])
					then.add(b / without[1])
				}
				t.Logf("at first %v; then %v", &first, &then)
				if first.mean < 0.93 || then.mean < 0.98 || then.least < tt.least {
					t.Errorf("with the path it is %v times as much at first, want 0.93; %v then, want 0.98 and %.2f", &first, &then, tt.least)
				}
			})
		}
	}
}

// TestSimulatedBest has TCP connections carry no less over several paths than over the best
// of them.
func TestSimulatedBest(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			r := newRatios()
			for seed := range *simNetworks {
				best, links := 0.0, someLinks(seed)
				for _, l := range links {
					_, alone := carried(seed, connections, l)
					best = max(best, alone)
				}
				_, all := carried(seed, connections, links...)
				r.add(all / best)
			}
			t.Log(&r)
			if r.least < 0.95 || r.mean < 1.2 {
				t.Errorf("all paths carry %v times as much as the best", &r)
			}
		})
	}
}

// TestSimulatedUnlike has one TCP connection fill links of unlike delay.
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
			c := newSimTCP(s.simClock, 0, s.offer, s.back.offer)
			s.run(14 * time.Second)
			before := c.got
			s.run(4 * time.Second)
			share := float64(c.got-before) / 4 / s.sum()
			t.Logf("%.1f %%", share*100)
			if share < tt.least {
				t.Errorf("carried %.1f %% of the sum, want %.0f", share*100, tt.least*100)
			}
		})
	}
}

// TestSimulatedUnplugged has one of four links go down for half of each second, of which one end
// is told: it carries most of what it can while it is there.
func TestSimulatedUnplugged(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			link := simLink{rate: mbit(100), delay: 200 * time.Microsecond}
			links := []simLink{link, link, link, link}
			links[3].pulls = 500 * time.Millisecond
			_, then := carried(1, connections, links...)
			share := then / mbit(350)
			t.Logf("%.1f %%", share*100)
			if share < 0.96 {
				t.Errorf("carried %.1f %% of what the links can, want 96", share*100)
			}
		})
	}
}

// TestSimulatedEarly has one TCP connection begin while the paths are measured: its slow start
// does not end for that.
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
			c := newSimTCP(s.simClock, 0, s.offer, s.back.offer)
			s.run(4 * time.Second)
			share := float64(c.got) / 4 / s.sum()
			t.Logf("%.1f %%", share*100)
			if share < 0.4 {
				t.Errorf("carried %.1f %% of the sum at first, want 40", share*100)
			}
		})
	}
}
