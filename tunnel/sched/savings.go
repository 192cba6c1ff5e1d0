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
)

// spend takes bytes that are sent now off the savings of a path with the given capacity.
func (s *savings) spend(now time.Duration, capacity float64, bytes int) {
	s.bytes = min(s.bytes+capacity*(now-s.at).Seconds(), maxSavings, capacity*maxSavingsTime.Seconds()) - float64(bytes)
	s.at = now
	if s.bytes <= float64(2*fullPacketBytes)+capacity*runTime.Seconds() {
		s.noneAt = now
	} else if now-s.noneAt > savingsLateness {
		s.since = now
	}
	s.bytes = max(s.bytes, 0)
}
