// Package linkzoo makes random sets of links from seeds, to test multipath tunnels on links
// that nobody chose. A seed gives the same case everywhere: in the simulated network of
// package tunnel and on real links in a lab.
//
// Rates are log-uniform from 1 to 1000 Mbit/s. Buckets range from one packet to 256 kB or
// 100 ms, queues from 5 to 500 ms, delays from 0 to 300 ms. What else is wrong with the links
// depends on the Kind.
package linkzoo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"time"
)

// Kind says what is wrong with the links of a case.
type Kind string

// The kinds. A seed modulo the length of Kinds chooses one, so that consecutive seeds cover
// all of them.
const (
	Plain     Kind = "plain"      // token buckets with queues, nothing else
	Lossy     Kind = "lossy"      // random loss, to 3 %
	Jittery   Kind = "jittery"    // jitter to 30 ms that keeps the order
	Reordered Kind = "reordered"  // jitter to 30 ms that doesn't
	Policed   Kind = "policed"    // policers: buckets without a queue
	Stepping  Kind = "stepping"   // rates that change abruptly
	Fading    Kind = "fading"     // rates that fade and recover
	Shared    Kind = "shared"     // links with a common bottleneck
	Competing Kind = "competing"  // a cubic stream of others on one link
	SlowBack  Kind = "slow back"  // a way back of 1 Mbit/s
	Slewing   Kind = "slewing"    // a receiver's clock that runs up to 500 ppm fast or slow
	Dying     Kind = "dying"      // a link that dies
	Flapping  Kind = "flapping"   // a link that comes and goes
	Anything  Kind = "everything" // any of these on any link
)

// Kinds lists the kinds. Plain appears several times, because most rules are about it.
var Kinds = []Kind{
	Plain, Lossy, Plain, Jittery, Plain, Policed, Plain, Stepping, Plain, Shared,
	Plain, Competing, Plain, SlowBack, Plain, Dying, Slewing, Reordered, Fading, Flapping, Anything,
}

// Step is a change of a link's rate.
type Step struct {
	At     time.Duration // since the start of the case
	Factor float64       // of Link.Rate
}

// Outage is a time in which a link carries nothing and nobody is told.
type Outage struct{ From, To time.Duration }

// Link describes both directions of a link; unless a field says otherwise, they are equal.
type Link struct {
	Rate       float64       // bit/s, of packets with their outer headers
	Burst      int           // bytes that may pass at once after a pause
	Queue      time.Duration // what may wait beyond Burst at that rate; 0: nothing waits
	Delay      time.Duration // one way
	Jitter     time.Duration // maximum additional delay, uniform
	Reorders   bool          // jitter changes the order
	Loss       float64       // share of packets lost at random, 0…1
	Steps      []Step        // by time, forward only
	Outages    []Outage      // by time
	Bottleneck int           // links with the same number above 0 share the bucket and queue of the first
	Competitor bool          // a cubic stream of others runs over the link, forward
	BackRate   float64       // bit/s of the way back
}

// Traffic is what a case sends through the tunnel.
type Traffic struct {
	Streams    int    // TCP streams; 0: datagrams
	Congestion string // cubic, reno or bbr
}

// Case is a set of links, and what is sent over them.
type Case struct {
	Seed    uint64
	Kind    Kind
	Links   []Link
	SlewPPM float64 // how much faster the far end's clock runs, in parts per million
	Traffic Traffic
}

const (
	packetBytes = 1500
	minRate     = 1e6
	maxRate     = 1e9
	maxBurst    = 256 << 10
	end         = 10 * time.Minute // after the end of all cases
)

// New returns the case of a seed.
func New(seed uint64) Case { return NewOfKind(seed, Kinds[seed%uint64(len(Kinds))]) }

