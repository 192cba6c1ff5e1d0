package sched

import (
	"math"
	"time"
)

// The controller's constants. Times suit links from 1 Mbit/s to 100 Gbit/s.
const (
	// runTime is how much of a path's rate is sent in one go. Shorter runs cost a
	// system call each (0.25 ms: 68–85 % of 12 × 100 Mbit/s here), longer ones
	// make reordering.
	runTime = time.Millisecond
	// depthTime is how much may be given to a path ahead of its rate, a run
	// included.
	depthTime = 2 * time.Millisecond
	// credit is how late a wake-up may be without the path losing its pace.
	credit = 2 * time.Millisecond

	queueTarget = 800 * time.Microsecond // the queue that stands in a path, at its least
	queueBusy   = 300 * time.Microsecond // a longer queue proves that a path is full that packets wait for
	queueLong   = 4 * time.Millisecond   // and a longer one that any is
	settleTime  = 25 * time.Millisecond  // in which a wrong queue is brought back
	window      = 5 * time.Millisecond   // the least time over which a rate is measured

	startRate  = 10e6 / 8 // bytes/s of a path that nothing is known of
	leastRate  = 64e3 / 8
	fastGrowth = 2.0 // a report, until the path has been full once
	peakGrowth = 1.1 // afterwards, above what was delivered: reports come late

	measureTime = 200 * time.Millisecond // of padding on a new path, and eight round trips
	measureMost = 1e9 / 8                // bytes/s; who has more finds it with data

	soundEvery = 2500 * time.Millisecond // between two looks for the least delay
	soundTurns = 16
	drainTime  = depthTime + 2*runTime // more than a queue that has been seen: what is on its way into it
	maxPause   = 100 * time.Millisecond
	maxDoubts  = 3
	fullPacket = 1514                   // bytes
	baseAge    = 10 * time.Second       // a least delay is forgotten after this
	peakAge    = 200 * time.Millisecond // and a highest delivery rate after this
)

// Report is what the receiver says of a path: cumulative, so that lost reports do
// no harm. Times are microseconds of 32 bits, of its clock or of the sender's.
type Report struct {
	Highest uint32 // path sequence number, the highest that came
	Packets uint32 // that came
	Bytes   uint32 // that came, with the outer headers, Ethernet's included
	Arrived uint32 // when Highest came, the receiver's clock
	Delay   int32  // the least difference of arrival and timestamp since the last report; the clocks' offset is in it
	AsOf    uint32 // until when the receiver has looked: what came later it does not know, its clock
}

// Path is one path as its sender sees it.
type Path struct {
	ID     int
	Weight int // for Weighted; 0 counts as 1

	limit float64 // bytes/s; 0: none
	share float64 // for Weighted: bytes given, by weight

	up   bool // the administrator and the link say so
	dead bool

	rate    float64 // bytes/s
	full    bool    // has been full once: rate is more than a guess
	backlog float64 // bytes given, less what the rate has carried
	carried time.Duration
	held    time.Duration // when packets last waited for room
	fresh   time.Duration // when it was first used; 0: not yet

	base  least // one-way delay, clock offset included, µs
	queue float64
	peak  highest
	rtt   time.Duration
	delay float64 // µs: base, for comparing paths

	last, mark Report // the last report, and that at which the rate's window began
	reported   bool
	quietest   float64 // least queue in the window, µs
	// of what was acknowledged in the window, as it was sent
	sent, sentFirst  int // bytes: all, and of the first run
	sentFrom, sentTo time.Duration

	// sounding for the least delay: nothing is sent until paused, and what is sent
	// from sample on finds the path empty.
	paused   time.Duration
	sample   uint32 // path sequence number
	sampling bool
	pause    time.Duration
	doubt    float64 // a delay that was not believed, µs
	doubted  int
	sounded  time.Duration
	top      float64 // the most that it has delivered, or what it delivers when full, bytes/s
	best     float64 // delivered, bytes/s: by how much more it is sent than that
	bestAt   time.Duration
	calm     time.Duration // since when there has been none though packets wait; 0: not so
	wrong    time.Duration // since when the queue has been too long; 0: it is not

	capacity float64 // bytes/s: what the full path has delivered, smoothed

	seq      uint64 // next path sequence number; 32 bits of it travel
	sends    sends
	inflight int // bytes
	acked    time.Duration
	asOf     uint32        // Report.AsOf
	suspect  time.Duration // extra patience after a false alarm
	end      uint32        // of a dead path: seq when it died
	proofs   int           // reports since that it delivers again

	lost, delivered uint64 // packets
	deliveredBytes  uint64
	lossRate        float64 // smoothed
	goodput         meter
}

