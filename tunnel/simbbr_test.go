package tunnel

import (
	"slices"
	"time"
)

// simBBR makes a simTCP choose its window and pace as BBR does (version 1,
// net/ipv4/tcp_bbr.c), as far as a network notices.
type simBBR struct {
	*simTCP
	rates       [10]float64 // highest delivery rate of each of the last round trips, segments/s
	roundEnd    int         // the round trip ends when this many segments have been delivered
	rounds      int
	full        float64 // rate of the last growth, in startup
	flat        int     // round trips without growth
	state       simBBRState
	phase       int // of the gain cycle
	phaseSince  time.Duration
	minRTT      time.Duration
	minRTTAt    time.Duration
	probeUntil  time.Duration // probing the round trip; 0: not
	probedEnd   int           // what is sent until that many segments have been delivered was limited by the probe
	nextSend    time.Duration
	sendPlanned bool
}

type simBBRState uint8

const (
	simStartup simBBRState = iota
	simDrain
	simProbe
)

var simGains = [8]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}

const simStartGain = 2.885

// delivered processes a segment that has arrived and was sent when count segments had been
// delivered, the last of them at a time.
func (b *simBBR) delivered(rtt time.Duration, count int, at time.Duration) {
	if rtt > 0 && (b.minRTT == 0 || rtt <= b.minRTT || b.now-b.minRTTAt > 10*time.Second) {
		if b.minRTT > 0 && rtt > b.minRTT && b.probeUntil == 0 {
			b.probeUntil = b.now + 200*time.Millisecond + rtt
		}
		b.minRTT, b.minRTTAt = rtt, b.now
	}
	if b.probeUntil > 0 || count < b.probedEnd { // such samples do not replace the rate, as those of a sender with little to send
		return
	}
	if count >= b.roundEnd {
		b.roundEnd = b.deliveredSegments
		b.rounds++
		b.endRound()
		b.rates[b.rounds%len(b.rates)] = 0
	}
	if d := b.now - at; d > 0 {
		r := &b.rates[b.rounds%len(b.rates)]
		*r = max(*r, float64(b.deliveredSegments-count)/d.Seconds())
	}
}

func (b *simBBR) rate() float64 { return slices.Max(b.rates[:]) }

func (b *simBBR) endRound() {
	switch b.state {
	case simStartup:
		if r := b.rate(); r > 1.25*b.full {
			b.full, b.flat = r, 0
		} else if b.flat++; b.flat >= 3 {
			b.state = simDrain
		}
	case simDrain, simProbe:
	}
}

// update sets the window and the pacing gain after an acknowledgement.
func (b *simBBR) update() (gain float64) {
	bdp := b.rate() * b.minRTT.Seconds()
	switch b.state {
	case simStartup:
		b.cwnd, gain = max(10, simStartGain*bdp), simStartGain
	case simDrain:
		b.cwnd, gain = max(10, simStartGain*bdp), 1/simStartGain
		if float64(b.flying.len()) <= bdp {
			b.state, b.phase, b.phaseSince = simProbe, 2, b.now
		}
	case simProbe:
		if b.now-b.phaseSince > b.minRTT {
			b.phase, b.phaseSince = (b.phase+1)%len(simGains), b.now
		}
		b.cwnd, gain = max(4, 2*bdp), simGains[b.phase]
	}
	if b.probeUntil > 0 {
		b.cwnd, gain = 4, 1
		if b.now > b.probeUntil {
			b.probeUntil, b.probedEnd = 0, b.deliveredSegments+b.flying.len()
		}
	}
	return gain
}

// maySend reports whether the next segment may be sent now. If not, the connection sends
// again when it may.
func (b *simBBR) maySend() bool {
	gain := b.update()
	if b.flying.len() >= int(b.cwnd) {
		return false
	}
	if b.now >= b.nextSend {
		rate := b.rate()
		if rate == 0 {
			rate = 10 / max(b.srtt, time.Millisecond).Seconds()
		}
		// Up to a millisecond's worth is sent at once, as the kernel does.
		b.nextSend = max(b.nextSend, b.now-time.Millisecond) + time.Duration(1e9/(gain*rate))
		return true
	}
	if !b.sendPlanned {
		b.sendPlanned = true
		b.at(b.nextSend, func() { b.sendPlanned = false; b.send() })
	}
	return false
}
