package sched

import (
	"math"
	"time"
)

// rateControl is the state of the controller that sets pacer.rate. Until the path has been
// full once (saturated), the rate is a guess that grows exponentially; from then on it
// follows what the path delivers while it is full.
type rateControl struct {
	maxRate   float64 // set by the user; 0: unlimited
	saturated bool    // the path has been full once
	capacity  float64 // delivered by the full path, smoothed
	peakRate  windowedMax
	topRate   float64 // highest delivery rate ever; a full path's capacity replaces it

	growingSince   time.Duration // since when there has been no queue although packets wait for the path
	longQueueSince time.Duration // since when the queue has been too long

	savings  savings
	overload overload
	marks    markResponse
}

// window collects what one adjustment of the rate is based on: the reports since start.
type window struct {
	start      Report  // the report at which the window began
	startQueue float64 // as of that report
	minQueue   float64 // minimum in the window
	// The acknowledged runs, as they were sent.
	ackedBytes, firstRunBytes int // in all runs, and in the first
	firstSentAt, lastSentAt   time.Duration
	longestGap                time.Duration // between two runs, counted from the last run before the window
	runs                      int           // acknowledged
}

const (
	targetQueue   = 1500 * time.Microsecond // shortest queue that a full path should keep
	busyQueue     = 500 * time.Microsecond  // a longer queue shows that a path is full if packets wait for it
	longQueue     = 4 * time.Millisecond    // a longer queue shows that any path is full
	maxTarget     = 20 * time.Millisecond   // longest queue that a full path should keep, whatever its jitter
	settleTime    = 25 * time.Millisecond   // a queue of the wrong length is corrected in this time
	minWindow     = 5 * time.Millisecond    // minimum time over which a rate is measured
	maxWindow     = 200 * time.Millisecond  // and maximum
	windowPackets = 4                       // on slow paths

	startRate          = 10e6 / 8               // bytes/s; of a path about which nothing is known
	minRate            = 64e3 / 8               // bytes/s
	startGrowth        = 2.0                    // per window, until the path has been saturated
	spendGrowth        = 0.1                    // above the capacity while savings are spent, at least
	policedSpendGrowth = 0.05                   // the same, at most, on a policed path
	spendPatience      = 2 * time.Second        // until what a slow policed path has saved counts as spent
	gentleGrowth       = 0.02                   // the same, for each round trip, where growth has caused losses
	maxGrowth          = 1.5                    // the same, at most
	peakAge            = 200 * time.Millisecond // the peak rate is forgotten after this
)

func (w *window) begin(r Report, queue float64) {
	w.start, w.startQueue, w.minQueue, w.ackedBytes, w.runs = r, queue, math.Inf(1), 0, 0
}

// acked adds an acknowledged run.
func (w *window) acked(r *run) {
	if w.ackedBytes == 0 {
		w.longestGap = 0
		w.firstSentAt, w.firstRunBytes = r.sentAt, r.bytes
	}
	w.longestGap = max(w.longestGap, r.sentAt-w.lastSentAt)
	w.runs++
	w.ackedBytes += r.bytes
	w.lastSentAt = r.sentAt
}

// sendRate returns the rate at which the acknowledged runs were sent, or 0 if they say
// nothing.
func (w *window) sendRate() float64 {
	d := w.lastSentAt - w.firstSentAt
	if w.ackedBytes == 0 || d < minWindow/2 {
		return 0
	}
	return float64(w.ackedBytes-w.firstRunBytes) / d.Seconds()
}

// update updates the delays and, at the end of a window, the rate. The report covers packets
// that no earlier one did.
func (p *Path) update(now time.Duration, r Report, news, lost int) {
	d, w := &p.delay, &p.window
	delay := float64(r.MinDelay)
	d.noise.add(delay)
	p.drain.joint.note(r, p.drain.sampleSeq)
	if p.drain.sampling && int32(r.HighestSeq-p.drain.sampleSeq) >= 0 {
		p.drain.collect(delay)
	}
	before := d.minimum
	d.minimum.add(now, delay)
	d.oneWay = d.minimum.get()
	d.standingQueue = delay - d.oneWay
	w.minQueue = min(w.minQueue, d.standingQueue)
	span := time.Duration(int32(r.Arrived-w.start.Arrived)) * time.Microsecond
	if p.contention.on {
		p.compete(now, r, news, lost, span)
		return
	}
	p.noteLosses(now, r, news, lost)
	p.noteMarks(now, r)
	if long := p.longQueueMicros(); !p.control.saturated && !p.drain.sampling && d.standingQueue > long && p.heldBackRecently(now, span) {
		bytes := r.Bytes - w.start.Bytes
		switch {
		case w.minQueue <= long: // the queue has grown in this window
			w.begin(r, d.standingQueue)
		case span >= minWindow && (bytes >= windowPackets*fullPacketBytes || span > maxWindow/2):
			p.fill(now, float64(bytes)/span.Seconds())
			w.begin(r, d.standingQueue)
		}
		return
	}
	if span < p.windowLength() || w.runs < 2 && span < maxWindow {
		return
	}
	if p.drain.collected && (p.drain.joint.over || !p.drain.joint.on) {
		p.finishDrain(now, before)
		w.begin(r, d.standingQueue)
		return
	}
	// A window with a pause in it, or just before it, says nothing about the rate.
	if !p.drain.sampling && r.Bytes != w.start.Bytes {
		d.windowNoise.add(w.minQueue + d.oneWay)
		p.adjustRate(now, float64(r.Bytes-w.start.Bytes)/span.Seconds(), span)
	}
	w.begin(r, d.standingQueue)
}