// least keeps the least of recent values in two halves of an age.
type least struct {
	now, before float64
	since       time.Duration
	some        bool
}

func (l *least) add(now time.Duration, v float64) {
	switch {
	case !l.some:
		l.now, l.before, l.since, l.some = v, v, now, true
	case now-l.since > baseAge/2:
		l.before, l.now, l.since = l.now, v, now
	default:
		l.now = min(l.now, v)
	}
}

func (l *least) set(now time.Duration, v float64) {
	*l = least{now: v, before: v, since: now, some: true}
}

func (l *least) get() float64 { return min(l.now, l.before) }

// highest keeps the highest of recent values likewise.
type highest struct {
	now, before float64
	since       time.Duration
}

func (h *highest) add(now time.Duration, v float64, age time.Duration) {
	if now-h.since > age/2 {
		h.before, h.now, h.since = h.now, v, now
		return
	}
	h.now = max(h.now, v)
}

func (h *highest) get() float64 { return max(h.now, h.before) }

// meter is a rate over about a second, for people.
type meter struct {
	rate  float64 // bytes/s
	bytes float64
	since time.Duration
}

func (m *meter) add(now time.Duration, bytes float64) {
	m.bytes += bytes
	if d := now - m.since; d > 500*time.Millisecond {
		m.rate, m.bytes, m.since = m.bytes/d.Seconds(), 0, now
	}
}

// carry lets the rate work until now.
func (p *Path) carry(now time.Duration) {
	d := now - p.carried
	if d <= 0 {
		return
	}
	p.carried = now
	p.backlog -= p.rate * d.Seconds()
	floor := 0.0
	if p.held+depthTime+credit > now { // it is behind, not idle
		floor = -p.rate * credit.Seconds()
	}
	p.backlog = max(p.backlog, floor)
}

// run is the number of bytes sent in one go.
func (p *Path) run() float64 { return p.rate * runTime.Seconds() }

// room is the number of bytes that may be given to the path now.
func (p *Path) room(now time.Duration) int {
	p.carry(now)
	if now < p.paused {
		return 0
	}
	return int(p.rate*depthTime.Seconds() - p.backlog)
}

// roomAt is when a whole run will have room.
func (p *Path) roomAt(now time.Duration) time.Duration {
	at := max(now, p.paused)
	over := p.backlog - (p.rate*depthTime.Seconds() - p.run())
	if over <= 0 {
		return at
	}
	return max(at, now+time.Duration(over/p.rate*1e9))
}

// Measuring tells whether the path is new, and padding shall find out what it carries.
func (p *Path) Measuring(now time.Duration) bool {
	return p.Live() && !p.full && p.rate < measureMost && p.fresh > 0 && now-p.fresh < measureTime+8*p.rtt
}

// Cold returns how many bytes of padding may be sent on a path that is Measuring now.
func (p *Path) Cold(now time.Duration) (room int, ok bool) {
	if p.fresh == 0 {
		p.fresh = now
	}
	if !p.Measuring(now) {
		return 0, false
	}
	p.held = now
	room = p.room(now)
	return room, float64(room) >= p.run()/2
}

// expected is when a byte given now would arrive, in µs of a scale that all paths
// share.
func (p *Path) expected() float64 { return p.delay + max(p.backlog, 0)/p.rate*1e6 }

// Sent notes a run and returns the path sequence number of its first packet.
func (p *Path) Sent(now time.Duration, packets, bytes int) uint64 {
	first := p.seq
	p.seq += uint64(packets)
	p.backlog += float64(bytes)
	p.inflight += bytes
	if p.sends.full() {
		p.inflight -= p.sends.drop()
	}
	p.sends.add(send{end: uint32(p.seq), packets: uint32(packets), at: now, bytes: bytes})
	return first
}

// Seq is the next path sequence number.
func (p *Path) Seq() uint64 { return p.seq }

