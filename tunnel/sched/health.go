package sched

import "time"

// health says whether a path may carry packets.
type health struct {
	up   bool // the administrator and the link allow it
	dead bool // packets do not get through, or nobody has seen yet that they do

	// Of a dead path.
	seqAtDeath     uint32 // nextSeq when it died
	proofReports   int    // reports since then that show deliveries
	deathAnnounced bool   // the link, the peer or the kernel said so; it was not inferred from reports
	withdrawn      bool   // one end has taken the path out of use
	returning      bool   // the path has been set up since it died
	falseAlarm     bool   // a packet that was sent before the death has arrived

	returnedAt time.Duration // when the path began to deliver: at first, or after a death

	extraPatience     time.Duration // added to the death threshold after false alarms
	patienceChangedAt time.Duration

	sidelined        bool // in use only for probes and copies: the others carry more without it
	sidelinedForLoss bool
}

const (
	// deathThreshold is how much later than a path's oldest unacknowledged packets others
	// must have been sent, and have arrived, for the path to be dead. With a report each
	// 10 ms, a dead path is abandoned within 50 ms. It is 20 ms more than the lag of a
	// healthy path on this machine with both processors busy.
	deathThreshold = 30 * time.Millisecond
	// ackOverdueAfter is how long, beyond a round trip, a path may acknowledge nothing before
	// the other paths are probed, so that there is something to compare it with. It suits
	// reports each 10 ms; where the peer reports less often, that is added twice.
	ackOverdueAfter = 12 * time.Millisecond
	// firstPatience is added to the threshold of a path that has not delivered anything yet,
	// because the peer may have started a moment later, and for what was sent while the rate
	// was a guess: a run takes 0.2 s at 0.5 Mbit/s then.
	firstPatience = 250 * time.Millisecond
	// Each false alarm doubles a path's extra patience. Half of it is taken back each
	// patienceHalfLife: a machine that was busy once is not slow forever.
	minExtraPatience = 20 * time.Millisecond
	maxExtraPatience = 400 * time.Millisecond
	patienceHalfLife = 10 * time.Second
	// proofsNeeded is how many reports must acknowledge new packets of a dead path before it
	// is used again.
	proofsNeeded = 3
	// returnProbes is how many probes a path that has been set up gets at short intervals. At
	// one each 100 ms it would take the path 0.3 s to return.
	returnProbes = 100
)

// Live reports whether the path is in use.
func (p *Path) Live() bool { return p.health.up && !p.health.dead }

// Returning reports whether the path was set up a moment ago and has to prove that it
// delivers.
func (p *Path) Returning() bool {
	h := &p.health
	return h.up && h.dead && h.returning && uint32(p.ledger.nextSeq)-h.seqAtDeath < returnProbes
}

// LiveSet returns the paths in use, one bit per ID.
func (s *Sender) LiveSet() uint64 {
	var set uint64
	for _, p := range s.paths {
		if p.Live() {
			set |= 1 << p.ID
		}
	}
	return set
}

// AckOverdue reports whether a path in use has not acknowledged anything for so long that
// all paths have to be probed.
func (s *Sender) AckOverdue(now time.Duration) bool {
	for _, p := range s.paths {
		patience := ackOverdueAfter + p.delay.smoothedRTT + 2*max(p.reportInterval-2*minWindow, 0)
		if r := p.ledger.runs.first(); p.Live() && r != nil && now-r.sentAt > patience {
			return true
		}
	}
	return false
}

// Check finds paths that have died or returned since the last call and returns their sets.
// A path that has died has nothing in flight any more.
func (s *Sender) Check(now time.Duration) (died, returned uint64) {
	for _, p := range s.paths {
		s.updateSidelined(p)
	}
	s.checkContention(now)
	for _, p := range s.paths {
		p.forgetOld(now)
		p.health.decayPatience(now)
		switch h := &p.health; {
		case !h.up:
		case h.dead && h.proofReports >= proofsNeeded:
			h.dead, h.proofReports = false, 0
			p.pacer.rate = max(p.pacer.rate, p.control.topRate) / 2 // not halved again with every flap
			p.delay.minimum, p.delay.standingQueue = windowedMin{}, 0
			p.drain = drain{lastAt: now}
			p.window.begin(p.ledger.lastReport, 0)
			p.control.resume(p.ledger.lastReport)
			p.resetLoss(now)
			p.clampRate()
			returned |= 1 << p.ID
		case !h.dead && s.isDead(p):
			p.markDead(false)
			died |= 1 << p.ID
		}
	}
	return died, returned
}

