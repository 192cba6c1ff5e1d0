package sched

import "time"

// savings is what a token bucket in the path may hold: what the path was sent less than its
// capacity, and no more than a bucket holds. What a path carries of it says nothing about
// the path's capacity.
type savings struct {
	bytes  float64
	at     time.Duration // time up to which bytes accounts for the capacity
	noneAt time.Duration // last time at which there were none
	since  time.Duration // last time at which there had been some for longer than lateness
}

// savingsLateness is how long there may be savings because the sender wakes up late.
const savingsLateness = 10 * time.Millisecond

// Buckets of common shapers hold no more than the lesser of these.
const (
	maxSavings     = 256 << 10 // bytes
	maxSavingsTime = 250 * time.Millisecond
	// A policed path's savings are spent slowly. Without this limit, a stream that sends less now
	// and then would never have spent them.
	maxPolicedSavingsTime = 50 * time.Millisecond
)

// maxSavingsTime returns how long it takes to carry what the path's bucket may hold.
func (c *rateControl) maxSavingsTime() time.Duration {
	if c.overload.policed > 0 {
		return maxPolicedSavingsTime
	}
	return maxSavingsTime
}

// spend takes bytes that are sent now off the savings of a path with the given capacity. They
// are at most what it carries in maxTime.
func (s *savings) spend(now time.Duration, capacity float64, maxTime time.Duration, bytes int) {
	s.bytes = min(s.bytes+capacity*(now-s.at).Seconds(), maxSavings, capacity*maxTime.Seconds()) - float64(bytes)
	s.at = now
	if s.bytes <= float64(2*fullPacketBytes)+capacity*runTime.Seconds() {
		s.noneAt = now
	} else if now-s.noneAt > savingsLateness {
		s.since = now
	}
	s.bytes = max(s.bytes, 0)
}
