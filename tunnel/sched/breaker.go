package sched

import "time"

// breaker is a path's circuit breaker (RFC 8084). The rate controller follows delay, not loss,
// because radio links lose packets without being full, and what is lost is sent again. So
// nothing else bounds what the path is sent if a bottleneck drops most of it whatever its rate:
// one that others overload, or one that is broken. Each copy that is sent again makes that
// worse.
//
// Losses are counted in intervals. One with heavyLoss halves the rate. After tripIntervals of
// them in a row the breaker trips: lower rates have not helped. The path's rate is minRate then,
// and what it loses is not sent again, so the senders inside notice. The breaker closes when an
// interval has less than half of heavyLoss. Each interval without heavyLoss multiplies the
// limit by recoverGrowth, until the controller asks for less.
//
// A sidelined path carries probes only, so its losses do not count. What remains are tunnels
// with a single path, those whose paths are all lossy, and a path that is worth its losses.
type breaker struct {
	since         time.Duration // when the interval began; 0: there is none
	packets, lost int           // in the interval
	heavy         int           // consecutive intervals with heavyLoss
	tripped       bool
	limit         float64 // highest rate, bytes/s; 0: unlimited
	trips         uint64
	announced     bool // the last value of tripped that BreakerChanges has returned
}

const (
	// heavyLoss is the share of packets lost from which on repair is bound to fail: each packet
	// takes p/(1−p) copies if copies are lost too, and the tunnel's resendBudget allows one for
	// two packets, which is enough up to p = 1/3.
	heavyLoss = 0.34
	// tripIntervals is how many intervals in a row must have heavyLoss. RFC 8083, section 4.3,
	// waits for three of a receiver's reports.
	tripIntervals = 3
	// An interval takes breakerInterval, and breakerDelays feedback delays, so that the rate
	// controller and connections inside have reacted several times (RFC 8084, section 4: longer
	// than congestion control takes). It has breakerPackets, or while the breaker is tripped
	// closePackets, which take 3 s at minRate.
	breakerInterval = time.Second
	breakerDelays   = 5
	breakerPackets  = 100
	closePackets    = 20
	recoverGrowth   = 4.0
	// outageTime is how long nothing must have arrived, beyond two reports and four packets, for
	// what was lost meanwhile not to count: the path was interrupted, not overloaded.
	outageTime = 100 * time.Millisecond
)

// updateBreaker adds a report on news packets, of which some were lost. silence is how long
// nothing had arrived before the newest of them.
func (p *Path) updateBreaker(now, silence time.Duration, news, lost int) {
	b := &p.breaker
	switch {
	case p.health.sidelined && !b.tripped:
		b.heavy, b.limit = 0, 0
		b.restart(0)
		return
	case p.health.dead:
		b.restart(0)
		return
	case silence > max(outageTime+2*p.reportInterval, p.TransmitTime(4*fullPacketBytes)),
		now-p.padding.lastAt < max(lossSettleTime, 3*p.delay.smoothedRTT): // see lossSettleTime
		return
	case b.since == 0:
		b.restart(now)
	}
	b.packets += news
	b.lost += lost
	enough := breakerPackets
	if b.tripped {
		enough = closePackets
	}
	if b.packets >= enough && now-b.since >= max(breakerInterval, breakerDelays*p.feedbackDelay()) {
		p.endBreakerInterval()
		b.restart(now)
	}
	if b.limit > 0 {
		p.clampRate()
	}
}

func (b *breaker) restart(now time.Duration) { b.since, b.packets, b.lost = now, 0, 0 }

// endBreakerInterval concludes from the losses of an interval.
func (p *Path) endBreakerInterval() {
	b := &p.breaker
	loss := float64(b.lost) / float64(b.packets)
	switch {
	case b.tripped && loss >= heavyLoss/2:
		return
	case loss < heavyLoss:
		if b.tripped { // what the path lost before would sideline it
			p.loss.ratio = min(p.loss.ratio, loss)
		}
		b.heavy, b.tripped = 0, false
		if b.limit *= recoverGrowth; p.pacer.rate < b.limit/(2*recoverGrowth) || b.limit > 2*max(p.control.capacity, p.control.topRate) {
			b.limit = 0
		}
		return
	}
	b.limit = max(p.pacer.rate/2, minRate)
	if b.heavy++; b.heavy >= tripIntervals {
		b.tripped, b.limit = true, minRate
		b.trips++
	}
}

// Tripped reports whether the path's circuit breaker has tripped.
func (p *Path) Tripped() bool { return p.breaker.tripped }

// BreakerChanges returns the paths whose circuit breakers have tripped or closed since the last
// call.
func (s *Sender) BreakerChanges() (tripped, closed uint64) {
	for _, p := range s.paths {
		b := &p.breaker
		switch {
		case b.tripped == b.announced:
		case b.tripped:
			tripped |= 1 << p.ID
		default:
			closed |= 1 << p.ID
		}
		b.announced = b.tripped
	}
	return tripped, closed
}

// RepairStopped reports whether what a path has lost must not be sent again: its circuit breaker
// has tripped, or those of all paths that could carry it have.
func (s *Sender) RepairStopped(id int) bool {
	if p := s.byID[id]; p != nil && p.breaker.tripped {
		return true
	}
	all := false
	for _, p := range s.paths {
		if p.Live() && !p.health.sidelined {
			if !p.breaker.tripped {
				return false
			}
			all = true
		}
	}
	return all
}
