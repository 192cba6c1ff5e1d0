package sched

import "time"

// overload finds out whether a path loses packets because it is sent too much: it is sent
// less for a while, and the losses are compared. A policer, which has no queue that would
// show, then loses nothing; a radio link loses as much as before.
type overload struct {
	floor float64 // share of packets lost whatever the rate, 0…1

	// What is counted. As long as nothing is lost, it begins anew each quietPackets, so that
	// the delivery rate is that of the time of the losses.
	since         Report
	packets, lost int
	begun         uint32 // Report.Arrived when the count began
	quietPackets  int    // before since
	quietLost     int    // the same; negative if packets came late

	waiting  bool   // for a report of firstSeq
	firstSeq uint32 // path sequence number of the first packet that counts

	// The comparison.
	comparing   bool
	lossBefore  float64       // share of packets
	rateBefore  float64       // bytes/s
	burstBefore float64       // pacer.maxBurst
	heldUntil   time.Duration // the rate does not grow until then
	confirmed   int           // consecutive comparisons that showed a full path

	policed float64 // rate of the policer that the path seems to have, bytes/s; 0: none is known
}

const (
	excessLoss      = 0.015 // share of packets lost beyond the floor that is looked into
	minLostPackets  = 5     // and so many more, because few say nothing
	quietTestSize   = 16    // packets
	lossTestPackets = 150   // packets after which a count ends
	comparePackets  = 40    // packets that a comparison takes at least
	compareLost     = 8     // and so many that would be lost if nothing had changed
	lossHold        = 500 * time.Millisecond
	lossHoldRounds  = 16   // feedback delays; the hold lasts so long at least
	burstLoss       = 0.2  // share of packets lost that is due to bursts
	fullShare       = 0.7  // share of its rate beyond which a path that loses packets is full
	backOff         = 0.97 // of what a full path delivers is sent while losses are compared
)

// noteLosses counts losses. It lowers the rate, or the bursts, if the path seems to lose
// packets because of them.
func (p *Path) noteLosses(now time.Duration, r Report, news, lost int) {
	o := &p.control.overload
	switch {
	case p.health.dead:
		return
	case o.waiting:
		if int32(r.HighestSeq-o.firstSeq) >= 0 {
			o.waiting = false
			o.restart(r)
		}
		return
	case o.packets == 0 && o.quietPackets == 0:
		o.since, o.begun = r, r.Arrived
	case o.lost <= 0 && o.packets >= quietTestSize && !o.comparing:
		o.quietPackets, o.quietLost = o.quietPackets+o.packets, o.quietLost+o.lost
		o.packets, o.lost, o.since = 0, 0, r
	}
	o.packets += news
	o.lost += lost
	span := time.Duration(int32(r.Arrived-o.since.Arrived)) * time.Microsecond
	counted := time.Duration(int32(r.Arrived-o.begun)) * time.Microsecond
	many := o.packets+o.quietPackets >= lossTestPackets && counted > 2*p.feedbackDelay()
	switch {
	case o.comparing:
		p.compareLosses(now, r, many)
	case float64(o.lost) > minLostPackets+1.5*(o.floor+excessLoss)*float64(o.packets) && span > minWindow:
		p.lookIntoLosses(now, r, span)
	case many:
		p.endCount(r)
	}
}

func (o *overload) loss() float64 { return max(float64(o.lost)/float64(max(o.packets, 1)), 0) }

func (o *overload) restart(r Report) {
	o.packets, o.lost, o.quietPackets, o.quietLost, o.since, o.begun = 0, 0, 0, 0, r, r.Arrived
}

// endCount ends a count that has shown nothing unusual.
func (p *Path) endCount(r Report) {
	o := &p.control.overload
	loss := max(float64(o.lost+o.quietLost)/float64(o.packets+o.quietPackets), 0)
	if loss < excessLoss/2 {
		p.pacer.growBursts()
	}
	if loss < o.floor {
		o.floor += (loss - o.floor) / 4
	}
	o.restart(r)
}

