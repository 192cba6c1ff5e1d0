package sched

import "time"

// jointDrain is a drain of all paths in which a queue stays: they are paused together until what
// they had queued must have left. What stands then is others', even if the paths have a common
// bottleneck.
type jointDrain struct {
	until   time.Duration // end of the pause; 0: there is no joint drain
	paused  bool          // the pause has not ended
	endedAt time.Duration // of the last one
}

// participation is a path's part in a joint drain.
type participation struct {
	wanted bool // the path needs one
	on     bool
	over   bool // the pause is

	pauseSeq    uint32  // path sequence number after the last packet before the pause
	silent      bool    // that packet has been reported
	silentSince uint32  // when it arrived, µs, on the receiver's clock
	silence     float64 // between its arrival and that of the first packet after the pause, µs
}

const (
	jointDrainEvery = time.Second // least time between two
	jointMargin     = 1.25        // of the queue that is known is what a pause takes
)

// drainTogether begins and ends joint drains.
func (s *Sender) drainTogether(now time.Duration) {
	j := &s.joint
	wanted, sampling := false, false
	for _, p := range s.paths {
		wanted = wanted || p.drain.joint.wanted
		sampling = sampling || p.drain.joint.on && p.drain.sampling
	}
	switch {
	case j.until == 0 && wanted && now-j.endedAt > jointDrainEvery:
		s.startJointDrain(now)
	case j.paused && now >= j.until:
		j.paused = false
		for _, p := range s.paths {
			if d := &p.drain; d.joint.on { // what was sent during the pause were probes
				d.joint.over, d.collected, d.sampleSeq = true, false, uint32(p.ledger.nextSeq)
				p.pacer.pausedUntil = now
			}
		}
	case j.until > 0 && (!sampling || now-j.until > maxPause):
		*j = jointDrain{endedAt: now}
		for _, p := range s.paths {
			if p.drain.joint.on { // without a result
				p.drain = drain{lastAt: p.drain.lastAt}
			}
		}
	}
}

func (s *Sender) startJointDrain(now time.Duration) {
	pause := time.Duration(0)
	for _, p := range s.paths {
		d := &p.drain
		stays := p.contention.on || p.contention.matters && p.delay.standingQueue > p.othersQueue()
		if p.Live() && (stays || d.joint.wanted) {
			d.joint = participation{
				on: true, pauseSeq: uint32(p.ledger.nextSeq),
				silent: p.ledger.inFlightBytes == 0, silentSince: p.ledger.lastReport.Arrived,
			}
			pause = max(pause, microseconds(jointMargin*p.wholeQueue())+drainMargin)
		}
		d.joint.wanted = false
	}
	pause = min(pause, maxPause)
	s.joint = jointDrain{until: now + pause, paused: true}
	for _, p := range s.paths {
		if p.drain.joint.on {
			p.drain.pause = pause
			p.pauseSending(now)
			p.pacer.pausedUntil = now + 2*maxPause // drainTogether ends it
		}
	}
}

// note measures the silence at the receiver.
func (j *participation) note(r Report, sampleSeq uint32) {
	if !j.on {
		return
	}
	if !j.silent && int32(r.HighestSeq-(j.pauseSeq-1)) >= 0 {
		j.silent, j.silentSince = true, r.Arrived
	}
	if j.over && j.silence == 0 && int32(r.HighestSeq-sampleSeq) >= 0 {
		j.silence = float64(r.Arrived - j.silentSince)
	}
}

// proves reports whether a queue that the first packet after the pause has met is none of the
// path's own: nothing of the path had arrived for as long as the queue took to drain.
func (j *participation) proves(queue float64) bool { return j.on && j.silence >= queue }
