package sched

import "time"

// lossEstimate is how much a path loses, apart from what its own long queue drops.
type lossEstimate struct {
	ratio         float64       // share of packets lost while no long queue stood, 0…1
	samplePackets int           // packets that the estimate is based on
	knownSince    time.Duration // when there were enough of them; 0: not yet
	quickReturns  int           // consecutive returns from death that came soon after the one before
}

// The receiver delivers what a path loses one round trip and a report later, and the packets
// behind it in the flow wait for it. A path that loses minExcessLoss more of its packets than
// the others is sidelined unless it delivers worthFactor times as much of their rate as it
// loses of its own: one connection carries more without it. It is probed meanwhile, and is
// used again when it loses half as much, or delivers twice as much.
const (
	minExcessLoss = 0.05
	worthFactor   = 4
	// lossSamplePackets is how many packets show what a path loses. With 15 % loss one path
	// in 600 has lost less than minExcessLoss by then, with 10 % one in 17, so a path is
	// probed for as many packets again.
	lossSamplePackets = 100
	lossPriorPackets  = 10  // assumed to have arrived before the first one
	lossMemoryPackets = 300 // remembered
	// A path that returns within steadyTime of its last return has to deliver twice as many
	// packets, up to lossSamplePackets<<maxQuickReturns: 0.8 to 4 s with a probe each 1 to
	// 5 ms. A path of 20 Mbit/s that is up for half a second at a time stays unused.
	steadyTime      = 10 * time.Second
	maxQuickReturns = 3
	// A path whose death was announced cost nothing by dying: what was in flight was sent
	// again at once. If it lost little before, it need not deliver twice as many packets,
	// and none at all if it has delivered trustPackets, twice what probes deliver, since its
	// last return.
	trustPackets = 4 * lossSamplePackets
	// lossSettleTime is how long losses do not count after the last padding was reported:
	// padding was sent before the path's rate was known, and what follows meets its queue.
	lossSettleTime = 100 * time.Millisecond
)

// updateLoss adds a report on news packets, of which some were lost. The number of lost packets
// is negative if packets have come late that earlier reports had counted as lost.
func (p *Path) updateLoss(now time.Duration, news, lost int) {
	if o := &p.control.overload; p.health.dead || p.contention.on || o.waiting || now-p.padding.lastAt < max(lossSettleTime, 3*p.delay.smoothedRTT) {
		return
	}
	l := &p.loss
	l.samplePackets += news
	if l.knownSince == 0 && l.samplePackets >= lossSamplePackets<<l.quickReturns {
		l.knownSince = now
	}
	if p.delay.standingQueue < float64(longQueue.Microseconds()) { // a longer queue overflows
		weight := float64(news) / float64(min(l.samplePackets+lossPriorPackets, lossMemoryPackets))
		l.ratio = max(l.ratio+(float64(lost)/float64(news)-l.ratio)*min(1, weight), 0)
	}
}

// resetLoss restarts the estimate of a path that returns from death, unless it was a false
// alarm.
func (p *Path) resetLoss(now time.Duration) {
	h, l := &p.health, &p.loss
	if h.falseAlarm {
		return
	}
	harmless := h.deathAnnounced && l.ratio < minExcessLoss/2
	switch {
	case now-h.returnedAt > steadyTime:
		l.quickReturns = 0
	case harmless:
	case l.quickReturns < maxQuickReturns:
		l.quickReturns++
	}
	if !harmless || l.samplePackets < trustPackets {
		l.knownSince = 0
	}
	h.returnedAt, l.ratio, l.samplePackets = now, 0, 0
}

// LossUnknown reports whether a path in use has delivered something, but not enough to tell
// well what it loses, and is to be probed for that.
func (p *Path) LossUnknown() bool {
	return p.Live() && !p.Metered && p.ledger.reported && (p.loss.knownSince == 0 || p.loss.samplePackets < 2*lossSamplePackets)
}

// Sidelined reports whether the path is left alone because the others carry more without
// it.
func (p *Path) Sidelined() bool { return p.Live() && p.health.sidelined }

// updateSidelined decides whether a path is sidelined: for its losses, because it has not
// delivered anything and others have, or because its losses are unknown while those of
// another path were known before it came.
func (s *Sender) updateSidelined(p *Path) {
	minExcess, factor := minExcessLoss, float64(worthFactor)
	if p.health.sidelinedForLoss {
		minExcess, factor = minExcess/2, factor*2
	}
	// Of the other paths in use.
	rate, deliveredRate, knownEarlier := 0.0, 0.0, false
	for _, o := range s.paths {
		if o != p && o.carriesData() {
			rate += o.pacer.rate
			deliveredRate += o.pacer.rate * (1 - o.loss.ratio)
			knownEarlier = knownEarlier || o.loss.knownSince > 0 && o.loss.knownSince < p.health.returnedAt
		}
	}
	h := &p.health
	h.sidelined, h.sidelinedForLoss = false, false
	if rate == 0 {
		return
	}
	excess := p.loss.ratio - (1 - deliveredRate/rate)
	h.sidelinedForLoss = excess > minExcess && p.pacer.rate*(1-p.loss.ratio) < factor*excess*deliveredRate
	h.sidelined = h.sidelinedForLoss || !p.ledger.reported || p.loss.knownSince == 0 && knownEarlier && !p.Metered // without probes its losses become known by data only
}