// Report takes a report. It returns the number of packets that it newly
// acknowledges, arrived or lost.
func (p *Path) Report(now time.Duration, r Report) int {
	if p.reported && int32(r.Highest-p.last.Highest) < 0 || int32(r.Highest-uint32(p.seq)) >= 0 {
		return 0 // an old one, or nonsense
	}
	if p.dead {
		p.proof(r)
	}
	p.asOf = r.AsOf
	if !p.reported {
		p.reported, p.mark = true, Report{Highest: r.Highest, Packets: r.Packets, Bytes: r.Bytes, Arrived: r.Arrived}
		p.last = p.mark
		p.quietest = math.Inf(1)
		p.firstReport(r)
	}
	news := int(r.Highest - p.last.Highest)
	came := int(r.Packets - p.last.Packets)
	if at, ok := p.acknowledge(r.Highest); ok {
		p.acked = max(p.acked, at)
	}
	p.delivered += uint64(max(came, 0))
	if news > came {
		p.lost += uint64(news - came)
	}
	bytes := r.Bytes - p.last.Bytes
	p.deliveredBytes += uint64(bytes)
	p.goodput.add(now, float64(bytes))
	p.last = r
	if news == 0 {
		return 0
	}
	p.lossRate += (float64(max(news-came, 0))/float64(news) - p.lossRate) * min(1, float64(news)/500)
	p.measure(now, r)
	return news
}

// firstReport counts what came before there was anything to compare with.
func (p *Path) firstReport(r Report) {
	p.delivered += uint64(r.Packets)
	p.deliveredBytes += uint64(r.Bytes)
}

// measure draws conclusions from a report that acknowledges something.
func (p *Path) measure(now time.Duration, r Report) {
	delay := float64(r.Delay)
	p.base.add(now, delay)
	if p.sampling && int32(r.Highest-p.sample) >= 0 {
		p.sampled(now, delay)
		p.begin(r)
		p.bestAt = now
	}
	p.queue = delay - p.base.get()
	p.quietest = min(p.quietest, p.queue)
	p.delay = p.base.get()
	span := time.Duration(int32(r.Arrived-p.mark.Arrived)) * time.Microsecond
	if span < window {
		return
	}
	if !p.sampling { // else a pause is in the window, or will be
		p.adjust(now, float64(r.Bytes-p.mark.Bytes)/span.Seconds(), span)
	}
	p.begin(r)
}

// begin begins a window with a report.
func (p *Path) begin(r Report) {
	p.mark, p.quietest = r, math.Inf(1)
	p.sent = 0
}

// lag is how long it takes until what is sent shows in a report.
func (p *Path) lag() time.Duration { return p.rtt + 2*window }

// target is the queue that should stand: more on slow paths, where a packet is long.
func (p *Path) target() float64 {
	return max(float64(queueTarget.Microseconds()), 1.5*fullPacket/p.capacity*1e6)
}

// adjust sets the rate by what was delivered in a window.
func (p *Path) adjust(now time.Duration, delivered float64, span time.Duration) {
	p.peak.add(now, delivered, max(peakAge, 2*p.lag()))
	held := p.held+span+p.lag() > now
	// What was delivered is what the path can carry if more was there to be sent when it
	// was sent, and a queue stood; or if a long queue stood all the time. A little delay
	// besides is none of ours.
	sent := p.sendRate()
	limited := sent > 0.8*p.rate
	busy := limited && p.quietest > float64(queueBusy.Microseconds()) ||
		p.quietest > float64(queueLong.Microseconds()) && delivered > p.rate/2
	if limited { // else the first packets after a pause may have been faster than the path
		p.top = max(p.top, delivered)
	}
	switch {
	case busy:
		p.aim(now, delivered)
		p.top = p.capacity
	case !held:
		// What it may be sent beyond what it has ever delivered is a guess that nothing
		// corrects as long as nothing waits.
		p.rate = min(p.rate, max(peakGrowth*p.top, startRate))
	case p.plateau(now, sent, delivered):
		p.queue = max(p.queue, (sent/delivered-1)*float64((now-p.bestAt).Microseconds()))
		p.full, p.capacity, p.rate = true, delivered, delivered
		p.sound(now)
	case limited && p.full:
		p.grow(now, delivered)
	case limited:
		p.rate = max(p.rate, min(p.rate*fastGrowth, fastGrowth*p.peak.get()))
	}
	p.clamp()
	if busy && p.wrong > 0 && now-p.wrong > 4*p.lag() || held && p.full && now-p.sounded > soundEvery {
		p.sound(now)
	}
}

// sendRate is how fast what was acknowledged in the window was sent, bytes/s; 0: that can't
// be told.
func (p *Path) sendRate() float64 {
	d := p.sentTo - p.sentFrom
	if p.sent == 0 || d < window/2 {
		return 0
	}
	return float64(p.sent-p.sentFirst) / d.Seconds()
}

