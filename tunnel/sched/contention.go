package sched

import (
	"math"
	"time"
)

// contention is the state of a path in which others may keep a queue. A path that is steered by
// its queue yields to them until next to nothing is left. So it takes the share of one CUBIC
// connection instead, if that matters.
type contention struct {
	matters    bool          // the paths without others' queues carry less than this one may
	queueSince time.Duration // since when a queue has stood in the path; 0: none does
	queueAt    time.Duration // when one was last seen
	bestRate   windowedMax   // that the path has delivered

	on         bool
	base       float64       // one-way delay of the empty path
	level      float64       // queue that stands in it, smoothed, µs
	measuredAt time.Duration // when level was last updated
	marked     uint32        // Report.Marked of the last report
	window     cubic         // of a leader

	leader     *Path         // the shortest path with the same bottleneck, which may be this one
	apartSince time.Duration // since when the leader's queue has differed from this path's

	testedAt   time.Duration // when the last joint drain was asked for
	testEvery  time.Duration
	shown      float64       // delay that the last one has shown
	shownAt    time.Duration // when
	sameTests  int           // how many in succession have shown the same delay
	emptyTests int           // how many in succession have shown no queue
	over       bool          // others keep no queue any more
}

const (
	queueRounds = 4                // feedback delays for which a queue stays before a joint drain
	freeTime    = 2 * time.Second  // without a queue, and others keep none
	bestRateAge = 30 * time.Second // the best rate is forgotten after this

	levelTime     = 200 * time.Millisecond // in which level follows the queue
	apartTime     = time.Second            // paths whose queues differ for so long have two bottlenecks
	followerShare = 0.02                   // of the leader's rate: enough to see a path's queue

	// A contended path is tested with a joint drain, at first after minTestEvery, and each time
	// after twice as long. Others keep no queue any more if maxEmptyTests have shown none. If
	// maxSameTests have shown the same delay, it is the path's own. Clocks drift by up to
	// maxDrift.
	minTestEvery  = 5 * time.Second
	maxTestEvery  = 20 * time.Second
	maxEmptyTests = 2
	maxSameTests  = 3
	maxDrift      = 600e-6
)

// checkContention decides which paths contend with others, and which of these have one
// bottleneck.
func (s *Sender) checkContention(now time.Duration) {
	free := 0.0
	for _, p := range s.paths {
		p.watchQueue(now)
		if p.free(now) {
			free += p.likelyRate()
		}
	}
	for _, p := range s.paths {
		others := free
		if p.free(now) {
			others -= p.likelyRate()
		}
		p.contention.matters = p.contention.bestRate.get() >= others
	}
	s.drainTogether(now)
	s.endContention(now)
	for _, p := range s.paths {
		if p.contention.on {
			s.follow(now, p)
		}
	}
}

// watchQueue asks for a joint drain if a queue stays in the path.
func (p *Path) watchQueue(now time.Duration) {
	k := &p.contention
	if !p.Live() {
		*k, p.drain.joint.wanted = contention{}, false
		return
	}
	k.bestRate.add(now, max(p.control.topRate, p.control.capacity), bestRateAge)
	if k.on {
		return
	}
	if p.delay.standingQueue < p.othersQueue() {
		k.queueSince = 0
		return
	}
	k.queueAt = now
	if k.queueSince == 0 {
		k.queueSince = now
	}
	if k.matters && now-k.queueSince > queueRounds*p.feedbackDelay() {
		p.drain.joint.wanted, k.queueSince = true, 0
	}
}

// free reports whether others have kept no queue in the path for some time.
func (p *Path) free(now time.Duration) bool {
	k := &p.contention
	return p.carriesData() && !k.on && (k.queueAt == 0 || now-k.queueAt > freeTime)
}

// othersQueue returns the queue beyond which a path that is sent nothing has others' packets, in
// µs. Unlike longQueueMicros it does not depend on what the path is sent now.
func (p *Path) othersQueue() float64 {
	noise := max(fullPacketBytes/max(p.contention.bestRate.get(), minRate)*1e6, min(2*p.delay.windowNoise.get(), float64(maxTarget.Microseconds())/2))
	return max(float64(longQueue.Microseconds()), 2*noise)
}

// wholeQueue returns the queue that stood in the path as of the last report, others' included,
// in µs.
func (p *Path) wholeQueue() float64 { return max(p.delay.standingQueue+p.contention.level, 0) }

// emptyOneWay returns the one-way delay of the path without others' queue, in µs.
func (p *Path) emptyOneWay() float64 { return p.delay.oneWay - p.contention.level }

// contend begins to take a share beside others, who keep a queue of so many µs in the path.
func (p *Path) contend(now time.Duration, queue float64) {
	k, c := &p.contention, &p.control
	k.on, k.base, k.level, k.measuredAt = true, p.delay.minimum.get(), queue, now
	k.shown, k.shownAt, k.testedAt, k.testEvery = k.base+queue, now, now, minTestEvery
	k.marked = p.ledger.lastReport.Marked
	if !c.saturated {
		c.saturated, c.capacity = true, p.likelyRate()
	}
	k.window = newCubic(now, max(c.capacity, k.bestRate.get()/2)*p.tripWith(queue).Seconds())
}

// tripWith returns the round trip with a queue of so many µs.
func (p *Path) tripWith(queue float64) time.Duration {
	return max(p.delay.minRTT, time.Millisecond) + microseconds(max(queue, 0))
}