// lookIntoLosses decides what to change because more is lost than usual.
func (p *Path) lookIntoLosses(now time.Duration, r Report, span time.Duration) {
	c, pace := &p.control, &p.pacer
	o := &c.overload
	delivered := float64(r.Bytes-o.since.Bytes) / span.Seconds()
	full := delivered >= fullShare*(1-o.loss())*pace.rate && !p.pausedWithin(span)
	switch {
	case p.delay.standingQueue > p.longQueueMicros(): // it overflows, and is steered
		p.forgetLosses(r)
	case full:
		p.beginComparison(now, delivered)
	case pace.maxBurst == minBurst, // smaller bursts have not helped
		!c.saturated && o.lost*fullPacketBytes > maxSavings: // a guess that is far too high
		p.beginComparison(now, max(delivered, pace.rate*(1-o.loss())))
	default:
		pace.shrinkBursts()
		if !c.saturated { // the rate is a guess
			pace.rate = max(pace.rate/2, delivered)
			p.clampRate()
			o.heldUntil = now + 2*p.feedbackDelay()
		}
		if o.loss() < burstLoss && o.policed == 0 {
			o.restart(r)
			return
		}
		p.forgetLosses(r)
	}
}

// beginComparison lowers the rate to what the path seems to carry, and the bursts to the
// shortest, to find out whether less is lost then.
func (p *Path) beginComparison(now time.Duration, capacity float64) {
	c, pace := &p.control, &p.pacer
	o := &c.overload
	o.comparing, o.waiting, o.firstSeq = true, true, uint32(p.ledger.nextSeq)
	o.lossBefore, o.rateBefore = o.loss(), pace.rate
	o.burstBefore, pace.maxBurst = pace.maxBurst, minBurst
	c.saturated, c.savings = true, savings{at: now, noneAt: now}
	c.capacity, pace.rate, c.growingSince = capacity, backOff*capacity, 0
	p.clampRate()
	p.loss.ratio = min(p.loss.ratio, o.floor)
}

// compareLosses ends a comparison as soon as it is clear whether less is lost.
func (p *Path) compareLosses(now time.Duration, r Report, many bool) {
	c := &p.control
	o := &c.overload
	// Of the losses beyond what is usual.
	lost, expected := float64(o.lost)-o.floor*float64(o.packets), (o.lossBefore-o.floor)*float64(o.packets)
	enough := o.packets >= comparePackets && expected >= compareLost
	switch {
	case p.delay.standingQueue > p.longQueueMicros(): // it has not drained yet
		o.restart(r)
	case lost > minLostPackets+0.75*expected: // as much is lost
		o.floor = max(o.floor, min(o.loss(), o.lossBefore))
		c.capacity, p.pacer.rate = max(c.capacity, o.rateBefore), max(p.pacer.rate, o.rateBefore)
		o.comparing, o.confirmed, o.policed = false, 0, 0
		p.pacer.maxBurst = o.burstBefore
		o.restart(r)
	case enough && lost < 0.25*expected:
		o.comparing, o.heldUntil = false, now+max(lossHold, lossHoldRounds*p.feedbackDelay())
		o.confirmed++
		o.policed = c.capacity
		p.pacer.maxBurst = o.burstBefore
		p.pacer.shrinkBursts()
		o.restart(r)
	case enough && many: // less is lost, but still too much
		before := o.burstBefore
		p.beginComparison(now, p.pacer.rate*(1-o.loss()))
		o.burstBefore = before
	}
}

// forgetLosses discards losses that say nothing about the path: it was sent too much at once,
// and that has been changed.
func (p *Path) forgetLosses(r Report) {
	p.control.overload.restart(r)
	p.loss.ratio = min(p.loss.ratio, p.control.overload.floor)
}

// PacketsShrunk discards what the path's losses have led to, because packets that were too big
// for it may have caused them. The rate is a guess again if they lowered it.
func (p *Path) PacketsShrunk() {
	c := &p.control
	if o := &c.overload; o.comparing || o.confirmed > 0 {
		c.saturated = false
	}
	p.pacer.maxBurst = 0
	c.overload = overload{waiting: true, firstSeq: uint32(p.ledger.nextSeq)}
	p.forgetLosses(p.ledger.lastReport)
}

// resume continues after a time in which the path was dead.
func (c *rateControl) resume(r Report) {
	c.overload = overload{floor: c.overload.floor}
	c.overload.restart(r)
	c.growingSince, c.longQueueSince = 0, 0
}
