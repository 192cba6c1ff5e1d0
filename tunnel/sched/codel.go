package sched

import (
	"cmp"
	"math"
	"time"
)

// CoDel decides at the head of a queue which packets to drop or mark, so that the queue
// stays short and the link never runs dry (RFC 8289). The zero value has a target of 3 ms
// and an interval of 50 ms.
type CoDel struct {
	Target   time.Duration // a standing queue of this length is tolerated
	Interval time.Duration // a longer one is tolerated for this time: a few round trips

	dropAfter time.Duration // when the queue will have been above the target for an interval; 0: it is below
	nextDrop  time.Duration
	count     int // drops since dropping began
	dropping  bool
}

func (c *CoDel) target() time.Duration   { return cmp.Or(c.Target, 3*time.Millisecond) }
func (c *CoDel) interval() time.Duration { return cmp.Or(c.Interval, 50*time.Millisecond) }

// Drop reports whether to drop the packet at the head, which has waited for the given time.
// backlog is the number of bytes queued behind it.
func (c *CoDel) Drop(now, waited time.Duration, backlog int) bool {
	switch {
	case !c.overTarget(now, waited, backlog):
		c.dropping = false
		return false
	case c.dropping && now < c.nextDrop:
		return false
	case c.dropping:
		c.count++
		c.nextDrop += c.dropSpacing()
		return true
	}
	c.dropping = true
	if recent := now-c.nextDrop < 8*c.interval(); recent && c.count > 2 {
		c.count -= 2 // it was dropping a moment ago: continue from there
	} else {
		c.count = 1
	}
	c.nextDrop = now + c.dropSpacing()
	return true
}

// overTarget reports whether the queue has been longer than the target for an interval.
func (c *CoDel) overTarget(now, waited time.Duration, backlog int) bool {
	if waited < c.target() || backlog < 2*1500 {
		c.dropAfter = 0
		return false
	}
	if c.dropAfter == 0 {
		c.dropAfter = now + c.interval()
	}
	return now >= c.dropAfter
}

// Reset starts over: the reason for the standing queue is gone.
func (c *CoDel) Reset() { c.dropAfter, c.dropping = 0, false }

// dropSpacing returns the time between two drops.
func (c *CoDel) dropSpacing() time.Duration {
	return time.Duration(float64(c.interval()) / math.Sqrt(float64(c.count)))
}