// compete is update for a contended path: it sets the rate by the window, or leaves it to the
// leader. Others' queue counts as part of the path's delay.
func (p *Path) compete(now time.Duration, r Report, news, lost int, span time.Duration) {
	k, d := &p.contention, &p.delay
	delay := float64(r.MinDelay)
	k.base = min(k.base, delay)
	queue := delay - k.base
	k.level += (queue - k.level) * (1 - math.Exp(-(now-k.measuredAt).Seconds()/levelTime.Seconds()))
	k.measuredAt = now
	d.oneWay, d.standingQueue = k.base+k.level, queue-k.level
	if p.drain.sampling {
		if p.drain.collected && p.drain.joint.over && span >= minWindow {
			p.finishTest(now)
			p.window.begin(r, queue)
		}
		return
	}
	if span >= minWindow {
		p.window.begin(r, queue)
	}
	if marked := r.Marked - k.marked; lost > 0 || marked > 0 {
		k.marked = r.Marked
		k.window.lose(now, r.HighestSeq, uint32(p.ledger.nextSeq))
	} else {
		bytes, trip := float64(news*p.ledger.averageBytes), p.tripWith(queue)
		used := p.heldBackRecently(now, trip) && k.window.bytes < 2*(float64(p.ledger.inFlightBytes)+bytes)
		k.window.acknowledge(now, bytes, trip, used)
	}
	if p.follows() {
		return
	}
	p.setContendedRate(k.window.bytes / p.tripWith(queue).Seconds())
	if now-k.testedAt > k.testEvery {
		k.testedAt, k.testEvery = now, min(2*k.testEvery, maxTestEvery)
		p.drain.joint.wanted = true
	}
}

func (p *Path) setContendedRate(rate float64) {
	p.pacer.rate = rate
	p.clampRate()
	p.control.capacity = p.pacer.rate
}

// finishTest ends a joint drain of a contended path.
func (p *Path) finishTest(now time.Duration) {
	d, k := &p.drain, &p.contention
	if queue := d.lowest - k.base; d.joint.proves(queue) {
		drift := maxDrift * float64((now - k.shownAt).Microseconds())
		same := math.Abs(d.lowest-k.shown) < max(sameDelayMicros, 2*p.delay.windowNoise.get(), drift)
		k.sameTests = countIf(same, k.sameTests)
		k.emptyTests = countIf(queue < p.othersQueue(), k.emptyTests)
		k.shown, k.shownAt = d.lowest, now
		k.over = !p.follows() && (k.sameTests == maxSameTests || k.emptyTests == maxEmptyTests)
	}
	*d = drain{lastAt: d.lastAt}
}

// countIf returns n + 1, or 0 if ok is false.
func countIf(ok bool, n int) int {
	if !ok {
		return 0
	}
	return n + 1
}

// endContention returns to the control by the queue where others keep none any more.
func (s *Sender) endContention(now time.Duration) {
	for _, p := range s.paths {
		p.contention.over = p.contention.over || p.follows() && p.contention.leader.contention.over
	}
	for _, p := range s.paths {
		k, c := &p.contention, &p.control
		if !k.over {
			continue
		}
		if k.sameTests >= maxSameTests || k.emptyTests > 0 {
			k.base = k.shown
		}
		p.delay.minimum.set(now, k.base)
		p.delay.oneWay, p.delay.standingQueue = k.base, 0
		*k = contention{bestRate: k.bestRate, queueAt: now}
		c.overload.restart(p.ledger.lastReport)
		c.savings = savings{at: now}
		c.growingSince, c.longQueueSince = 0, 0
	}
}

// follow finds the leader of a contended path. Paths with one bottleneck have the same queue,
// and its leader's window is for all of them. Others would gain nothing, so they are sent only
// what shows their queues.
func (s *Sender) follow(now time.Duration, p *Path) {
	k := &p.contention
	old := k.leader
	switch {
	case old == nil || !old.contention.on || old.contention.base > k.base || p.sameQueue(old):
		k.apartSince, k.leader = 0, s.shortestBeside(p)
	case k.apartSince == 0:
		k.apartSince = now
	case now-k.apartSince > apartTime:
		k.apartSince, k.leader = 0, s.shortestBeside(p)
	}
	if p.follows() {
		p.setContendedRate(followerShare * k.leader.pacer.rate)
	} else if old != nil && old != p && old.contention.on { // a share of what it had
		k.window = old.contention.window
		k.window.decreased = false // that was counted in the other's sequence numbers
	}
}

// shortestBeside returns the shortest of the contended paths with the same queue as p, of equal
// ones the first.
func (s *Sender) shortestBeside(p *Path) *Path {
	least := p.contention.base
	for _, o := range s.paths {
		if o.contention.on && p.sameQueue(o) {
			least = min(least, o.contention.base)
		}
	}
	for _, o := range s.paths {
		if o.contention.on && p.sameQueue(o) && o.contention.base < least+sameDelayMicros {
			return o
		}
	}
	return p
}

// sameQueue reports whether the queues in two contended paths may be one.
func (p *Path) sameQueue(o *Path) bool {
	a, b := p.contention.level, o.contention.level
	return math.Abs(a-b) < max(float64(longQueue.Microseconds()), max(a, b)/4)
}

// follows reports whether the path shares the window of another one.
func (p *Path) follows() bool {
	k := &p.contention
	return k.on && k.leader != nil && k.leader != p
}
