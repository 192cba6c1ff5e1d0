package sched

import (
	"math"
	"time"
)

// competition is the state of a path whose queue others keep long. A path that keeps a short
// queue would get nothing there, so it claims what one TCP connection would get: a window that
// grows and shrinks as that of CUBIC (RFC 9438), and the rate that makes of it in a round trip.
// It ends when drains show that nobody else fills the queue.
type competition struct {
	active     bool
	slowStart  bool
	base       float64       // lowest one-way delay known, µs
	entered    float64       // one-way delay when it began, µs
	window     float64       // bytes
	highest    float64       // window before the last reduction, bytes
	reduced    time.Duration // when that was, later by the time in which nothing waited
	updated    time.Duration
	roundEnd   uint32 // path sequence number from which on losses count anew
	lost       int    // packets in this round
	packets    int    // in this round
	reductions int    // that the companions do not know of yet
	companions int    // other paths in the same queue
	alone      int    // consecutive drains that showed no others
}

// The constants of CUBIC.
const (
	cubicFactor   = 0.4 // segments/s³
	cubicDecrease = 0.7
)

const (
	othersShare   = 0.15 // of a path's capacity that shows that others use it
	newRouteShare = 0.9  // more than that is a new delay, not a queue
	aloneShare    = 0.1  // less shows that nobody does
	aloneDrains   = 2    // so often in succession
	competePause  = 0.75 // of the queue's length: it must not run empty
	competeDrains = 20   // pauses take no more than this part of the time
)

// othersFillQueue reports whether a drain has shown that others keep the path's queue long. A
// new route shows by a longer delay, too, but the path delivers as much as before then.
func (p *Path) othersFillQueue(base windowedMin) bool {
	d, c := &p.drain, &p.control
	others := d.othersShare()
	return d.suspect && base.valid && d.lowest > base.get()+p.longQueueMicros() && others > othersShare &&
		(others < newRouteShare || c.capacity < 0.7*c.rateBefore)
}

// enterCompetition begins to compete, with the rate that the path had before its queue became
// too long.
func (p *Path) enterCompetition(now time.Duration, base float64) {
	c := &p.control
	rate := max(c.capacity, c.rateBefore)
	c.competition = competition{
		active: true, slowStart: !c.competed, base: base, entered: p.drain.before, updated: now,
		window: rate * p.competitionRTT(), reduced: now, roundEnd: uint32(p.ledger.nextSeq),
	}
	c.competition.highest, c.competed = c.competition.window, true
	p.pacer.rate = rate
	c.longQueueSince, c.growingSince = 0, 0
	p.clampRate()
}

// leaveCompetition returns to keeping a short queue.
func (p *Path) leaveCompetition(now time.Duration) {
	p.delay.minimum.set(now, p.control.competition.base)
	p.control.competition = competition{}
	p.drain.retries = 0
	p.pacer.rate = p.control.capacity
	p.clampRate()
}

// noteCompetitionLosses reduces the window once for each round trip in which more was lost
// than usual.
func (p *Path) noteCompetitionLosses(now time.Duration, r Report, news, lost int) {
	c := &p.control.competition
	c.packets += news
	c.lost += lost
	if int32(r.HighestSeq-c.roundEnd) < 0 {
		return
	}
	if float64(c.lost) > 2*p.control.overload.floor*float64(c.packets) {
		c.reductions++
		p.reduceWindow(now)
	}
	c.packets, c.lost, c.roundEnd = 0, 0, uint32(p.ledger.nextSeq)
}

func (p *Path) reduceWindow(now time.Duration) {
	c := &p.control.competition
	c.slowStart = false
	if c.window < c.highest { // others need room
		c.highest = c.window * (1 + cubicDecrease) / 2
	} else {
		c.highest = c.window
	}
	c.window *= cubicDecrease
	c.reduced = now
	p.setCompetitionRate()
}

// competitionRTT returns the round trip of full packets, in s.
func (p *Path) competitionRTT() float64 {
	return p.delay.smoothedRTT.Seconds() + 2*fullPacketBytes/p.control.capacity
}

func (p *Path) setCompetitionRate() {
	p.pacer.rate = p.control.competition.window / p.competitionRTT()
	p.clampRate()
}

// compete sets the rate after a window. Companions grow together as one connection.
func (p *Path) compete(now time.Duration, delivered float64, limited bool) {
	const segment = fullPacketBytes
	c := &p.control.competition
	rtt := p.competitionRTT()
	elapsed := now - c.updated
	c.updated = now
	if !limited {
		c.reduced += elapsed
		p.setCompetitionRate()
		return
	}
	p.control.capacity += (delivered - p.control.capacity) * 0.25
	if c.slowStart {
		c.window *= math.Exp2(elapsed.Seconds() / rtt)
		if p.delay.last()-c.entered > min(max(1e6*rtt/8, 4000), 16000) { // as HyStart (RFC 9406)
			c.slowStart, c.highest, c.reduced = false, c.window, now
		}
	} else {
		share := 1 / float64(1+c.companions)
		t := (now - c.reduced).Seconds()
		k := math.Cbrt(c.highest * (1 - cubicDecrease) / segment / (cubicFactor * share))
		cubic := cubicFactor*share*math.Pow(t-k, 3)*segment + c.highest
		reno := c.highest*cubicDecrease + share*3*(1-cubicDecrease)/(1+cubicDecrease)*t/rtt*segment
		c.window = max(c.window, min(max(cubic, reno), 1.5*c.window))
	}
	c.window = min(c.window, 2*max(delivered, p.control.capacity)*rtt+2*segment)
	p.setCompetitionRate()
}

// startCompetitionDrain pauses for less than the queue's length, to see by how much it shrinks
// when this end sends nothing.
func (p *Path) startCompetitionDrain(now time.Duration) {
	queue := p.delay.last() - p.control.competition.base
	if queue < p.longQueueMicros() {
		p.drain.lastAt = now
		p.judgeCompetition(now, 0)
		return
	}
	pause := min(time.Duration(competePause*queue)*time.Microsecond, maxPause)
	if now-p.drain.lastAt < competeDrains*pause {
		return
	}
	p.drain.pause = pause
	rate := p.pacer.rate
	p.pauseSending(now)
	p.pacer.rate = rate
}

// judgeCompetition takes account of the share that others had in a drain.
func (p *Path) judgeCompetition(now time.Duration, others float64) {
	c := &p.control.competition
	if others > aloneShare {
		c.alone = 0
		return
	}
	if c.alone++; c.alone >= aloneDrains {
		p.leaveCompetition(now)
	}
}

// othersShare returns the share of the path's capacity that others used while it was paused: a
// queue shrinks by less than the pause then.
func (d *drain) othersShare() float64 {
	return 1 - (d.before-d.lowest)/float64(d.pause.Microseconds())
}
