package sched

import (
	"math"
	"time"
)

// waitSlack is by how much paths may differ in delay and are used side by side all the same:
// what one is given ahead of its rate.
const waitSlack = depthTime + runTime

// early tells whether a packet that is given to the path now arrives before what comes
// last into the queue does over the shortest: that will have waited as long as the first has.
// Else everything behind them would be held up by them at the other end, and a TCP
// connection would see the round trip of its longest path with the window of its shortest.
func (s *Sender) early(p *Path) bool { return !p.reported || p.expected() <= s.patience() }

// patience is when it has to arrive for that, in µs of a scale that all paths share.
func (s *Sender) patience() float64 {
	return s.shortest() + float64((waitSlack + s.Waited).Microseconds())
}

// What a path loses is sent again, and what is behind it in a flow waits for that: a round trip
// and a report. A path that loses spoilLeast more of its packets than the others do is left
// alone where it does not bring spoilFactor times as much of their rate as it loses of its own:
// one connection carries more without it. It is probed meanwhile, and used again when it
// loses half as much, or brings twice as much.
const (
	spoilLeast  = 0.05
	spoilFactor = 4
	// knownAfter is how many packets tell what a path loses. With 15 % loss one path in 600 has
	// lost less than spoilLeast by then, with 10 % one in 17; so it is probed for as long again.
	knownAfter = 100
	knownPrior = 10  // packets that are thought to have come before
	knownMost  = 300 // and those that are remembered
	// A path that comes back within steadyAfter of when it last came has to bring twice as many,
	// up to knownAfter<<mostReturns: with a probe each 1 to 5 ms it takes up to 0.8 to 4 s. One of
	// 20 Mbit/s that is there for half a second at a time is not used any more.
	steadyAfter = 10 * time.Second
	mostReturns = 3
	// A path that went because somebody said so cost nothing by going: what was on its way was
	// sent again at once. It need not bring twice as many if it lost little before, and none at all
	// if it has brought trustAfter since it came: twice what probes bring.
	trustAfter = 4 * knownAfter
	// leaksAfter is for how long what is lost after padding says nothing: that was before the
	// path's rate was known.
	leaksAfter = 100 * time.Millisecond
)

// leak notes how many packets of news a path has lost.
func (p *Path) leak(now time.Duration, news, lost int) {
	if p.dead || now-p.padded < max(leaksAfter, 3*p.rtt) {
		return
	}
	p.judged += news
	if p.known == 0 && p.judged >= knownAfter<<p.returns {
		p.known = now
	}
	if p.standing < float64(queueLong.Microseconds()) { // a longer one overflows
		weight := float64(news) / float64(min(p.judged+knownPrior, knownMost))
		p.leaks += (float64(lost)/float64(news) - p.leaks) * min(1, weight)
	}
}

// returned begins anew to find out what a path loses that has been dead. Where it was only late
// that is known.
func (p *Path) returned(now time.Duration) {
	if p.late {
		return
	}
	good := p.said && p.leaks < spoilLeast/2
	switch {
	case now-p.back > steadyAfter:
		p.returns = 0
	case good:
	case p.returns < mostReturns:
		p.returns++
	}
	if !good || p.judged < trustAfter {
		p.known = 0
	}
	p.back, p.leaks, p.judged = now, 0, 0
}

// Unknown tells whether a path has brought something, but not enough yet to tell well what it
// loses.
func (p *Path) Unknown() bool {
	return p.Live() && p.reported && (p.known == 0 || p.judged < 2*knownAfter)
}

// Spoils tells whether the path is left alone because others carry more without it.
func (p *Path) Spoils() bool { return p.Live() && p.spoils }

// weigh finds out whether a path spoils the others: one that has never brought anything, where
// others have, does, too, and one of which is not known what it loses, where that was known of
// others before it came.
func (s *Sender) weigh(p *Path) {
	least, factor := spoilLeast, float64(spoilFactor)
	if p.lossy {
		least, factor = least/2, factor*2
	}
	all, come, before := 0.0, 0.0, false // of the others, bytes/s
	for _, o := range s.all {
		if o != p && o.Live() && o.reported && !o.spoils {
			all += o.rate
			come += o.rate * (1 - o.leaks)
			before = before || o.known > 0 && o.known < p.back
		}
	}
	if p.spoils, p.lossy = false, false; all == 0 {
		return
	}
	more := p.leaks - (1 - come/all)
	p.lossy = more > least && p.rate*(1-p.leaks) < factor*more*come
	p.spoils = p.lossy || !p.reported || p.known == 0 && before
}

// length is how long a full packet takes over the empty path, in µs of a scale that all paths
// share. Small ones go by that, too: a connection's acknowledgements would else fill a short and
// slow path first, then another, and its round trips become longer on the way as if by a queue.
func (p *Path) length() float64 { return p.delay + fullPacket/p.rate*1e6 }

// againCost is what it costs when a packet is lost that is sent again, µs: it passes for lost for
// good, and a connection halves its window or waits for its timeout.
const againCost = 1e6

// usual is how long a full packet takes over the empty path, µs, with what it costs that it may
// be lost; infinite: it has not brought anything yet.
func (p *Path) usual() float64 {
	if !p.reported {
		return math.Inf(1)
	}
	return p.length() + p.leaks*againCost
}

// shortest is the least length of a path in use.
func (s *Sender) shortest() float64 {
	first, some := 0.0, false
	for _, p := range s.all {
		if p.Live() && p.reported && !p.spoils && (!some || p.length() < first) {
			first, some = p.length(), true
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
	first := s.shortest()
	for _, p := range s.all {
		if !p.Live() || !p.reported || p.spoils {
			continue
		}
		others := 0.0
		for _, o := range s.all {
			if o.Live() && o.reported && o.length() < p.length() {
				others += o.rate
			}
		}
		if behind := p.length() - first; p.rate*1e6 > others*behind {
			d = max(d, behind)
		}
	}
	return max(time.Duration(d)*time.Microsecond-waitSlack, 0)
}
