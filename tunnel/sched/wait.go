package sched

import (
	"math"
	"time"
)

// waitSlack is by how much paths may differ in delay and are used side by side all the same:
// what one is given ahead of its rate.
const waitSlack = depthTime + runTime

// early tells whether size bytes that are given to the path now arrive before what comes
// last into the queue does over the shortest: it will have waited as long as the first has.
// Else everything behind them would be held up by them at the other end, and a TCP
// connection would see the round trip of its longest path with the window of its shortest.
func (s *Sender) early(p *Path, size int) bool {
	return !p.reported || p.expected(size) <= s.patience(size)
}

// patience is when size bytes have to arrive for that, in µs of a scale that all paths share.
func (s *Sender) patience(size int) float64 {
	return s.shortest(size) + float64((waitSlack + s.Waited).Microseconds())
}

// What a path loses is sent again, and what is behind it in a flow waits for that: a round trip
// and a report. A path that loses spoilLeast more of its packets than the others do is left
// alone where it does not bring spoilFactor times as much of their rate as it loses of its own:
// one connection carries more without it. What it lost is forgotten meanwhile, by half each
// spoilHalf, so that it is tried again.
const (
	spoilLeast  = 0.05
	spoilFactor = 4
	spoilHalf   = 5 * time.Second
	// leaksAfter is for how long a path that is new, or has come back, loses what says nothing:
	// padding, and what was sent before its rate was known.
	leaksAfter = time.Second
)

// weigh finds out whether a path spoils the others: one that has never brought anything, where
// others have, does, too.
func (s *Sender) weigh(now time.Duration, p *Path) {
	if p.spoils {
		p.leaks *= math.Exp2(-float64(now-p.weighed) / float64(spoilHalf))
	}
	p.weighed, p.spoils = now, false
	all, come := 0.0, 0.0 // of the others, bytes/s
	for _, o := range s.all {
		if o != p && o.Live() && o.reported && !o.spoils {
			all += o.rate
			come += o.rate * (1 - o.leaks)
		}
	}
	if all == 0 {
		return
	}
	more := p.leaks - (1 - come/all)
	p.spoils = !p.reported || more > spoilLeast && p.rate*(1-p.leaks) < spoilFactor*more*come
}

// length is how long size bytes take over the empty path, in µs of a scale that all paths
// share.
func (p *Path) length(size int) float64 { return p.delay + float64(size)/p.rate*1e6 }

// shortest is the least length of a path in use.
func (s *Sender) shortest(size int) float64 {
	first, some := 0.0, false
	for _, p := range s.all {
		if p.Live() && p.reported && !p.spoils && (!some || p.length(size) < first) {
			first, some = p.length(size), true
		}
	}
	return first
}

// Spread is by how much longer than the shortest the longest path takes that is worth
// waiting for, beyond what goes without a queue: packets have to wait as long before it is
// used. A path is worth 1 ms for each 0.1 % that it adds to the rate of shorter ones: 100
// Mbit/s are not made to wait for 145 ms by 5 more, and twelve alike of 1 to 50 ms are all
// used.
func (s *Sender) Spread() time.Duration {
	var d float64
	first := s.shortest(fullPacket)
	for _, p := range s.all {
		if !p.Live() || !p.reported || p.spoils {
			continue
		}
		others := 0.0
		for _, o := range s.all {
			if o.Live() && o.reported && o.length(fullPacket) < p.length(fullPacket) {
				others += o.rate
			}
		}
		if behind := p.length(fullPacket) - first; p.rate*1e6 > others*behind {
			d = max(d, behind)
		}
	}
	return max(time.Duration(d)*time.Microsecond-waitSlack, 0)
}