// isDead reports whether another path has delivered packets that were sent so much later
// than this path's oldest unacknowledged ones that these must be lost. Paths are compared
// with each other, never with a clock, because a starved processor delays all of them.
func (s *Sender) isDead(p *Path) bool {
	first := p.ledger.runs.first()
	if first == nil || p.ledger.runs.to-p.ledger.runs.from < 3 {
		return false
	}
	for _, o := range s.paths {
		if o == p || !o.Live() || o.ledger.ackedSentAt == 0 {
			continue
		}
		slower := time.Duration(max(p.delay.oneWay+p.delay.standingQueue-o.delay.oneWay, 0)) * time.Microsecond
		threshold := deathThreshold + p.health.extraPatience
		if !p.ledger.reported || p.padding.since > 0 && first.sentAt-p.padding.since < paddingTime {
			threshold += firstPatience
		}
		if o.ledger.ackedSentAt-first.sentAt > threshold+slower && p.overdue(first.sentAt) > threshold {
			return true
		}
	}
	return false
}

// overdue returns by how much a packet was overdue when the receiver last looked at the
// path. The receiver may have been too busy to look.
func (p *Path) overdue(sentAt time.Duration) time.Duration {
	if !p.ledger.reported {
		return time.Hour // there are no reports that tell when the receiver looked
	}
	arrival := uint32(sentAt/time.Microsecond) + uint32(int32(p.delay.oneWay+p.delay.standingQueue))
	return time.Duration(int32(p.ledger.checkedUntil-arrival)) * time.Microsecond
}

// markDead takes a path out of use. announced reports whether the link, the peer or the
// kernel said that it is dead.
func (p *Path) markDead(announced bool) {
	h := &p.health
	if !h.dead {
		h.deathAnnounced = announced
	}
	h.dead, h.withdrawn, h.falseAlarm, h.returning = true, false, false, false
	h.proofReports, h.seqAtDeath = 0, uint32(p.ledger.nextSeq)
	p.ledger.forgetAll()
	p.pacer.backlogBytes = 0
}

// decayPatience halves the extra patience each patienceHalfLife.
func (h *health) decayPatience(now time.Duration) {
	if h.extraPatience > 0 && now-h.patienceChangedAt > patienceHalfLife {
		h.patienceChangedAt = now
		if h.extraPatience /= 2; h.extraPatience < minExtraPatience {
			h.extraPatience = 0
		}
	}
}

// countProof counts a report about a dead path that covers new packets.
func (p *Path) countProof(now time.Duration, r Report) {
	if p.ledger.reported && r.HighestSeq == p.ledger.lastReport.HighestSeq {
		return
	}
	h := &p.health
	sentBefore := int32(r.HighestSeq-h.seqAtDeath) < 0
	if sentBefore && h.withdrawn {
		return // it was in flight when the path was taken out of use
	}
	if h.proofReports++; sentBefore {
		// The path was only late: be more patient, and use it again.
		h.extraPatience, h.patienceChangedAt = min(max(2*h.extraPatience, minExtraPatience), maxExtraPatience), now
		h.proofReports, h.falseAlarm = proofsNeeded, true
	}
}

// SetUp sets whether the administrator and the link allow the path to be used. A path that
// goes down has nothing in flight any more. A path that comes up counts as dead until probes
// have come through, unless the Sender is Blind.
func (s *Sender) SetUp(id int, up bool) {
	p := s.byID[id]
	if p == nil || p.health.up == up {
		return
	}
	h := &p.health
	h.up = up
	if up {
		h.dead, h.seqAtDeath, h.proofReports = !s.Blind, uint32(p.ledger.nextSeq), 0
		h.returning = true
	} else {
		p.markDead(true)
		h.withdrawn = true
	}
}

// Kill takes a path out of use because the kernel refuses to send on it. It reports whether
// it did: the last path in use stays.
func (s *Sender) Kill(id int) bool {
	p := s.byID[id]
	if p == nil || !p.Live() || s.LiveSet() == 1<<id {
		return false
	}
	p.markDead(true)
	return true
}

// Withdraw takes a path out of use because the peer has. Reports about earlier packets do
// not bring it back. It reports whether it did: the last path in use stays.
func (s *Sender) Withdraw(id int) bool {
	if !s.Kill(id) {
		return false
	}
	s.byID[id].health.withdrawn = true
	return true
}

// Revive uses a dead path again although nothing is reported about it. It reports whether
// it did.
func (s *Sender) Revive(id int) bool {
	p := s.byID[id]
	if p == nil || !p.health.up || !p.health.dead {
		return false
	}
	p.health.dead = false
	return true
}
