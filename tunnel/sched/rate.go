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

	plateauRate    float64       // delivery rate that was not exceeded since plateauSince
	plateauSince   time.Duration // since when the path has been sent more than it delivered
	growingSince   time.Duration // since when there has been no queue although packets wait for the path
	longQueueSince time.Duration // since when the queue has been too long
}

// window collects what one adjustment of the rate is based on: the reports since start.
type window struct {
	start    Report  // the report at which the window began
	minQueue float64 // minimum in the window
	// The acknowledged runs, as they were sent.
	ackedBytes, firstRunBytes int // in all runs, and in the first
	firstSentAt, lastSentAt   time.Duration
	longestGap                time.Duration // between two runs, counted from the last run before the window
}

const (
	targetQueue = 800 * time.Microsecond // shortest queue that a full path should keep
	busyQueue   = 300 * time.Microsecond // a longer queue shows that a path is full if packets wait for it
	longQueue   = 4 * time.Millisecond   // a longer queue shows that any path is full
	settleTime  = 25 * time.Millisecond  // a queue of the wrong length is corrected in this time
	minWindow   = 5 * time.Millisecond   // minimum time over which a rate is measured

	startRate    = 10e6 / 8               // bytes/s; of a path about which nothing is known
	minRate      = 64e3 / 8               // bytes/s
	startGrowth  = 2.0                    // per window, until the path has been saturated
	steadyGrowth = 1.1                    // above the peak rate afterwards: reports come late
	peakAge      = 200 * time.Millisecond // the peak rate is forgotten after this
)

func (w *window) begin(r Report) {
	w.start, w.minQueue, w.ackedBytes = r, math.Inf(1), 0
}

