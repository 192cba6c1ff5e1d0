package sched

import (
	"math"
	"time"
)

// delayEstimate holds a path's delays. One-way delays include the offset between the two
// clocks, so only their differences mean something.
type delayEstimate struct {
	minimum windowedMin // one-way delay of the empty path
	oneWay  float64     // minimum.get() as of the last report: for comparing paths

	// standingQueue is the queue in the path as of the last report. It is negative if what
	// passed for the minimum was too high.
	standingQueue float64

	noise       differences // of the delays in reports, µs
	windowNoise differences // of the minimum delays of windows, µs

	smoothedRTT, minRTT time.Duration // 0: none measured
}

const (
	fullPacketBytes = 1514             // a full Ethernet frame
	minimumAge      = 10 * time.Second // the minimum is forgotten after this
	sameDelayMicros = 700              // delays that differ by less count as equal
)

// AddRTT adds a measured round trip.
func (p *Path) AddRTT(rtt time.Duration) {
	d := &p.delay
	if d.smoothedRTT == 0 {
		d.smoothedRTT, d.minRTT = rtt, rtt
	}
	d.minRTT = min(d.minRTT, rtt)
	d.smoothedRTT += (rtt - d.smoothedRTT) / 8
}

// SmoothedRTT returns the smoothed round-trip time, or 0 if none has been measured.
func (p *Path) SmoothedRTT() time.Duration { return p.delay.smoothedRTT }

// MinRTT returns the shortest round trip, or 0 if none has been measured.
func (p *Path) MinRTT() time.Duration { return p.delay.minRTT }

// MaxRTT returns the longest smoothed round-trip time of the paths in use.
func (s *Sender) MaxRTT() time.Duration {
	var longest time.Duration
	for _, p := range s.paths {
		if p.Live() {
			longest = max(longest, p.delay.smoothedRTT)
		}
	}
	return longest
}

// emptyTransit returns how long a full packet takes over the empty path. It is used for
// small packets too. Otherwise a connection's acknowledgements would fill a short, slow path
// first and then a longer one, and the connection would see its round trips grow as if a
// queue had built up.
func (p *Path) emptyTransit() float64 { return p.delay.oneWay + fullPacketBytes/p.pacer.rate*1e6 }

// expectedArrival returns when a full packet that is given to the path now would arrive.
func (p *Path) expectedArrival(now time.Duration) float64 {
	return p.transit(fullPacketBytes) + p.queueNow(now, p.delay.standingQueue)
}

// resendCost is the price of losing a packet that is already sent again: TCP takes it for
// lost, and the connection halves its window or waits for its timeout.
const resendCost = 1e6 // µs

// transitCost returns emptyTransit plus the price of a loss times its probability. It is
// infinite for a path that has not delivered anything yet.
func (p *Path) transitCost() float64 {
	if !p.ledger.reported {
		return math.Inf(1)
	}
	return p.emptyTransit() + p.loss.ratio*resendCost
}

// drain measures the delay of the empty path: the path is sent nothing until its queue has
// drained, and the next packets show the minimum delay.
type drain struct {
	sampling     bool          // the path is paused, or the packets after the pause are on their way
	collected    bool          // some of them have arrived
	sampleSeq    uint32        // path sequence number of the first packet after the pause
	lowest       float64       // minimum delay after the pause
	pause        time.Duration // length of the current pause
	retries      int           // pauses repeated because their result was doubtful
	doubtedDelay float64       // the result that was doubted
	lastAt       time.Duration // when the last pause began
	joint        participation // in a drain of several paths
}

const (
	drainEvery      = 2500 * time.Millisecond // between two drains of a saturated path
	drainTurns      = 16                      // steps over which the paths' first drains are spread
	drainMargin     = backlogTime + 2*runTime // on its way into the queue and not seen yet
	maxPause        = 1000 * time.Millisecond
	maxDrainRetries = 3
)

// startDrain lets the path run empty. A queue that did not shrink when less was sent is no
// queue but part of the path's delay; if it is a queue, the pause drains it.
func (p *Path) startDrain(now time.Duration) {
	if p.drain.sampling {
		return
	}
	p.drain.pause = min(time.Duration(max(p.delay.standingQueue, 0))*time.Microsecond+drainMargin, maxPause)
	p.pauseSending(now)
}

func (p *Path) pauseSending(now time.Duration) {
	d := &p.drain
	d.sampling, d.collected, d.sampleSeq, d.lastAt = true, false, uint32(p.ledger.nextSeq), now
	p.pacer.pausedUntil, p.pacer.backlogBytes = now+d.pause, 0
	p.control.longQueueSince = 0
	if p.control.saturated {
		p.pacer.rate = p.control.capacity
	}
	p.clampRate()
}

// collect adds the delay of packets after the pause.
func (d *drain) collect(delay float64) {
	if !d.collected {
		d.collected, d.lowest = true, delay
	}
	d.lowest = min(d.lowest, delay)
}

// finishDrain processes the delay of the first packets after a pause. A delay above the
// minimum means that the minimum is outdated or that the pause was too short: a longer pause
// shows which. A delay below the minimum that was known before means that the minimum
// included a queue, of which a part may still stand.
func (p *Path) finishDrain(now time.Duration, before windowedMin) {
	d := &p.drain
	d.sampling, d.collected = false, false
	same := max(sameDelayMicros, 2*p.delay.windowNoise.get())
	more := d.lowest > p.delay.minimum.get()+same && (d.retries == 0 || d.lowest < d.doubtedDelay-same)
	less := before.valid && d.lowest < before.get()-same
	queue, joint := d.lowest-p.delay.minimum.get(), d.joint
	d.joint = participation{}
	switch {
	case joint.proves(queue) && queue > p.othersQueue():
		d.retries = 0
		p.contend(now, queue)
		return
	case more && !joint.on && p.contention.matters && queue > p.othersQueue():
		d.joint.wanted = true
		return
	case (more || less) && d.retries < maxDrainRetries:
		d.doubtedDelay = d.lowest
		d.retries++
		d.pause = min(2*d.pause, maxPause)
		p.pauseSending(now)
		return
	}
	d.retries = 0
	p.delay.minimum.set(now, d.lowest)
}

// cancelDrain lets a paused path go on without a result.
func (p *Path) cancelDrain(now time.Duration) {
	if p.pacer.pausedUntil > now {
		p.pacer.pausedUntil = 0
		p.drain.sampling, p.drain.collected, p.drain.retries = false, false, 0
	}
}
