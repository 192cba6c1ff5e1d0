package linkzoo

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"
)

// Capped returns the case with rates whose sum is at most sum, in bit/s: a lab may not be
// able to carry more. Each rate r becomes minRate·(r/minRate)^a, with the greatest a up to 1
// that the sum permits. So the least rate and the order of the rates stay, and rates that
// were log-uniform from 1 to 1000 Mbit/s are log-uniform up to a lower bound. A rate of the
// way back that differs from the way there stays too. Links with one bottleneck count once.
// Queues still hold three packets.
func (c Case) Capped(sum float64) Case {
	c.Links = slices.Clone(c.Links)
	if c.sumOfRates(1) <= sum {
		return c
	}
	low, high := 0.0, 1.0
	for range 50 {
		if a := (low + high) / 2; c.sumOfRates(a) > sum {
			high = a
		} else {
			low = a
		}
	}
	for i := range c.Links {
		l := &c.Links[i]
		symmetric := l.BackRate == l.Rate
		l.Rate = compressed(l.Rate, low)
		if symmetric {
			l.BackRate = l.Rate
		}
		if l.Queue > 0 {
			l.Queue = max(l.Queue, time.Duration(3*packetBytes*8/l.Rate*1e9))
		}
	}
	return c
}

func compressed(rate, exponent float64) float64 {
	return minRate * math.Pow(rate/minRate, exponent)
}

// Separate returns the links, of those with one bottleneck the first only.
func (c *Case) Separate() iter.Seq[*Link] {
	return func(yield func(*Link) bool) {
		counted := map[int]bool{}
		for i := range c.Links {
			l := &c.Links[i]
			if l.Bottleneck > 0 && counted[l.Bottleneck] {
				continue
			}
			if counted[l.Bottleneck] = true; !yield(l) {
				return
			}
		}
	}
}

// sumOfRates returns the sum of all rates that are compressed by an exponent.
func (c *Case) sumOfRates(exponent float64) (sum float64) {
	for l := range c.Separate() {
		sum += compressed(l.Rate, exponent)
	}
	return sum
}

// Competitors returns the numbers of the links that a competitor uses.
func (c *Case) Competitors() (links []int) {
	for i := range c.Links {
		if c.Links[i].Competitor {
			links = append(links, i)
		}
	}
	return links
}

// Alone returns the case with link i only, and with the competitor in a bottleneck that it shares.
func (c *Case) Alone(i int) Case {
	alone := *c
	alone.Links = slices.Clone(c.Links[i : i+1])
	l := &alone.Links[0]
	for _, o := range c.Links {
		l.Competitor = l.Competitor || o.Competitor && o.Bottleneck > 0 && o.Bottleneck == l.Bottleneck
	}
	return alone
}

// Promising returns the numbers of the links, beginning with the one over which a single cubic
// stream is expected to carry the most by itself between two times. It is a guess: the stream
// needs some round trips to fill the link, and random losses, changes of order, policers and
// competitors cost it a share.
func (c *Case) Promising(from, to time.Duration) []int {
	order := make([]int, len(c.Links))
	guesses := make([]float64, len(c.Links))
	for i := range c.Links {
		order[i] = i
		alone := c.Alone(i)
		guesses[i] = alone.guess(from, to)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(guesses[b], guesses[a]) })
	return order
}

// guess returns about what a cubic stream carries over the only link, in bit/s.
func (c *Case) guess(from, to time.Duration) float64 {
	l := &c.Links[0]
	const step = 100 * time.Millisecond
	rate := 0.0
	for at := from; at < to; at += step {
		if !l.Broken(at) {
			rate += l.RateAt(at) * float64(step) / float64(to-from)
		}
	}
	trip := c.Longest() + l.Queue/2
	segments := rate / 8 / packetBytes * trip.Seconds() // that fill the link
	growing := trip * time.Duration(3+math.Log2(max(segments, 2)))
	guess := rate * max(0.1, 1-growing.Seconds()/to.Seconds())
	if l.Loss > 0 { // RFC 8312, section 5.1, whichever of cubic and Reno is faster
		window := max(1.22/math.Sqrt(l.Loss), 1.17*math.Pow(trip.Seconds()/l.Loss, 0.75))
		guess = min(guess, window*packetBytes*8/trip.Seconds())
	}
	for _, is := range []bool{l.Reorders && l.Jitter > 0, l.Queue == 0, l.Competitor} {
		if is {
			guess /= 2
		}
	}
	return guess
}
