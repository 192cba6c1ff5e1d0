package multipath

import (
	"time"

	"cleat/internal/linkzoo"
)

// Case returns the case of the zoo that the links are; ok is false if they are none.
func (s Spec) Case() (c linkzoo.Case, ok bool) {
	if s.Zoo == 0 {
		return linkzoo.Case{}, false
	}
	c = linkzoo.New(s.Zoo)
	if s.ZooCapBitsPerSec > 0 {
		c = c.Capped(s.ZooCapBitsPerSec)
	}
	if s.ZooLink > 0 {
		c = c.Alone(s.ZooLink - 1)
	}
	return c, true
}

// planCase is Plan for a case of the zoo.
func planCase(c linkzoo.Case) []Link {
	links := make([]Link, len(c.Links))
	for i, l := range c.Links {
		links[i] = Link{RateBitsPerSec: l.Rate, Delay: l.Delay, LossShare: l.Loss}
	}
	return links
}

// caseRate returns the mean rate in bit/s that the links of a case carry between two times,
// random losses subtracted. Links with one bottleneck count once, and a competitor's share is
// not subtracted.
func caseRate(c linkzoo.Case, from, to time.Duration) (sum float64) {
	for l := range c.Separate() {
		alone := linkzoo.Case{Links: []linkzoo.Link{*l}}
		sum += alone.Capacity(from, to) * (1 - l.Loss)
	}
	return sum
}
