package sched

import "time"

// Path is what the sender knows about one path. The fields are grouped by what they
// describe; package documentation, "State of a path", says which part of the package
// writes which group.
//
// Unless a field says otherwise, a rate is a float64 in bytes per second, a delay or queue
// is a float64 in microseconds, a time is a time.Duration since the caller's epoch, and a
// time of 0 means "never" or "not now".
type Path struct {
	ID     int
	Weight int // in mode Weighted; at least 1
	// SocketFull is set by the caller while the path's socket accepts no packets. Only mode
	// Flow picks such a path.
	SocketFull bool
	// Metered is set by the caller if every byte of the path costs money: the path is
	// measured by data only.
	Metered bool
	// Spare is set by the caller while a metered path carries no data: reports avoid it.
	Spare bool

	weightedBytes      float64       // in mode Weighted: bytes given to the path, divided by Weight
	copiesPausedUntil  time.Duration // the path carries no second copies of reports until then
	reportsPausedUntil time.Duration // until then, reports have had their share of the path
	reportInterval     time.Duration // how often the peer reports while packets arrive; 0: each two minWindows

	ledger  ledger
	health  health
	loss    lossEstimate
	delay   delayEstimate
	drain   drain
	pacer   pacer
	window  window
	control rateControl
	padding padding
	breaker breaker

	contention contention
}

// Status is the state of a path as shown to users.
type Status struct {
	Up, Live            bool
	RateBitsPerSec      float64 // the rate at which the path may be sent to
	DeliveredBitsPerSec float64 // recent delivery rate
	DeliveredPackets    uint64
	LostPackets         uint64
	MarkedPackets       uint64 // arrived with a congestion mark (ECN)
	DeliveredBytes      uint64
	LossRate            float64 // recent share of lost packets, 0…1
	RTT                 time.Duration
	Queue               time.Duration // standing in the path, others' included
	Delay               time.Duration // one-way delay beyond that of the fastest path
	InFlightBytes       int
	PaddingBytes        int    // sent so far
	Tripped             bool   // the circuit breaker has tripped: the path loses too much
	Trips               uint64 // how often it has
	Contended           bool   // others keep a queue in the path, and it takes a share beside them
}

// Status returns the state of the path with that ID, which must exist.
func (s *Sender) Status(now time.Duration, id int) Status {
	p := s.byID[id]
	l, d := &p.ledger, &p.delay
	l.goodput.add(now, 0)
	fastest := p.emptyOneWay()
	for _, o := range s.paths {
		if o.ledger.reported && o.Live() {
			fastest = min(fastest, o.emptyOneWay())
		}
	}
	return Status{
		Up: p.health.up, Live: p.Live(),
		RateBitsPerSec: p.pacer.rate * 8, DeliveredBitsPerSec: l.goodput.rate * 8,
		DeliveredPackets: l.deliveredPackets, LostPackets: l.lostPackets, MarkedPackets: l.markedPackets,
		DeliveredBytes: l.deliveredBytes, LossRate: l.recentLoss,
		RTT: d.smoothedRTT, Queue: microseconds(p.wholeQueue()), Delay: microseconds(p.emptyOneWay() - fastest),
		InFlightBytes: l.inFlightBytes, PaddingBytes: p.padding.bytes,
		Tripped: p.breaker.tripped, Trips: p.breaker.trips, Contended: p.contention.on,
	}
}
