package tunnel

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"cleat/internal/linkzoo"
)

var (
	zooFirst = flag.Uint64("zoo.first", 1, "first seed of the zoo")
	zooCases = flag.Uint64("zoo.cases", 42, "number of cases of the zoo")
	zooFlood = flag.Bool("zoo.flood", false, "always have packets to send, instead of the case's traffic")
	zooKind  = flag.String("zoo.kind", "", "only cases of this kind")
)

const (
	zooWindow    = 1 << 16         // segments that receivers buffer
	zooWarmup    = 2 * time.Second // of the traffic, not measured
	zooPackets   = 200e3           // about how many packets each measurement takes
	zooPingEvery = 20 * time.Millisecond
)

// zooTimes returns how long the traffic of a case needs to settle, and how long it is
// measured afterwards.
func zooTimes(c *linkzoo.Case) (settle, measure time.Duration) {
	perSecond := c.Capacity(0, time.Minute) / 8 / simSize
	settle = zooWarmup + 20*c.Longest()
	measure = time.Duration(zooPackets / perSecond * 1e9)
	return settle, min(max(measure, 3*time.Second), 20*time.Second)
}

// zooLead returns how long the tunnel is up before the traffic starts.
func zooLead(c *linkzoo.Case) time.Duration { return time.Second + 12*c.Longest() }

// zooResult is what a case has shown. Rates are in bytes/s.
type zooResult struct {
	linkzoo.Case
	best, got      float64       // of the best link alone and of the tunnel, from zooWarmup on
	ideal, settled float64       // what the links carry and what the tunnel carried, after it has settled
	ping, own      time.Duration // 95 % of the pings took no longer; the longest round trip of a used link without load
	policedLoss    float64
	competitor     float64 // share of its link that the competitor had; NaN: there is none
}

func (r *zooResult) ofBest() float64  { return r.got / r.best }
func (r *zooResult) ofIdeal() float64 { return r.settled / r.ideal }

func (r *zooResult) String() string {
	return fmt.Sprintf("%.3f × best, %.1f %% of ideal, ping %v (own %v), policed loss %.1f %%, competitor %.2f: %s",
		r.ofBest(), 100*r.ofIdeal(), r.ping.Round(time.Millisecond), r.own.Round(time.Millisecond), 100*r.policedLoss, r.competitor, r.Case.String())
}

// zooBest returns what the best link of a case carries alone, with one cubic stream.
func zooBest(c *linkzoo.Case) float64 {
	settle, measure := zooTimes(c)
	lead := zooLead(c)
	order := make([]int, len(c.Links))
	for i := range order {
		order[i] = i
	}
	potential := func(i int) float64 {
		alone := linkzoo.Case{Links: c.Links[i : i+1]}
		return alone.Capacity(lead+zooWarmup, lead+settle+measure) / 8
	}
	slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, potential(b)-potential(a))) })
	best := 0.0
	for _, i := range order {
		if potential(i) <= best {
			break
		}
		z := newZooNet(c, i)
		z.clock.advance(lead, func() {})
		t := z.tcp(0, "cubic")
		t.window = zooWindow
		z.clock.advance(zooWarmup, func() {})
		before := t.inOrderBytes
		z.clock.advance(settle+measure-zooWarmup, func() {})
		best = max(best, float64(t.inOrderBytes-before)/(settle+measure-zooWarmup).Seconds())
	}
	return best
}

// zooIdeal returns what the traffic of a case carries over one link that has the sum of the
// rates, and the delay up to which most of it is reached.
func zooIdeal(c *linkzoo.Case) float64 {
	const most = 0.9
	settle, measure := zooTimes(c)
	lead := zooLead(c)
	capacity := c.Capacity(lead+settle, lead+settle+measure) / 8
	if *zooFlood {
		return capacity
	}
	if c.Traffic.Streams == 0 { // more than that isn't offered
		return 0.9 * capacity
	}
	byDelay := slices.SortedFunc(slices.Values(c.Links), func(a, b linkzoo.Link) int { return cmp.Compare(a.Delay, b.Delay) })
	sum := linkzoo.Link{Rate: 8 * capacity, BackRate: 8 * capacity, Burst: 10 * simSize, Queue: 50 * time.Millisecond}
	for rate := 0.0; rate < most*sum.Rate && len(byDelay) > 0; byDelay = byDelay[1:] {
		rate += byDelay[0].RateAt(lead + settle)
		sum.Delay = byDelay[0].Delay
	}
	z := newZooNet(&linkzoo.Case{Seed: c.Seed, Links: []linkzoo.Link{sum}})
	var all []*simTCP
	for range c.Traffic.Streams {
		t := z.tcp(0, c.Traffic.Congestion)
		t.window = zooWindow
		all = append(all, t)
	}
	bytes := func() (n int) {
		for _, t := range all {
			n += t.inOrderBytes
		}
		return n
	}
	z.clock.advance(settle, func() {})
	before := bytes()
	z.clock.advance(measure, func() {})
	return float64(bytes()-before) / measure.Seconds()
}

