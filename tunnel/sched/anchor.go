package sched

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// What decides on a bulk flow's paths. A connection carries little while its window grows, and
// its window grows once in a round trip. So paths that make the round trip longer must be worth
// that within anchorHorizon.
const (
	anchorHorizon    = 30 * time.Second
	firstWindowBytes = 10 * fullPacketBytes // RFC 6928
	minAnchorGain    = 1.03                 // a longer set of paths carries so much more
	noiseSpread      = 8                    // between the shortest and the longest delay, in median differences
)

// Anchored returns the paths that a bulk flow which begins now fills first: the shortest, up
// to the one with which a connection that starts slowly carries the most within anchorHorizon.
// The longest of them is the flow's anchor.
func (s *Sender) Anchored() (set uint64) {
	s.ordered = s.ordered[:0]
	for _, p := range s.paths {
		if p.carriesData() && !p.follows() && !p.unsteady() {
			s.ordered = append(s.ordered, p)
		}
	}
	slices.SortFunc(s.ordered, func(a, b *Path) int { return cmp.Compare(a.emptyTransit(), b.emptyTransit()) })
	var upTo uint64
	var rate, most float64
	var rtt time.Duration
	for _, p := range s.ordered {
		upTo |= 1 << p.ID
		rate += p.likelyRate()
		rtt = max(rtt, p.delay.minRTT)
		slowStart := rtt.Seconds() * math.Log2(max(rate*rtt.Seconds()/firstWindowBytes, 1))
		if carried := rate * (anchorHorizon.Seconds() - slowStart); set == 0 || carried > minAnchorGain*most {
			set, most = upTo, carried
		}
	}
	return set
}

// unsteady reports whether round trips over the path differ by more than what HyStart takes for a
// queue: a connection that starts slowly on it would end that at once.
func (p *Path) unsteady() bool {
	return microseconds(noiseSpread*p.delay.noise.get()) > hystartLimit(p.delay.minRTT)
}

// likelyRate returns the path's rate, or less if that is a guess that nothing has confirmed.
func (p *Path) likelyRate() float64 {
	if p.control.saturated {
		return p.pacer.rate
	}
	return min(p.pacer.rate, startGrowth*p.control.topRate)
}

// minAnchorShare is the least share of the rates of FlowPaths that their anchor has. A path that
// has turned out to be slower does not decide on the delay of the others.
const minAnchorShare = 0.02

// anchor returns the longest of FlowPaths, or nil if there is none.
func (s *Sender) anchor() (anchor *Path) {
	if s.FlowPaths == 0 {
		return nil
	}
	sum := 0.0
	for _, p := range s.paths {
		if s.FlowPaths&(1<<p.ID) != 0 && p.carriesData() {
			sum += p.pacer.rate
		}
	}
	for _, p := range s.paths {
		if s.FlowPaths&(1<<p.ID) != 0 && p.carriesData() && !p.follows() && p.pacer.rate >= minAnchorShare*sum && (anchor == nil || p.emptyTransit() > anchor.emptyTransit()) {
			anchor = p
		}
	}
	return anchor
}

// anchored returns the path with room that a bulk flow's packet takes, if one delivers it
// neither later nor earlier than the anchor does: one of FlowPaths before others. If the packet
// is covered, it is the path that delivers first; if not, the longest.
func (s *Sender) anchored(now time.Duration, flow uint32, size int, anchor *Path) (*Path, int) {
	type candidate struct {
		*Path
		room           int
		foreign        bool    // not one of FlowPaths
		short, arrival float64 // µs; short: by how much it is shorter than the anchor
	}
	var best candidate
	latest, covered := s.latestArrival(), s.covered(now, flow, anchor)
	longest := anchor.emptyTransit() - float64(delaySlack.Microseconds())
	var full uint64 // paths without room
	for _, p := range s.paths {
		if !p.Live() || p.health.sidelined {
			continue
		}
		c := candidate{Path: p, room: p.room(now), foreign: s.FlowPaths&(1<<p.ID) == 0, arrival: p.expectedArrival(now)}
		if c.room <= 0 || float64(c.room) < p.pacer.runBytes()/2 || s.windowFull(p, size) {
			full |= 1 << p.ID
			if !c.foreign {
				p.pacer.heldBackAt = now
			}
			continue
		}
		if !p.ledger.reported { // a metered path is measured by data, when there is no other
			c.arrival = math.Inf(1)
		} else if c.arrival > latest || s.notBefore(now, flow, p, size, anchor) > now {
			continue
		}
		if !covered {
			c.short = max(longest-p.leastTransit(size), 0)
		}
		if best.Path == nil || !c.foreign && best.foreign || c.foreign == best.foreign &&
			(c.short < best.short || c.short == best.short && c.arrival < best.arrival) {
			best = c
		}
	}
	if best.Path == nil {
		for _, p := range s.paths {
			if full&(1<<p.ID) != 0 {
				p.pacer.heldBackAt = now
			}
		}
		return nil, 0
	}
	last := s.lastArrival(flow)
	*last = max(*last, now+microseconds(best.transit(size)))
	return best.Path, max(size, min(best.room, int(best.pacer.runBytes())))
}

// A bulk flow's packets arrive by maxEarly earlier than by the anchor, or by one earlyShare-th
// of its round trip if that is less. HyStart sees a round trip that is an eighth or 4 ms longer
// than the shortest one, and BBR sends half as much if its round trips are twice the shortest.
const (
	maxEarly   = time.Millisecond
	earlyShare = 8
)

// notBefore returns from when on the head packet of a bulk flow may take a path: when it is
// delivered no earlier than if the anchor had taken it as soon as it was queued.
func (s *Sender) notBefore(now time.Duration, flow uint32, p *Path, size int, anchor *Path) time.Duration {
	if anchor == nil || !p.carriesData() || s.covered(now, flow, anchor) {
		return now
	}
	return s.leastArrival(now, anchor) - microseconds(p.transit(size))
}

// leastArrival returns the time before which the head packet must not be delivered.
func (s *Sender) leastArrival(now time.Duration, anchor *Path) time.Duration {
	return now - s.HeadWait + microseconds(anchor.emptyTransit()) - min(maxEarly, anchor.delay.minRTT/earlyShare)
}

// covered reports whether the head packet follows another one of its flow that arrives no earlier
// than leastArrival: the receiver, which keeps the order, delivers it after that, whichever path
// it takes.
func (s *Sender) covered(now time.Duration, flow uint32, anchor *Path) bool {
	return *s.lastArrival(flow) >= s.leastArrival(now, anchor)
}

// lastArrival returns where to keep when the last packet of a bulk flow arrives: the latest
// arrival of all its packets, as now and Path.transit have it.
func (s *Sender) lastArrival(flow uint32) *time.Duration {
	return &s.lastArrivals[flow%uint32(len(s.lastArrivals))]
}

// transit returns how long a packet of size bytes that is given to the path now takes if no
// queue stands in it, in µs.
func (p *Path) transit(size int) float64 {
	return p.delay.oneWay + (float64(size)+max(p.pacer.backlogBytes, 0))/p.pacer.rate*1e6
}

// leastTransit is transit if the path's bucket, which may hold what the path was sent less than
// its rate, lets the packet pass at once.
func (p *Path) leastTransit(size int) float64 {
	if c := &p.control; c.saturated && c.savings.bytes < float64(size) {
		return p.transit(size)
	}
	return p.delay.oneWay
}

func microseconds(v float64) time.Duration { return time.Duration(v * 1000) }
