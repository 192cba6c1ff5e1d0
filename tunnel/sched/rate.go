package sched

import (
	"math"
	"time"
)

// How a rate is found.
const (
	queueTarget = 800 * time.Microsecond // the queue that stands in a path, at its least
	queueBusy   = 300 * time.Microsecond // a longer queue proves that a path is full that packets wait for
	queueLong   = 4 * time.Millisecond   // and a longer one that any is
	settleTime  = 25 * time.Millisecond  // in which a wrong queue is brought back
	window      = 5 * time.Millisecond   // the least time over which a rate is measured

	startRate  = 10e6 / 8 // bytes/s of a path that nothing is known of
	leastRate  = 64e3 / 8
	fastGrowth = 2.0 // a report, until the path has been full once
	peakGrowth = 1.1 // afterwards, above what was delivered: reports come late

	measureTime = 200 * time.Millisecond // of padding on a new path, and eight round trips
	measureMost = 1e9 / 8                // bytes/s; who has more finds it with data

	soundEvery = 2500 * time.Millisecond // between two looks for the least delay
	soundTurns = 16
	drainTime  = depthTime + 2*runTime // more than a queue that has been seen: what is on its way into it
	maxPause   = 100 * time.Millisecond
	maxDoubts  = 3
	soundClose = 700                    // µs: what differs by less is the same delay
	fullPacket = 1514                   // bytes
	baseAge    = 10 * time.Second       // a least delay is forgotten after this
	peakAge    = 200 * time.Millisecond // and a highest delivery rate after this
)

// measure draws conclusions from a report that acknowledges something.
func (p *Path) measure(now time.Duration, r Report) {
	delay, before := float64(r.Delay), p.base
	p.base.add(now, delay)
	if p.sampling && int32(r.Highest-p.sample) >= 0 {
		p.sampled(now, delay, before.some && delay < before.get()-soundClose)
		p.begin(r)
		p.bestAt = now
	}
	p.queue = delay - p.base.get()
	p.standing = p.queue
	p.quietest = min(p.quietest, p.queue)
	p.delay = p.base.get()
	span := time.Duration(int32(r.Arrived-p.mark.Arrived)) * time.Microsecond
	if span < window {
		return
	}
	if !p.sampling && r.Bytes != p.mark.Bytes { // else a pause is in the window, or will be; or nothing has come
		p.adjust(now, float64(r.Bytes-p.mark.Bytes)/span.Seconds(), span)
	}
	p.begin(r)
}

// begin begins a window with a report.
func (p *Path) begin(r Report) {
	p.mark, p.quietest = r, math.Inf(1)
	p.sent = 0
}

// lag is how long it takes until what is sent shows in a report.
func (p *Path) lag() time.Duration { return p.rtt + 2*window }

// target is the queue that should stand: more on slow paths, where a packet is long.
func (p *Path) target() float64 {
	return max(float64(queueTarget.Microseconds()), 1.5*fullPacket/p.capacity*1e6)
}

// noise is a queue that may be none: what passes for the least delay may be that of a short
// packet, which takes less time than a full one.
func (p *Path) noise() float64 {
	return max(float64(queueBusy.Microseconds()), fullPacket/p.rate*1e6)
}

// adjust sets the rate by what was delivered in a window.
func (p *Path) adjust(now time.Duration, delivered float64, span time.Duration) {
	p.peak.add(now, delivered, max(peakAge, 2*p.lag()))
	held := p.held+span+p.lag() > now
	// What was delivered is what the path can carry if more was there to be sent when it
	// was sent, and a queue stood; or if a long queue stood all the time. A little delay
	// besides is none of ours.
	sent := p.sendRate()
	limited := sent > 0.8*p.rate
	busy := limited && p.quietest > p.noise() ||
		p.quietest > float64(queueLong.Microseconds()) && delivered > p.rate/2
	if limited { // else the first packets after a pause may have been faster than the path
		p.top = max(p.top, delivered)
	}
	if idle := p.gap > max(span/4, time.Duration(2*fullPacket/p.rate*1e9)); idle || !held {
		// Less was delivered in the window than was sent in a part of it: no plateau.
		p.best, p.bestAt = delivered, now
	}
	switch {
	case busy:
		p.aim(now, delivered)
		p.top = p.capacity
	case !held:
		// What it may be sent beyond what it has ever delivered is a guess that nothing
		// corrects as long as nothing waits.
		p.rate = min(p.rate, max(peakGrowth*p.top, startRate))
		if p.full && p.queue < p.target() { // what it was slowed down for has drained
			p.rate = max(p.rate, p.capacity)
		}
	case p.plateau(now, sent, delivered):
		p.queue = max(p.queue, (sent/delivered-1)*float64((now-p.bestAt).Microseconds()))
		p.full, p.capacity, p.rate = true, delivered, delivered
		p.sound(now)
	case limited && p.full:
		p.grow(now, delivered)
	case limited:
		p.rate = max(p.rate, min(p.rate*fastGrowth, fastGrowth*p.peak.get()))
	}
	p.clamp()
	if busy && p.wrong > 0 && now-p.wrong > 4*p.lag() || held && p.full && now-p.sounded > soundEvery {
		p.sound(now)
	}
}