// fill records that the path is full for the first time. What stands in it is drained.
func (p *Path) fill(now time.Duration, delivered float64) {
	c := &p.control
	c.saturated, c.capacity = true, min(delivered, p.pacer.rate)
	c.savings = savings{at: now}
	p.pacer.rate = c.capacity
	p.clampRate()
	p.startDrain(now)
}

func (p *Path) heldBackRecently(now, span time.Duration) bool {
	return p.pacer.heldBackAt+span+p.feedbackDelay() > now
}

// queueNow returns the queue that a packet sent now will meet, in µs: what the last
// acknowledged packet met, and what has been sent since beyond the path's capacity.
func (p *Path) queueNow(now time.Duration, met float64) float64 {
	if !p.control.saturated {
		return max(met, 0)
	}
	sent := float64(p.ledger.inFlightBytes) / p.control.capacity * 1e6
	return max(met+sent-float64((now-p.ledger.ackedSentAt).Microseconds()), 0)
}

// longQueueMicros returns the queue beyond which any path is full, in µs.
func (p *Path) longQueueMicros() float64 {
	return max(float64(longQueue.Microseconds()), 2*p.queueNoise())
}

// windowLength returns the minimum length of a window: longer on a path with jitter, and on
// a slow one.
func (p *Path) windowLength() time.Duration {
	packets := time.Duration(windowPackets * fullPacketBytes / max(p.pacer.rate, p.control.capacity) * 1e9)
	jitter := time.Duration(8*p.delay.noise.get()) * time.Microsecond
	return min(max(minWindow, packets, jitter), maxWindow)
}

// feedbackDelay returns how long it takes until a change of the rate shows in a report.
func (p *Path) feedbackDelay() time.Duration {
	return p.delay.smoothedRTT + p.windowLength() + max(2*minWindow, p.reportInterval)
}

// queueNoise returns the longest measured queue that may not be one: the minimum delay may
// be that of a short packet, which takes less time than a full one.
func (p *Path) queueNoise() float64 {
	return max(float64(busyQueue.Microseconds()), fullPacketBytes/p.pacer.rate*1e6, min(2*p.delay.windowNoise.get(), float64(maxTarget.Microseconds())/2))
}

// queueTarget returns the queue that a full path should keep: more on slow paths, where a
// packet takes long, and on paths with jitter; less where packets are marked.
func (p *Path) queueTarget() float64 {
	target := max(float64(targetQueue.Microseconds()), 1.5*fullPacketBytes/p.control.capacity*1e6, 1.5*p.queueNoise())
	return p.control.marks.ease(target, 1.1*p.queueNoise())
}