// plateau tells whether the path has been sent more than it delivers for so long that it
// must be full: what passes for its least delay is a queue.
func (p *Path) plateau(now time.Duration, sent, delivered float64) bool {
	if delivered <= 0 || sent < 1.15*delivered || delivered > 1.1*p.best {
		p.best, p.bestAt = delivered, now
	}
	return now-p.bestAt > max(4*p.lag(), 10*window)
}

// grow raises the rate of a path that has no queue though packets wait for it: a little, and
// more with every round trip in which it stays so.
func (p *Path) grow(now time.Duration, delivered float64) {
	if p.calm == 0 {
		p.calm = now
	}
	round := float64(now-p.calm) / float64(p.lag())
	most := min(peakGrowth+0.1*round, fastGrowth)
	p.rate = max(p.rate, min(p.rate*(1+(most-1)/2), most*p.peak.get()))
	p.capacity = max(p.capacity, delivered)
	p.wrong = 0
}

// aim sets the rate of a full path so that its queue becomes what it should be. The
// gain is such that a report that comes late does not make the queue swing.
func (p *Path) aim(now time.Duration, delivered float64) {
	if !p.full {
		p.full, p.capacity = true, delivered
	}
	p.calm = 0
	p.capacity += (delivered - p.capacity) * 0.25
	target := p.target()
	off := (target - p.quietest) / float64(max(settleTime, 3*p.lag(), 4*time.Duration(target)*time.Microsecond).Microseconds())
	switch {
	case off >= -0.02:
		p.wrong = 0
	case p.wrong == 0:
		p.wrong = now
	}
	p.rate = p.capacity * (1 + min(max(off, -0.5), 0.1))
}

// sound lets the path run empty, to see its least delay. When sending less has not
// made a queue shorter, it is not a queue; and if it is, this drains it.
func (p *Path) sound(now time.Duration) {
	if p.sampling {
		return
	}
	p.pause = min(time.Duration(p.queue)*time.Microsecond+drainTime, maxPause/4)
	p.silence(now)
}

func (p *Path) silence(now time.Duration) {
	p.wrong, p.sounded = 0, now
	p.paused = now + p.pause
	p.sampling, p.sample = true, uint32(p.seq)
	p.backlog = 0
}

// sampled takes the delay of what was sent after a pause. If it is more than the least so
// far, either that was outdated, or the pause was too short for the queue: it is more again
// after a longer one, or it is not.
func (p *Path) sampled(now time.Duration, delay float64) {
	p.sampling = false
	const close = 700 // µs
	if delay > p.base.get()+close && (p.doubted == 0 || delay < p.doubt-close) && p.doubted < maxDoubts {
		p.doubt = delay
		p.doubted++
		p.pause = min(2*p.pause, maxPause)
		p.silence(now)
		return
	}
	p.doubted = 0
	p.base.set(now, delay)
}

func (p *Path) clamp() {
	if p.limit > 0 {
		p.rate = min(p.rate, p.limit)
	}
	p.rate = max(p.rate, leastRate)
}

// acknowledge frees what was sent up to path sequence number highest, and tells
// when that was sent.
func (p *Path) acknowledge(highest uint32) (time.Duration, bool) {
	var at time.Duration
	some := false
	for {
		s := p.sends.first()
		if s == nil || int32(s.end-1-highest) > 0 {
			if s != nil && int32(s.begin()-highest) <= 0 { // a part of the run
				at, some = s.at, true
			}
			return at, some
		}
		at, some = s.at, true
		if p.sent == 0 {
			p.sentFrom, p.sentFirst = s.at, s.bytes
		}
		p.sent += s.bytes
		p.sentTo = s.at
		p.inflight -= p.sends.drop()
	}
}

// send is one run.
type send struct {
	end     uint32 // behind its last path sequence number
	packets uint32
	at      time.Duration
	bytes   int
}

func (s *send) begin() uint32 { return s.end - s.packets }

// sends is a queue of the runs that are not acknowledged.
type sends struct {
	ring     [2048]send
	from, to uint32
}

func (q *sends) full() bool { return q.to-q.from == uint32(len(q.ring)) }

func (q *sends) add(s send) {
	q.ring[q.to%uint32(len(q.ring))] = s
	q.to++
}

func (q *sends) first() *send {
	if q.from == q.to {
		return nil
	}
	return &q.ring[q.from%uint32(len(q.ring))]
}

// drop forgets the first and returns its bytes.
func (q *sends) drop() int {
	s := q.first()
	q.from++
	return s.bytes
}