// sendRate is how fast what was acknowledged in the window was sent, bytes/s; 0: that can't
// be told.
func (p *Path) sendRate() float64 {
	d := p.sentTo - p.sentFrom
	if p.sent == 0 || d < window/2 {
		return 0
	}
	return float64(p.sent-p.sentFirst) / d.Seconds()
}

// plateau tells whether the path has been sent more than it delivers for so long that it
// must be full: what passes for its least delay is a queue.
func (p *Path) plateau(now time.Duration, sent, delivered float64) bool {
	if delivered <= 0 || sent < 1.15*delivered || delivered > 1.1*p.best {
		p.best, p.bestAt = delivered, now
	}
	return now-p.bestAt > max(4*p.lag(), 10*window)
}

// grow raises the rate of a path that has no queue though packets wait for it: a little, and
// more with every round trip in which it stays so.
func (p *Path) grow(now time.Duration, delivered float64) {
	if p.calm == 0 {
		p.calm = now
	}
	round := float64(now-p.calm) / float64(p.lag())
	most := min(peakGrowth+0.1*round, fastGrowth)
	p.rate = max(p.rate, min(p.rate*(1+(most-1)/2), most*p.peak.get()))
	p.capacity = max(p.capacity, delivered)
	p.wrong = 0
}

// aim sets the rate of a full path so that its queue becomes what it should be. The
// gain is such that a report that comes late does not make the queue swing.
func (p *Path) aim(now time.Duration, delivered float64) {
	if !p.full {
		p.full, p.capacity = true, delivered
	}
	p.calm = 0
	p.capacity += (delivered - p.capacity) * 0.25
	target := p.target()
	off := (target - p.quietest) / float64(max(settleTime, 3*p.lag(), 4*time.Duration(target)*time.Microsecond).Microseconds())
	switch {
	case off >= -0.02:
		p.wrong = 0
	case p.wrong == 0:
		p.wrong = now
	}
	p.rate = p.capacity * (1 + min(max(off, -0.5), 0.1))
}

// sound lets the path run empty, to see its least delay. When sending less has not
// made a queue shorter, it is not a queue; and if it is, this drains it.
func (p *Path) sound(now time.Duration) {
	if p.sampling {
		return
	}
	p.pause = min(time.Duration(p.queue)*time.Microsecond+drainTime, maxPause/4)
	p.silence(now)
}

func (p *Path) silence(now time.Duration) {
	p.wrong, p.sounded = 0, now
	p.paused = now + p.pause
	p.sampling, p.sample = true, uint32(p.seq)
	p.backlog = 0
}

// sampled takes the delay of what was sent after a pause. If it is more than the least so
// far, either that was outdated, or the pause was too short for the queue: it is more again
// after a longer one, or it is not. If it is less, that was a queue, too, of which some may be left.
func (p *Path) sampled(now time.Duration, delay float64, less bool) {
	p.sampling = false
	more := delay > p.base.get()+soundClose && (p.doubted == 0 || delay < p.doubt-soundClose)
	if (more || less) && p.doubted < maxDoubts {
		p.doubt = delay
		p.doubted++
		p.pause = min(2*p.pause, maxPause)
		p.silence(now)
		return
	}
	p.doubted = 0
	p.base.set(now, delay)
}

func (p *Path) clamp() {
	if p.limit > 0 {
		p.rate = min(p.rate, p.limit)
	}
	p.rate = max(p.rate, leastRate)
}