// adjustRate sets the rate after a window of length span in which the path delivered at the
// given rate.
func (p *Path) adjustRate(now time.Duration, delivered float64, span time.Duration) {
	c, w, pace := &p.control, &p.window, &p.pacer
	c.peakRate.add(now, delivered, max(peakAge, 2*p.feedbackDelay()))
	heldBack := p.heldBackRecently(now, span)
	// The delivery rate is the path's capacity if the path was sent as much as its rate allows
	// and a queue stood, or if a long queue stood all the time, since before the window. A short
	// additional delay without that has other causes. A long one may be that of a longer route,
	// over which a path with little to send delivers just what it is sent, or others'. Where
	// packets wait and the queue grows, less is delivered.
	sent := w.sendRate()
	limited := sent > 0.8*pace.rate || sent == 0 && heldBack
	noise := p.queueNoise()
	stood := min(w.startQueue, w.minQueue) > p.longQueueMicros()
	busy := limited && w.minQueue > noise && !p.pausedWithin(span) || stood && (delivered > pace.rate/2 || heldBack && delivered < 0.8*sent)
	if limited { // else the first packets after a pause may have been faster than the path
		c.topRate = max(c.topRate, delivered)
	}
	switch {
	case busy:
		p.steerQueue(now, delivered)
		c.topRate = c.capacity
	case c.overload.comparing:
	case !heldBack:
		// A rate beyond all that was ever delivered is a guess, and nothing corrects it as
		// long as nothing waits.
		pace.rate = min(pace.rate, max(startGrowth*c.topRate, startRate))
		if c.saturated {
			pace.rate = c.intendedRate(now)
		}
	case c.saturated && now < c.marks.heldUntil:
		pace.rate, c.growingSince, c.longQueueSince = c.intendedRate(now), 0, 0
	case c.saturated && w.firstSentAt <= c.savings.since:
		growth := max(p.caution(), c.marks.ease(spendGrowth, carefulGrowth))
		if c.overload.policed > 0 { // what its bucket doesn't hold is lost
			growth = min(growth, policedSpendGrowth)
			if p.slowedByReports(now) && now-c.savings.noneAt > spendPatience { // they take as much
				c.savings = savings{at: now, noneAt: now}
			}
		}
		pace.rate = c.capacity * (1 + growth)
		c.growingSince = 0
	case now < c.overload.heldUntil:
		if c.saturated {
			pace.rate = c.capacity
		}
	case limited && c.saturated:
		p.growRate(now, delivered)
	case limited:
		pace.rate = max(pace.rate, min(pace.rate*startGrowth, startGrowth*c.peakRate.get()))
	}
	p.clampRate()
	if busy && c.longQueueSince > 0 && now-c.longQueueSince > 4*p.feedbackDelay() ||
		heldBack && c.saturated && now-p.drain.lastAt > drainEvery && now >= c.marks.heldUntil {
		p.startDrain(now)
	}
}

// pausedWithin reports whether there was a pause in what was sent in the current window.
func (p *Path) pausedWithin(span time.Duration) bool {
	return p.window.longestGap > max(span/4, backlogTime+lateCredit, time.Duration(2*fullPacketBytes/p.pacer.rate*1e9))
}

// caution returns by how much more than its capacity a path may be sent when it is unknown
// whether it can carry that: the queue must not exceed 5 ms until that shows, or what can be
// measured where packets are marked.
func (p *Path) caution() float64 {
	queue := p.control.marks.ease(0.005, 0.5e-6*p.queueNoise())
	return min(max(queue/p.feedbackDelay().Seconds(), p.control.marks.ease(0.02, carefulGrowth)), 0.25)
}

// growRate raises the rate of a saturated path that has no queue although packets wait for
// it: a little at first, and more with every round trip in which that stays so.
func (p *Path) growRate(now time.Duration, delivered float64) {
	c, pace := &p.control, &p.pacer
	if c.growingSince == 0 {
		c.growingSince = now
	}
	rounds := float64(now-c.growingSince) / float64(p.feedbackDelay())
	growth := min(1+p.caution()*math.Exp2(rounds), maxGrowth)
	next := pace.rate * (1 + (growth-1)/2)
	switch o := &c.overload; {
	case o.policed > 0: // what exceeds its rate is lost until that shows
		growth = 1 + gentleGrowth*math.Exp2(rounds/2)
		next = o.policed * growth
		growth = min(growth, maxGrowth)
	case o.confirmed > 0: // it has a queue that holds little
		growth = min(growth, 1+gentleGrowth*(1+rounds))
		next = pace.rate * (1 + (growth-1)/2)
	}
	pace.rate = max(pace.rate, min(next, growth*c.peakRate.get()))
	c.capacity = max(c.capacity, delivered)
	c.longQueueSince = 0
}

// steerQueue sets the rate of a full path so that its queue approaches the target.
func (p *Path) steerQueue(now time.Duration, delivered float64) {
	c := &p.control
	if !c.saturated {
		c.saturated, c.capacity = true, delivered
		c.savings = savings{at: now}
	}
	c.growingSince = 0
	c.overload.policed = 0
	c.capacity += (delivered - c.capacity) * 0.25
	target := p.queueTarget()
	if now < c.marks.heldUntil {
		target = 0
	}
	settle := max(settleTime, 2*p.windowLength(), 4*time.Duration(target)*time.Microsecond)
	queue := p.queueNow(now, p.window.minQueue)
	correction := (target - queue) / float64(settle.Microseconds())
	if queue > 0 { // a bucket in front of a queue is empty
		c.savings = savings{at: now, noneAt: now}
	}
	switch {
	case correction >= -0.02:
		c.longQueueSince = 0
	case c.longQueueSince == 0:
		c.longQueueSince = now
	}
	p.pacer.rate = c.capacity * (1 + min(max(correction, -0.9), 0.1))
}

func (p *Path) clampRate() {
	c := &p.pacer
	if p.control.maxRate > 0 {
		c.rate = min(c.rate, p.control.maxRate)
	}
	if p.breaker.limit > 0 {
		c.rate = min(c.rate, p.breaker.limit)
	}
	c.rate = max(c.rate, minRate)
}