// acked adds an acknowledged run.
func (w *window) acked(r *run) {
	if w.ackedBytes == 0 {
		w.longestGap = 0
		w.firstSentAt, w.firstRunBytes = r.sentAt, r.bytes
	}
	w.longestGap = max(w.longestGap, r.sentAt-w.lastSentAt)
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
func (p *Path) update(now time.Duration, r Report) {
	d, w := &p.delay, &p.window
	delay, before := float64(r.MinDelay), d.minimum
	d.minimum.add(now, delay)
	if p.drain.sampling && int32(r.HighestSeq-p.drain.sampleSeq) >= 0 {
		p.finishDrain(now, delay, before.valid && delay < before.get()-sameDelayMicros)
		w.begin(r)
		p.control.plateauSince = now
	}
	d.oneWay = d.minimum.get()
	d.standingQueue = delay - d.oneWay
	d.assumedQueue = d.standingQueue
	w.minQueue = min(w.minQueue, d.standingQueue)
	span := time.Duration(int32(r.Arrived-w.start.Arrived)) * time.Microsecond
	if span < minWindow {
		return
	}
	// A window with a pause in it, or just before it, says nothing about the rate.
	if !p.drain.sampling && r.Bytes != w.start.Bytes {
		p.adjustRate(now, float64(r.Bytes-w.start.Bytes)/span.Seconds(), span)
	}
	w.begin(r)
}

// feedbackDelay returns how long it takes until a change of the rate shows in a report.
func (p *Path) feedbackDelay() time.Duration { return p.delay.smoothedRTT + 2*minWindow }

// queueTarget returns the queue that a full path should keep: more on slow paths, where a
// packet takes long.
func (p *Path) queueTarget() float64 {
	return max(float64(targetQueue.Microseconds()), 1.5*fullPacketBytes/p.control.capacity*1e6)
}

// queueNoise returns the longest measured queue that may not be one: the minimum delay may
// be that of a short packet, which takes less time than a full one.
func (p *Path) queueNoise() float64 {
	return max(float64(busyQueue.Microseconds()), fullPacketBytes/p.pacer.rate*1e6)
}

// adjustRate sets the rate after a window of length span in which the path delivered at the
// given rate.
func (p *Path) adjustRate(now time.Duration, delivered float64, span time.Duration) {
	c, w, pace := &p.control, &p.window, &p.pacer
	c.peakRate.add(now, delivered, max(peakAge, 2*p.feedbackDelay()))
	heldBack := pace.heldBackAt+span+p.feedbackDelay() > now
	// The delivery rate is the path's capacity if the path was sent as much as its rate
	// allows and a queue stood, or if a long queue stood all the time. A short additional
	// delay without that has other causes.
	sent := w.sendRate()
	limited := sent > 0.8*pace.rate
	busy := limited && w.minQueue > p.queueNoise() ||
		w.minQueue > float64(longQueue.Microseconds()) && delivered > pace.rate/2
	if limited { // else the first packets after a pause may have been faster than the path
		c.topRate = max(c.topRate, delivered)
	}
	if idle := w.longestGap > max(span/4, time.Duration(2*fullPacketBytes/pace.rate*1e9)); idle || !heldBack {
		// Sending had a pause, so a low delivery rate is no sign of a plateau.
		c.plateauRate, c.plateauSince = delivered, now
	}
	switch {
	case busy:
		p.steerQueue(now, delivered)
		c.topRate = c.capacity
	case !heldBack:
		// A rate beyond all that was ever delivered is a guess, and nothing corrects it as
		// long as nothing waits.
		pace.rate = min(pace.rate, max(steadyGrowth*c.topRate, startRate))
		if c.saturated && p.delay.assumedQueue < p.queueTarget() { // the queue that slowed the path has drained
			pace.rate = max(pace.rate, c.capacity)
		}
	case c.atPlateau(now, sent, delivered, p.feedbackDelay()):
		p.delay.assumedQueue = max(p.delay.assumedQueue, (sent/delivered-1)*float64((now-c.plateauSince).Microseconds()))
		c.saturated, c.capacity, pace.rate = true, delivered, delivered
		p.startDrain(now)
	case limited && c.saturated:
		p.growRate(now, delivered)
	case limited:
		pace.rate = max(pace.rate, min(pace.rate*startGrowth, startGrowth*c.peakRate.get()))
	}
	p.clampRate()
	if busy && c.longQueueSince > 0 && now-c.longQueueSince > 4*p.feedbackDelay() ||
		heldBack && c.saturated && now-p.drain.lastAt > drainEvery {
		p.startDrain(now)
	}
}

// atPlateau reports whether the path has been sent more than it delivered for so long that
// it must be full. What looks like its minimum delay is a queue then.
func (c *rateControl) atPlateau(now time.Duration, sent, delivered float64, feedbackDelay time.Duration) bool {
	if delivered <= 0 || sent < 1.15*delivered || delivered > 1.1*c.plateauRate {
		c.plateauRate, c.plateauSince = delivered, now
	}
	return now-c.plateauSince > max(4*feedbackDelay, 10*minWindow)
}

// growRate raises the rate of a saturated path that has no queue although packets wait for
// it: a little at first, and more with every round trip in which that stays so.
func (p *Path) growRate(now time.Duration, delivered float64) {
	c, pace := &p.control, &p.pacer
	if c.growingSince == 0 {
		c.growingSince = now
	}
	rounds := float64(now-c.growingSince) / float64(p.feedbackDelay())
	growth := min(steadyGrowth+0.1*rounds, startGrowth)
	pace.rate = max(pace.rate, min(pace.rate*(1+(growth-1)/2), growth*c.peakRate.get()))
	c.capacity = max(c.capacity, delivered)
	c.longQueueSince = 0
}

// steerQueue sets the rate of a full path so that its queue approaches the target. The gain
// falls with the age of reports, so that a late report does not make the queue oscillate.
func (p *Path) steerQueue(now time.Duration, delivered float64) {
	c := &p.control
	if !c.saturated {
		c.saturated, c.capacity = true, delivered
	}
	c.growingSince = 0
	c.capacity += (delivered - c.capacity) * 0.25
	target := p.queueTarget()
	settle := max(settleTime, 3*p.feedbackDelay(), 4*time.Duration(target)*time.Microsecond)
	correction := (target - p.window.minQueue) / float64(settle.Microseconds())
	switch {
	case correction >= -0.02:
		c.longQueueSince = 0
	case c.longQueueSince == 0:
		c.longQueueSince = now
	}
	p.pacer.rate = c.capacity * (1 + min(max(correction, -0.5), 0.1))
}

func (p *Path) clampRate() {
	c := &p.pacer
	if p.control.maxRate > 0 {
		c.rate = min(c.rate, p.control.maxRate)
	}
	c.rate = max(c.rate, minRate)
}