// NewOfKind returns the case of a seed with a given kind.
func NewOfKind(seed uint64, kind Kind) Case {
	g := generator{rand.New(rand.NewPCG(seed, 21))}
	c := Case{Seed: seed, Kind: kind, Traffic: g.traffic()}
	for range 2 + g.IntN(11) {
		c.Links = append(c.Links, g.link())
	}
	chosen := &c.Links[g.IntN(len(c.Links))]
	switch kind {
	case Plain:
	case Shared:
		g.share(c.Links)
	case Competing:
		chosen.Competitor = true
	case SlowBack:
		chosen.BackRate = minRate
	case Slewing:
		c.SlewPPM = g.between(-500, 500)
	case Dying, Flapping:
		g.spoil(chosen, kind)
	case Anything:
		c.SlewPPM = g.between(-50, 50)
		for i := range c.Links {
			g.spoil(&c.Links[i], []Kind{Plain, Lossy, Jittery, Reordered, Policed, Stepping, Fading, Flapping}[g.IntN(8)])
		}
	default: // at least one link, and each other one with a chance of a half
		g.spoil(chosen, kind)
		for i := range c.Links {
			if &c.Links[i] != chosen && g.IntN(2) == 0 {
				g.spoil(&c.Links[i], kind)
			}
		}
	}
	return c
}

type generator struct{ *rand.Rand }

// between returns a uniform value.
func (g generator) between(low, high float64) float64 { return low + (high-low)*g.Float64() }

// logBetween returns a log-uniform value.
func (g generator) logBetween(low, high float64) float64 {
	return low * math.Exp(math.Log(high/low)*g.Float64())
}

func (g generator) millis(low, high float64) time.Duration {
	return time.Duration(g.logBetween(low, high) * float64(time.Millisecond))
}

func (g generator) traffic() Traffic {
	switch n := g.IntN(8); {
	case n < 3:
		return Traffic{1, "cubic"}
	case n == 3:
		return Traffic{1, "reno"}
	case n == 4:
		return Traffic{1, "bbr"}
	case n < 7:
		return Traffic{8, "cubic"}
	}
	return Traffic{}
}

func (g generator) link() Link {
	l := Link{Rate: g.logBetween(minRate, maxRate), Queue: g.millis(5, 500)}
	largest := float64(maxBurst)
	if g.IntN(2) == 0 {
		largest = max(l.Rate/8*0.1, 2*packetBytes)
	}
	l.Burst = int(g.logBetween(packetBytes+100, largest))
	if l.Delay = g.millis(0.1, 300); g.IntN(8) == 0 {
		l.Delay = 0
	}
	// A queue holds at least three packets, as any real one does.
	l.Queue = max(l.Queue, time.Duration(3*packetBytes*8/l.Rate*1e9))
	l.BackRate = l.Rate
	return l
}

// spoil changes a link as the kind says.
func (g generator) spoil(l *Link, kind Kind) {
	switch kind {
	case Lossy:
		l.Loss = g.logBetween(1e-4, 0.03)
	case Jittery, Reordered:
		l.Jitter, l.Reorders = g.millis(0.3, 30), kind == Reordered
	case Policed:
		l.Queue = 0
		l.Burst = max(l.Burst, 10*packetBytes) // smaller ones pass nothing that arrives in bursts
	case Stepping:
		for at := g.seconds(2, 6); at < end; at += g.seconds(2, 6) {
			l.Steps = append(l.Steps, Step{at, g.logBetween(0.25, 1)})
		}
	case Fading:
		period, depth := g.seconds(1, 10), g.between(0.2, 0.9)
		for at := time.Duration(0); at < end; at += period / 20 {
			phase := 2 * math.Pi * float64(at) / float64(period)
			l.Steps = append(l.Steps, Step{at, 1 - depth*(1-math.Cos(phase))/2})
		}
	case Dying:
		l.Outages = []Outage{{g.seconds(3, 6), end}}
	case Flapping:
		for at := g.seconds(2, 3); at < end; {
			o := Outage{at, at + g.seconds(0.1, 2)}
			l.Outages = append(l.Outages, o)
			at = o.To + g.seconds(0.3, 4)
		}
	}
}

// seconds returns a log-uniform time.
func (g generator) seconds(low, high float64) time.Duration {
	return time.Duration(g.logBetween(low, high) * float64(time.Second))
}

