package sched

import "time"

// markResponse responds to a router that marks packets (ECN): the path's queue is longer than
// the router wants, although it is no longer than the controller wants.
type markResponse struct {
	// pressure is how much the router objects to a queue. Without any, the path keeps the
	// queue that it keeps if nobody marks; with 1, the shortest that can be measured.
	pressure  float64
	heldUntil time.Duration // the path is sent less than its capacity until then, so no queue stands

	// Since the last response, or the last window without marks.
	since     Report
	sinceAt   time.Duration // 0: nothing is counted
	waiting   bool          // no packet that was sent since has been reported
	waitSeq   uint32        // path sequence number of the first of these
	responses int           // consecutive ones
}

const (
	markGain     = 0.5              // of the share of marked packets is what the pressure grows by
	minMarkGain  = 0.1              // of what is left to 1 is what it grows by at least
	markRecovery = 20 * time.Second // it falls from 1 to 0 in this time without marks

	// After a mark the path is held: it is sent heldShare of its capacity. The queue that
	// measures the rate returns afterwards, and if the router marks it again, it does so for a
	// feedback delay or two. At full pressure the path is held for holdRounds of these, or
	// for minHold.
	heldShare  = 0.98
	holdRounds = 32 // feedback delays
	minHold    = 4 * time.Second
	maxHold    = 10 * time.Second

	// carefulGrowth is how fast a path at full pressure grows at least, in a feedback delay.
	carefulGrowth = 0.005

	// A router that marks packets although no queue stands wants a part of the capacity to
	// stay free. If patientResponses have had no effect, the capacity counts as less by what a
	// path is held below it, times the share of packets that are marked. It never counts as
	// less than minMarkedRate of what was measured: anybody on the way can mark all packets.
	patientResponses = 3
	minMarkedRate    = 0.5
)

// noteMarks counts marked packets and responds to them, at most once in a feedback delay: the
// packets that had been sent before a response don't show its effect.
func (p *Path) noteMarks(now time.Duration, r Report) {
	m := &p.control.marks
	switch {
	case r.Marked == 0: // nothing was ever marked
		return
	case p.drain.sampling: // a burst follows the pause
		m.waiting, m.waitSeq = true, uint32(p.ledger.nextSeq)
		return
	case m.waiting && int32(r.HighestSeq-m.waitSeq) < 0:
		return
	case m.waiting || m.sinceAt == 0:
		m.waiting, m.since, m.sinceAt = false, r, now
		return
	case now-m.sinceAt < p.windowLength():
		return
	}
	if marked := r.Marked - m.since.Marked; marked > 0 {
		p.respondToMarks(now, float64(marked)/float64(max(r.Packets-m.since.Packets, 1)))
		return
	}
	m.pressure = max(m.pressure-float64(now-m.sinceAt)/float64(markRecovery), 0)
	m.since, m.sinceAt, m.responses = r, now, 0
}

// respondToMarks responds to a share of marked packets.
func (p *Path) respondToMarks(now time.Duration, share float64) {
	c := &p.control
	m := &c.marks
	m.waiting, m.waitSeq = true, uint32(p.ledger.nextSeq)
	m.pressure += (1 - m.pressure) * max(markGain*share, minMarkGain)
	hold := min(max(minHold, holdRounds*p.feedbackDelay()), maxHold)
	m.heldUntil = now + time.Duration(m.pressure*float64(hold))
	if m.responses++; m.responses > patientResponses && c.saturated && p.delay.standingQueue < p.queueNoise() {
		m.responses = 0
		c.capacity = max(c.capacity*(1-(1-heldShare)*share), min(c.capacity, minMarkedRate*c.topRate))
	}
}

// restart starts counting anew: the path's sequence numbers restart.
func (m *markResponse) restart() { m.waiting, m.sinceAt, m.responses = false, 0, 0 }

// ease returns the value for the present pressure, between that without any and that at full
// pressure, which is no more.
func (m *markResponse) ease(without, full float64) float64 {
	return without - max(without-full, 0)*m.pressure
}

// intendedRate returns the rate of a full path without a queue. What it is sent less than
// that, its bucket saves.
func (c *rateControl) intendedRate(now time.Duration) float64 {
	if now < c.marks.heldUntil {
		return heldShare * c.capacity
	}
	return c.capacity
}