// runZoo runs a case.
func runZoo(c linkzoo.Case) zooResult {
	r := zooResult{Case: c, best: zooBest(&c)}
	settle, measure := zooTimes(&c)
	z := newZooNet(&c)
	s := newDirections(z.clock, z.rng, z.there, z.back)
	s.slew, s.reverse.slew = c.SlewPPM/1e6, -c.SlewPPM/1e6
	lead := zooLead(&c)
	s.run(lead)
	delivered := z.traffic(s, &c)
	pings := z.pings(s)
	s.run(zooWarmup)
	warm := delivered()
	s.run(settle - zooWarmup)
	settled := delivered()
	before := z.snapshot()
	*pings = (*pings)[:0]
	s.run(measure)
	end := delivered()
	r.got = (end - warm) / (settle + measure - zooWarmup).Seconds()
	r.settled = (end - settled) / measure.Seconds()
	r.ideal = zooIdeal(&c)
	slices.Sort(*pings)
	if n := len(*pings); n > 0 {
		r.ping = (*pings)[n*95/100]
	}
	z.finish(&r, before, measure)
	return r
}

// traffic starts what the case sends. The function that it returns counts what has arrived,
// in bytes.
func (z *zooNet) traffic(s *simNet, c *linkzoo.Case) func() float64 {
	if *zooFlood {
		s.endless = true
		return func() float64 { return float64(s.deliveredBytes) }
	}
	if c.Traffic.Streams == 0 {
		s.datagrams(0.9 * c.Capacity(0, time.Minute) / 1e6)
		return func() float64 { return float64(s.deliveredBytes) }
	}
	var all []*simTCP
	for i := range c.Traffic.Streams {
		t := newSimTCP(s.simClock, i, s.offer, s.reverse.offer)
		t.use(c.Traffic.Congestion)
		t.window = zooWindow
		all = append(all, t)
	}
	return func() float64 {
		sum := 0
		for _, t := range all {
			sum += t.inOrderBytes
		}
		return float64(sum)
	}
}

// pings starts a ping beside the traffic and returns where its round trips are collected.
func (z *zooNet) pings(s *simNet) *[]time.Duration {
	const flow, size = simPingFlow, 100
	trips := new([]time.Duration)
	var ping func()
	ping = func() {
		sent := s.now
		s.offer(flow, size, func() {
			s.reverse.offer(flow, size, func() { *trips = append(*trips, s.now-sent) })
		})
		s.at(s.now+zooPingEvery, ping)
	}
	ping()
	return trips
}

// zooCount is what has passed a link, and a competitor's bytes.
type zooCount struct{ passed, dropped, competitor int }

func (z *zooNet) snapshot() []zooCount {
	var counts []zooCount
	for _, l := range z.there {
		counts = append(counts, zooCount{passed: l.shaper.passed, dropped: l.shaper.dropped})
	}
	for i, t := range z.competitors {
		counts[i].competitor = t.inOrderBytes
	}
	return counts
}

// finish adds what the links and competitors have shown since a snapshot.
func (z *zooNet) finish(r *zooResult, before []zooCount, measure time.Duration) {
	r.competitor = math.NaN()
	total := 0
	for i, now := range z.snapshot() {
		total += now.passed - before[i].passed
	}
	for i, now := range z.snapshot() {
		l := &r.Links[i]
		passed, dropped := now.passed-before[i].passed, now.dropped-before[i].dropped
		if passed*100 > total {
			alone := linkzoo.Case{Links: r.Links[i : i+1]}
			r.own = max(r.own, alone.Longest())
		}
		if l.Queue == 0 && passed+dropped > 100*simSize {
			r.policedLoss = max(r.policedLoss, float64(dropped)/float64(passed+dropped))
		}
	}
	for i := range z.competitors {
		for j := range r.Links {
			if l := &r.Links[j]; l.Competitor {
				r.competitor = float64(z.competitors[i].inOrderBytes-before[i].competitor) / measure.Seconds() / (l.Rate / 8)
			}
		}
	}
}