// share lets two or more links pass one bottleneck, with delays of their own.
func (g generator) share(links []Link) {
	for i := range 2 + g.IntN(len(links)-1) {
		links[i].Bottleneck = 1
		links[i].Rate, links[i].BackRate, links[i].Burst, links[i].Queue = links[0].Rate, links[0].BackRate, links[0].Burst, links[0].Queue
	}
	links[0].Competitor = g.IntN(2) == 0
}

// RateAt returns the link's rate at a time since the start, in bit/s, without regard to
// outages.
func (l *Link) RateAt(at time.Duration) float64 {
	after := sort.Search(len(l.Steps), func(i int) bool { return l.Steps[i].At > at })
	if after == 0 {
		return l.Rate
	}
	return l.Rate * l.Steps[after-1].Factor
}

// Broken reports whether the link carries nothing at a time since the start.
func (l *Link) Broken(at time.Duration) bool {
	for _, o := range l.Outages {
		if at >= o.From && at < o.To {
			return true
		}
	}
	return false
}

// Capacity returns the mean rate that all links together carry between two times since the
// start, in bit/s. A competitor's share is not subtracted.
func (c *Case) Capacity(from, to time.Duration) float64 {
	const step = 10 * time.Millisecond
	sum, n := 0.0, 0
	for at := from; at < to; at += step {
		n++
		counted := map[int]bool{}
		for i := range c.Links {
			l := &c.Links[i]
			if l.Bottleneck > 0 && counted[l.Bottleneck] || l.Broken(at) {
				continue
			}
			counted[l.Bottleneck] = true
			sum += l.RateAt(at)
		}
	}
	return sum / float64(n)
}

// Longest returns the longest round trip of the empty links, jitter included.
func (c *Case) Longest() time.Duration {
	longest := time.Duration(0)
	for i := range c.Links {
		l := &c.Links[i]
		longest = max(longest, 2*(l.Delay+l.Jitter)+time.Duration(packetBytes*8*(1/l.Rate+1/l.BackRate)*1e9))
	}
	return longest
}

// String describes the case in a line.
func (c *Case) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s, %s", c.Seed, c.Kind, c.Traffic)
	if c.SlewPPM != 0 {
		fmt.Fprintf(&b, ", clock %+.0f ppm", c.SlewPPM)
	}
	for i := range c.Links {
		fmt.Fprintf(&b, "; %s", &c.Links[i])
	}
	return b.String()
}

// String describes the traffic.
func (t Traffic) String() string {
	if t.Streams == 0 {
		return "datagrams"
	}
	return fmt.Sprintf("%d × %s", t.Streams, t.Congestion)
}

// String describes the link.
func (l *Link) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.3g Mbit/s", l.Rate/1e6)
	if l.BackRate != l.Rate {
		fmt.Fprintf(&b, " (back %.3g)", l.BackRate/1e6)
	}
	fmt.Fprintf(&b, " %s %.3gkB", l.Delay.Round(100*time.Microsecond), float64(l.Burst)/1000)
	if l.Queue == 0 {
		b.WriteString(" policed")
	} else {
		fmt.Fprintf(&b, " q%s", l.Queue.Round(time.Millisecond))
	}
	if l.Jitter > 0 {
		fmt.Fprintf(&b, " ±%s", l.Jitter.Round(100*time.Microsecond))
		if l.Reorders {
			b.WriteString(" reordered")
		}
	}
	if l.Loss > 0 {
		fmt.Fprintf(&b, " loss %.2g%%", l.Loss*100)
	}
	if n := len(l.Steps); n > 0 {
		fmt.Fprintf(&b, " %d steps", n)
	}
	if n := len(l.Outages); n > 0 {
		fmt.Fprintf(&b, " %d outages", n)
	}
	if l.Bottleneck > 0 {
		fmt.Fprintf(&b, " shared %d", l.Bottleneck)
	}
	if l.Competitor {
		b.WriteString(" competitor")
	}
	return b.String()
}
