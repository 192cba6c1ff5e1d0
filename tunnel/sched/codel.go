package sched

import (
	"math"
	"time"
)

// CoDel decides at the head of a queue which packets to drop or mark, so that what
// waits stays short without the link running dry (RFC 8289). The zero value has a
// target of 3 ms and an interval of 50 ms.
type CoDel struct {
	Target   time.Duration // a standing queue of this length is tolerated
	Interval time.Duration // and a longer one for this time: a few round trips

	above    time.Duration // when it will have been above for an interval; 0: it is below
	next     time.Duration // the next drop
	count    int
	dropping bool
}

func (c *CoDel) target() time.Duration {
	if c.Target > 0 {
		return c.Target
	}
	return 3 * time.Millisecond
}

func (c *CoDel) interval() time.Duration {
	if c.Interval > 0 {
		return c.Interval
	}
	return 50 * time.Millisecond
}

// Drop tells whether to drop the packet at the head, which has waited for a time;
// backlog is the number of bytes that wait behind it.
func (c *CoDel) Drop(now, waited time.Duration, backlog int) bool {
	ok := c.over(now, waited, backlog)
	switch {
	case !ok:
		c.dropping = false
		return false
	case c.dropping && now < c.next:
		return false
	case c.dropping:
		c.count++
		c.next += c.step()
		return true
	}
	c.dropping = true
	if recent := now-c.next < 8*c.interval(); recent && c.count > 2 {
		c.count -= 2 // it has been dropping lately: go on from there
	} else {
		c.count = 1
	}
	c.next = now + c.step()
	return true
}

// over tells whether the queue has been longer than the target for an interval.
func (c *CoDel) over(now, waited time.Duration, backlog int) bool {
	if waited < c.target() || backlog < 2*1500 {
		c.above = 0
		return false
	}
	if c.above == 0 {
		c.above = now + c.interval()
	}
	return now >= c.above
}

// Forgive begins anew: the queue that stands has a reason that is over.
func (c *CoDel) Forgive() { c.above, c.dropping = 0, false }

func (c *CoDel) step() time.Duration {
	return time.Duration(float64(c.interval()) / math.Sqrt(float64(c.count)))
}
