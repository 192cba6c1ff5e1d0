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
	reportsPausedUntil time.Duration // the path carries no second copies of reports until then

	ledger  ledger
	health  health
	loss    lossEstimate
	delay   delayEstimate
	drain   drain
	pacer   pacer
	window  window
	control rateControl
	padding padding
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
	Queue               time.Duration // standing in the path
	Delay               time.Duration // one-way delay beyond that of the fastest path
	InFlightBytes       int
	PaddingBytes        int // sent so far
}

// Status returns the state of the path with that ID, which must exist.
func (s *Sender) Status(now time.Duration, id int) Status {
	p := s.byID[id]
	l, d := &p.ledger, &p.delay
	l.goodput.add(now, 0)
	fastest := d.oneWay
	for _, o := range s.paths {
		if o.ledger.reported && o.Live() {
			fastest = min(fastest, o.delay.oneWay)
		}
	}
	micros := func(v float64) time.Duration { return time.Duration(v * 1000) }
	return Status{
		Up: p.health.up, Live: p.Live(),
		RateBitsPerSec: p.pacer.rate * 8, DeliveredBitsPerSec: l.goodput.rate * 8,
		DeliveredPackets: l.deliveredPackets, LostPackets: l.lostPackets, MarkedPackets: l.markedPackets,
		DeliveredBytes: l.deliveredBytes, LossRate: l.recentLoss,
		RTT: d.smoothedRTT, Queue: micros(max(d.standingQueue, 0)), Delay: micros(d.oneWay - fastest),
		InFlightBytes: l.inFlightBytes, PaddingBytes: p.padding.bytes,
	}
}
