package sched

import (
	"math"
	"time"
)

// ledger holds a path's sequence numbers, what is in flight, and what has arrived.
type ledger struct {
	nextSeq       uint64   // path sequence number of the next packet; its low 32 bits are sent
	runs          runQueue // sent and neither acknowledged nor forgotten
	inFlightBytes int      // in runs
	strayBytes    int      // sent and forgotten, but may still arrive and be reported

	reported     bool   // at least one report was accepted
	rawReport    Report // the last accepted report, as the peer sent it
	lastReport   Report // the same with credible counters
	ackedEnd     uint32 // path sequence number after the highest reported one
	ackedSentAt  time.Duration
	checkedUntil uint32 // Report.CheckedUntil of the last report

	deliveredPackets uint64
	deliveredBytes   uint64
	lostPackets      uint64
	markedPackets    uint64  // arrived with a congestion mark (ECN)
	lostBalance      int     // packets that were skipped, less those that came late
	averageBytes     int     // mean size of the packets in the last report that had news; 0: none arrived
	recentLoss       float64 // smoothed over about 500 packets, for users
	goodput          meter   // for users
}

// Report is what the receiver says about a path. Its counters are cumulative, so a lost
// report does no harm. Times are in microseconds modulo 2³², on the receiver's clock.
type Report struct {
	HighestSeq uint32 // highest path sequence number that arrived
	Packets    uint32 // packets that arrived
	Bytes      uint32 // bytes that arrived, with the outer headers, Ethernet's included
	Arrived    uint32 // when HighestSeq arrived
	// MinDelay is the minimum difference between arrival time and the sender's timestamp
	// since the last report. It includes the offset between the two clocks. math.MaxInt32
	// means that no packet has arrived since.
	MinDelay int32
	// CheckedUntil is the time up to which the receiver has looked for packets of this
	// path. It knows nothing about later arrivals.
	CheckedUntil uint32
	// Marked is the number of packets that arrived with the ECN codepoint CE. It stays 0 if
	// the peer's version does not count them.
	Marked uint32
}

// run is a group of consecutive packets that were sent at once.
type run struct {
	endSeq  uint32 // path sequence number after its last packet
	packets uint32
	sentAt  time.Duration
	bytes   int
}

func (r *run) beginSeq() uint32 { return r.endSeq - r.packets }

// runQueue is a ring of runs, oldest first.
type runQueue struct {
	ring     [2048]run
	from, to uint32
}

func (q *runQueue) full() bool { return q.to-q.from == uint32(len(q.ring)) }

func (q *runQueue) add(r run) {
	q.ring[q.to%uint32(len(q.ring))] = r
	q.to++
}

// first returns the oldest run, or nil.
func (q *runQueue) first() *run {
	if q.from == q.to {
		return nil
	}
	return &q.ring[q.from%uint32(len(q.ring))]
}

// drop removes the oldest run and returns its bytes.
func (q *runQueue) drop() int {
	r := q.first()
	q.from++
	return r.bytes
}

// NextSeq returns the path sequence number of the next packet.
func (p *Path) NextSeq() uint64 { return p.ledger.nextSeq }

// AverageBytes returns the mean size of the packets in the last report that had news, with
// the outer headers, Ethernet's included. At least one of them was that long. It returns 0
// if none arrived.
func (p *Path) AverageBytes() int { return p.ledger.averageBytes }

// Sent records that a run was sent. It returns the path sequence number of its first packet.
func (p *Path) Sent(now time.Duration, packets, bytes int) uint64 {
	l := &p.ledger
	first := l.nextSeq
	l.nextSeq += uint64(packets)
	l.inFlightBytes += bytes
	p.pacer.backlogBytes += float64(bytes)
	if p.padding.due {
		p.padding.due = false
		p.padding.bytes += bytes
		p.padding.unreported, p.padding.endSeq = true, uint32(l.nextSeq)
	}
	if p.control.saturated {
		p.control.savings.spend(now, p.control.intendedRate(now), p.control.maxSavingsTime(), bytes)
	}
	if l.runs.full() {
		l.forgetOldestRun()
	}
	l.runs.add(run{endSeq: uint32(l.nextSeq), packets: uint32(packets), sentAt: now, bytes: bytes})
	return first
}