// zoo runs the cases that the flags choose, two at a time.
func zoo() []zooResult {
	var cases []linkzoo.Case
	for seed := *zooFirst; seed < *zooFirst+*zooCases; seed++ {
		c := linkzoo.New(seed)
		if *zooKind != "" {
			c = linkzoo.NewOfKind(seed, linkzoo.Kind(*zooKind))
		}
		cases = append(cases, c)
	}
	results := make([]zooResult, len(cases))
	var wg sync.WaitGroup
	next := make(chan int)
	for range 2 {
		wg.Go(func() {
			for i := range next {
				results[i] = runZoo(cases[i])
			}
		})
	}
	for i := range cases {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

// zooLeast is what the cases of a kind must reach: the worst of them, as a multiple of the best
// link alone, and their median in percent of the ideal. Where the best link alone carries more,
// the figures are what is reached at present, so that it does not become less.
var zooLeast = map[linkzoo.Kind]struct{ best, ideal float64 }{
	linkzoo.Plain:     {0.9, 97},
	linkzoo.Lossy:     {1, 40},
	linkzoo.Jittery:   {0.2, 90},
	linkzoo.Reordered: {1, 50},
	linkzoo.Policed:   {1, 35},
	linkzoo.Stepping:  {1, 90},
	linkzoo.Fading:    {1, 85},
	linkzoo.Shared:    {0.05, 5},
	linkzoo.Competing: {1, 90},
	linkzoo.SlowBack:  {1, 95},
	linkzoo.Slewing:   {1, 95},
	linkzoo.Dying:     {1, 90},
	linkzoo.Flapping:  {0.85, 85},
	linkzoo.Anything:  {1, 60},
}

// TestSimulatedZoo runs random cases. With -v it lists all of them, worst first.
func TestSimulatedZoo(t *testing.T) {
	results := zoo()
	slices.SortFunc(results, func(a, b zooResult) int { return cmp.Compare(a.ofBest(), b.ofBest()) })
	for i := range results {
		t.Log(&results[i])
	}
	for _, kind := range slices.Compact(slices.Sorted(slices.Values(linkzoo.Kinds))) {
		var best, ideal []float64
		for i := range results {
			if r := &results[i]; r.Kind == kind {
				best, ideal = append(best, r.ofBest()), append(ideal, 100*r.ofIdeal())
			}
		}
		if len(best) == 0 {
			continue
		}
		t.Log(zooSummary(kind, results))
		least := zooLeast[kind]
		slices.Sort(ideal)
		if worst, median := slices.Min(best), ideal[len(ideal)/2]; worst < least.best || median < least.ideal {
			t.Errorf("%s: the worst case carries %.2f × the best link alone, want %g; the median %.1f %% of the ideal, want %g", kind, worst, least.best, median, least.ideal)
		}
	}
}

// zooSummary describes how the cases of a kind are distributed.
func zooSummary(kind linkzoo.Kind, results []zooResult) string {
	var best, ideal, ping, loss, competitor []float64
	for i := range results {
		if r := &results[i]; r.Kind == kind {
			best, ideal = append(best, r.ofBest()), append(ideal, 100*r.ofIdeal())
			ping = append(ping, float64((r.ping-r.own)/time.Millisecond))
			loss = append(loss, 100*r.policedLoss)
			if !math.IsNaN(r.competitor) {
				competitor = append(competitor, r.competitor)
			}
		}
	}
	for _, v := range [][]float64{best, ideal, ping, loss, competitor} {
		slices.Sort(v)
	}
	n := len(best)
	s := fmt.Sprintf("%-10s n=%d: × best %.2f %.2f, %% of ideal %.1f %.1f, ping beyond %.0f %.0f ms, policed loss %.1f %%", kind, n, best[0], best[n/2], ideal[0], ideal[n/2], ping[n/2], ping[n-1], loss[n-1])
	if n := len(competitor); n > 0 {
		s += fmt.Sprintf(", competitor %.2f %.2f", competitor[0], competitor[n/2])
	}
	return s
}
