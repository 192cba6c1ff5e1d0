package sched

import (
	"math"
	"time"
)

// levels holds the delays that packets of a path met, by the time at which they were sent.
type levels struct {
	delays [64]float32 // lowest of each binTime, µs; a ring
	bins   [64]int32   // number of the bin since the epoch that the value is of
}

const (
	binTime      = 25 * time.Millisecond
	commonBins   = 16 // compared at least
	compareEvery = 100 * time.Millisecond
	togetherTime = 5 * time.Second // paths count as sharing a queue so long after they seemed to
)

func (l *levels) add(sentAt time.Duration, delay float64) {
	bin := int32(sentAt / binTime)
	i := int(bin) % len(l.bins)
	if l.bins[i] != bin || float32(delay) < l.delays[i] {
		l.bins[i], l.delays[i] = bin, float32(delay)
	}
}

// sameQueue reports whether packets of two paths that compete have met the same long queue, as
// it grew and shrank.
func sameQueue(a, b *Path) bool {
	n, sum, differing := 0, 0.0, 0.0
	low, high := math.Inf(1), 0.0
	for i, bin := range a.levels.bins {
		if bin != b.levels.bins[i] || bin == 0 {
			continue
		}
		queueA := float64(a.levels.delays[i]) - a.control.competition.base
		queueB := float64(b.levels.delays[i]) - b.control.competition.base
		n++
		mean := (queueA + queueB) / 2
		sum += mean
		differing += math.Abs(queueA - queueB)
		low, high = min(low, mean), max(high, mean)
	}
	long := max(a.longQueueMicros(), b.longQueueMicros())
	return n >= commonBins && sum > float64(n)*long && differing < 0.15*sum && high-low > 3*differing/float64(n)
}

// findCompanions finds out which of the paths that compete stand in the same queue.
func (s *Sender) findCompanions(now time.Duration) {
	if now-s.queuesComparedAt < compareEvery {
		return
	}
	s.queuesComparedAt = now
	for i, a := range s.paths {
		for _, b := range s.paths[:i] {
			if a.control.competition.active && b.control.competition.active && sameQueue(a, b) {
				a.together[b.ID], b.together[a.ID] = now, now
			}
		}
	}
	for _, p := range s.paths {
		if c := &p.control.competition; c.active {
			c.companions = 0
			s.eachCompanion(now, p, func(*Path) { c.companions++ })
			if c.reductions > 0 {
				c.reductions = 0
				s.eachCompanion(now, p, func(o *Path) {
					if now-o.control.competition.reduced > o.delay.smoothedRTT {
						o.reduceWindow(now)
					}
				})
			}
		}
	}
}

// eachCompanion calls f for the other paths that compete in the same queue.
func (s *Sender) eachCompanion(now time.Duration, p *Path, f func(*Path)) {
	for _, o := range s.paths {
		if at := p.together[o.ID]; o != p && at > 0 && now-at < togetherTime && o.control.competition.active {
			f(o)
		}
	}
}
