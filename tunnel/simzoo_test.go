package tunnel

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/internal/linkzoo"
)

var (
	zooFirst = flag.Uint64("zoo.first", 1, "first seed of the zoo")
	zooCases = flag.Uint64("zoo.cases", 0, "number of cases of the zoo; 0: 150, or fewer with -short or -race")
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

func (r *zooResult) ofBest() float64         { return r.got / r.best }
func (r *zooResult) percentOfIdeal() float64 { return 100 * r.settled / r.ideal }

func (r *zooResult) String() string {
	return fmt.Sprintf("%.3f × best, %.1f %% of ideal, ping %v (own %v), policed loss %.1f %%, competitor %.2f: %s",
		r.ofBest(), r.percentOfIdeal(), r.ping.Round(time.Millisecond), r.own.Round(time.Millisecond), 100*r.policedLoss, r.competitor, r.Case.String())
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
		alone := c.Alone(i)
		return alone.Capacity(lead+zooWarmup, lead+settle+measure) / 8
	}
	slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, potential(b)-potential(a))) })
	best := 0.0
	for _, i := range order {
		if potential(i) <= best {
			break
		}
		alone := c.Alone(i)
		z := newZooNet(&alone)
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

// zooSelection returns the cases that the flags choose.
func zooSelection() []linkzoo.Case {
	n := *zooCases
	switch {
	case n > 0:
	case raceEnabled:
		n = 14
	case testing.Short():
		n = 42
	default:
		n = 150 // make test-long runs 300
	}
	var cases []linkzoo.Case
	for seed := *zooFirst; seed < *zooFirst+n; seed++ {
		c := linkzoo.New(seed)
		if *zooKind != "" {
			c = linkzoo.NewOfKind(seed, linkzoo.Kind(*zooKind))
		}
		cases = append(cases, c)
	}
	return cases
}

// zoo runs cases, some at a time.
func zoo(cases []linkzoo.Case, atOnce int) []zooResult {
	results := make([]zooResult, len(cases))
	var wg sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(cases)); i = next.Add(1) - 1 {
				results[i] = runZoo(cases[i])
			}
		})
	}
	wg.Wait()
	return results
}

// zooLeast is what the cases of a kind must reach: the worst of them and the one that a tenth
// are worse than, as multiples of the best link alone, and their median in percent of the
// ideal. The last two apply to zooEnough cases. The figures are a little less than what seeds
// 1 to 300 reach, so that it does not become less.
var zooLeast = map[linkzoo.Kind]struct{ worst, tenth, ideal float64 }{
	linkzoo.Plain:     {0.38, 1, 98},
	linkzoo.Lossy:     {1, 1.1, 97},
	linkzoo.Jittery:   {0.45, 1, 95},
	linkzoo.Reordered: {0.25, 0.7, 65},
	linkzoo.Policed:   {0.4, 0.4, 72},
	linkzoo.Stepping:  {0.95, 1, 97},
	linkzoo.Fading:    {0.98, 1, 95},
	linkzoo.Shared:    {0.6, 0.8, 75},
	linkzoo.Competing: {0.4, 0.9, 95},
	linkzoo.SlowBack:  {1, 1, 97},
	linkzoo.Slewing:   {0.98, 1.1, 97},
	linkzoo.Dying:     {0.85, 1.1, 97},
	linkzoo.Flapping:  {0.9, 0.95, 90},
	linkzoo.Anything:  {0.03, 0.35, 70},
}

// zooMostPing is by how much a ping beside the traffic may exceed the longest link in use, in
// all but one in thirty cases of the kinds without a shared bottleneck.
const zooMostPing = 30 * time.Millisecond

// zooMostPoliced is the share of what is sent to a policer that it may drop, in cases whose links
// have nothing else wrong with them.
const zooMostPoliced = 0.05

// TestSimulatedZoo runs random cases. With -v it lists all of them, worst first, and
// summarizes them in a table.
func TestSimulatedZoo(t *testing.T) {
	results := zoo(zooSelection(), runtime.GOMAXPROCS(0))
	slices.SortFunc(results, func(a, b zooResult) int { return cmp.Compare(a.ofBest(), b.ofBest()) })
	for i := range results {
		t.Log(&results[i])
	}
	t.Log("\n" + zooTable(results))
	slow := 0
	for i := range results {
		if r := &results[i]; r.Kind != linkzoo.Shared && r.ping-r.own > zooMostPing {
			slow++
		}
		if r := &results[i]; r.Kind == linkzoo.Policed && r.policedLoss > zooMostPoliced {
			t.Errorf("a policer drops %.1f %% of what it is sent, want at most %g: %s", 100*r.policedLoss, 100*zooMostPoliced, r)
		}
	}
	if slow > len(results)/30 {
		t.Errorf("in %d of %d cases pings take more than %v longer than the links, want at most one in thirty", slow, len(results), zooMostPing)
	}
	for kind, of := range zooByKind(results) {
		best, ideal := zooValues(of, (*zooResult).ofBest), zooValues(of, (*zooResult).percentOfIdeal)
		least, n := zooLeast[kind], len(of)
		if best[0] < least.worst {
			t.Errorf("%s: the worst case carries %.2f × the best link alone, want %g", kind, best[0], least.worst)
		}
		if n < zooEnough {
			continue
		}
		if tenth, median := best[n/10], ideal[n/2]; tenth < least.tenth || median < least.ideal {
			t.Errorf("%s: a tenth of the cases carry less than %.2f × the best link alone, want %g; the median %.1f %% of the ideal, want %g", kind, tenth, least.tenth, median, least.ideal)
		}
	}
}

// TestSimulatedZooRepeats runs a case of slow links of each kind, and again beside others: the
// results must be the same.
func TestSimulatedZooRepeats(t *testing.T) {
	var cases []linkzoo.Case
	for _, kind := range zooKinds() {
		for seed := uint64(1); ; seed++ {
			if c := linkzoo.NewOfKind(seed, kind); c.Capacity(0, time.Minute) < 60e6 && c.Longest() < 300*time.Millisecond {
				cases = append(cases, c)
				break
			}
		}
	}
	alone := zoo(cases, 1)
	slices.Reverse(cases)
	beside := zoo(cases, 4)
	slices.Reverse(beside)
	for i := range alone {
		// Printed, because NaN differs from itself.
		if a, b := fmt.Sprintf("%+v", alone[i]), fmt.Sprintf("%+v", beside[i]); a != b {
			t.Errorf("a case shows\n%s\nand, the second time,\n%s", a, b)
		}
	}
}