// Report processes a report. It returns the number of packets that the report is the first
// to cover, arrived or lost.
func (p *Path) Report(now time.Duration, r Report) int {
	l := &p.ledger
	if l.reported && int32(r.HighestSeq-l.lastReport.HighestSeq) < 0 || int32(r.HighestSeq-uint32(l.nextSeq)) >= 0 {
		return 0 // outdated, or about packets that were never sent
	}
	if p.health.dead {
		p.countProof(now, r)
	}
	l.checkedUntil = r.CheckedUntil
	r = l.credible(r)
	if !l.reported {
		p.health.returnedAt = now
		l.reported, l.lastReport = true, r
		p.window.begin(r, 0)
	}
	if d := &p.padding; d.unreported {
		d.lastAt, d.unreported = now, int32(d.endSeq-1-r.HighestSeq) > 0
	}
	news := int(r.HighestSeq - l.lastReport.HighestSeq)
	silence := time.Duration(int32(r.Arrived-l.lastReport.Arrived)) * time.Microsecond
	arrived, bytes := int(r.Packets-l.lastReport.Packets), int(r.Bytes-l.lastReport.Bytes)
	if sentAt, ok := p.ackRuns(r.HighestSeq); ok {
		l.ackedSentAt = max(l.ackedSentAt, sentAt)
	}
	l.lostBalance += news - arrived
	l.lostPackets = max(l.lostPackets, uint64(max(l.lostBalance, 0)))
	l.goodput.add(now, float64(bytes))
	l.lastReport = r
	if news == 0 {
		return 0
	}
	l.averageBytes = bytes / max(arrived, 1)
	l.recentLoss = max(l.recentLoss+(float64(news-arrived)/float64(news)-l.recentLoss)*min(1, float64(news)/500), 0)
	if r.MinDelay != math.MaxInt32 { // else nothing has arrived since an earlier report, which was lost
		p.update(now, r, news, news-arrived)
	}
	p.updateLoss(now, news, news-arrived)
	p.updateBreaker(now, silence, news, news-arrived)
	return news
}

// A report may count a little more than was in flight: packets that came late or twice. Of
// the bytes that were forgotten, at most maxStrayBytes can still arrive.
const (
	straySlackBytes   = 64 << 10
	straySlackPackets = 64
	maxStrayBytes     = 16 << 20 // capacity of the peer's socket
)

func (l *ledger) addStray(bytes int) { l.strayBytes = min(l.strayBytes+bytes, maxStrayBytes) }

// credible returns the report with counters replaced by what this end believes of them: no
// more has arrived than was in flight. The peer may have restarted its counters, or may lie;
// a rate derived from such counters would not be the path's.
func (l *ledger) credible(r Report) Report {
	packets, bytes, marked := r.Packets, r.Bytes, r.Marked
	if l.reported {
		packets, bytes, marked = packets-l.rawReport.Packets, bytes-l.rawReport.Bytes, marked-l.rawReport.Marked
		if int32(packets) < 0 || int32(bytes) < 0 {
			packets, bytes = 0, 0
		}
		if int32(marked) < 0 {
			marked = 0
		}
	}
	inFlightPackets := uint64(int32(uint32(l.nextSeq) - l.ackedEnd))
	packets = uint32(min(uint64(packets), inFlightPackets+straySlackPackets))
	bytes = uint32(min(uint64(bytes), uint64(l.inFlightBytes+l.strayBytes)+straySlackBytes))
	l.strayBytes -= min(max(int(bytes)-l.inFlightBytes, 0), l.strayBytes)
	l.rawReport = r
	l.deliveredPackets += uint64(packets)
	l.markedPackets += uint64(min(marked, packets))
	l.deliveredBytes += uint64(bytes)
	l.ackedEnd = r.HighestSeq + 1
	r.Packets, r.Bytes, r.Marked = uint32(l.deliveredPackets), uint32(l.deliveredBytes), uint32(l.markedPackets)
	return r
}

// ackRuns frees the runs up to path sequence number highest. It returns the time at which
// the newest acknowledged packet was sent.
func (p *Path) ackRuns(highest uint32) (sentAt time.Duration, ok bool) {
	for r := p.ledger.runs.first(); r != nil; r = p.ledger.runs.first() {
		if int32(r.endSeq-1-highest) > 0 {
			if int32(r.beginSeq()-highest) <= 0 { // part of the run
				return r.sentAt, true
			}
			break
		}
		sentAt, ok = r.sentAt, true
		p.window.acked(r)
		p.ledger.inFlightBytes -= p.ledger.runs.drop()
	}
	return sentAt, ok
}

// forgetAfter bounds, together with four round trips, how long a run counts as in flight.
// Missing reports must not block a path for good.
const forgetAfter = 2 * time.Second

// forgetOld forgets runs that have waited too long for an acknowledgement.
func (p *Path) forgetOld(now time.Duration) {
	l := &p.ledger
	for r := l.runs.first(); r != nil && now-r.sentAt > forgetAfter+4*p.delay.smoothedRTT; r = l.runs.first() {
		l.forgetOldestRun()
	}
}

// forgetOldestRun stops waiting for the oldest run.
func (l *ledger) forgetOldestRun() {
	bytes := l.runs.drop()
	l.inFlightBytes -= bytes
	l.addStray(bytes)
}

// forgetAll stops waiting for everything in flight.
func (l *ledger) forgetAll() {
	l.runs.from = l.runs.to
	l.addStray(l.inFlightBytes)
	l.inFlightBytes = 0
}
