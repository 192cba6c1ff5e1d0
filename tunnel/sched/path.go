package sched

import (
	"math"
	"time"
)

// How a path is paced. Times suit links from 1 Mbit/s to 100 Gbit/s.
const (
	// runTime is how much of a path's rate is sent in one go. Shorter runs cost a
	// system call each (0.25 ms: 68–85 % of 12 × 100 Mbit/s here), longer ones
	// make reordering.
	runTime = time.Millisecond
	// runLeast is a run that is worth its system call: bytes. Faster paths' are no longer
	// than that or than runLess, so that a run is one message and fits a shaper's burst: a
	// token bucket cuts what is longer, at the price of a packet each from there on, or has
	// it wait for a timer. Links of 1 Gbit/s with bursts of 0.5 ms carried, with runs of
	// 1 ms in messages of 64 KiB, messages of 0.4 ms, and runs of 0.3 ms: 2.2, 3.6 and
	// 3.6 Gbit/s when there were four, –, 3.8 and 6.1 when eight.
	runLeast = 12 << 10
	runLess  = 300 * time.Microsecond
	// depthTime is how much may be given to a path ahead of its rate, a run
	// included.
	depthTime = 2 * time.Millisecond
	// tellShare is the part of a path's rate, 1 in so many, that reports may take which
	// others carry, too.
	tellShare = 8
	// credit is how late a wake-up may be without the path losing its pace.
	credit = 2 * time.Millisecond
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
	// Full means that the path's socket takes nothing at present. Only Flow chooses such a
	// path.
	Full bool

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
	back    time.Duration // when it last began to bring something: at first, or after death

	base  least // one-way delay, clock offset included, µs
	queue float64
	peak  highest
	rtt   time.Duration // smoothed
	short time.Duration // the shortest
	delay float64       // µs: base, for comparing paths
	// standing is the queue that the last report has seen, µs: what is sent is so much later.
	// queue may be what is only thought to stand.
	standing float64

	// The last report, and that at which the rate's window began, with what was believed of
	// them; and the last as it came.
	last, mark, counted Report
	acknowledged        uint32 // path sequence number behind the highest reported
	reported            bool
	quietest            float64 // least queue in the window, µs
	// of what was acknowledged in the window, as it was sent
	sent, sentFirst  int // bytes: all, and of the first run
	sentFrom, sentTo time.Duration
	gap              time.Duration // the longest between two runs, from the last of the window before on

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

	told     time.Duration // until when reports have had their share
	capacity float64       // bytes/s: what the full path has delivered, smoothed

	seq      uint64 // next path sequence number; 32 bits of it travel
	sends    sends
	inflight int // bytes
	stray    int // bytes that were in flight when the path died: they may have come
	acked    time.Duration
	asOf     uint32        // Report.AsOf
	suspect  time.Duration // extra patience after a false alarm
	trusted  time.Duration // when that was last changed
	end      uint32        // of a dead path: seq when it died
	proofs   int           // reports since that it delivers again
	late     bool          // it was not dead: what was sent before has come
	said     bool          // it is dead because somebody said so: it was not found out
	left     bool          // that was because an end has taken it out of use
	coming   bool          // it is up since it died

	lost, delivered uint64 // packets
	average         int    // size of those that came with the last news, bytes
	deliveredBytes  uint64
	lossRate        float64       // smoothed
	spoils          bool          // others carry more without it
	lossy           bool          // because of what it loses
	leaks           float64       // what it loses at times without a long queue, which overflows
	judged          int           // packets that tell so
	known           time.Duration // when there were enough of them; 0: there are not
	returns         int           // in a row that came soon after each other
	padded          time.Duration // when it was last measured with padding
	goodput         meter
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
func (p *Path) run() float64 {
	return min(p.rate*runTime.Seconds(), max(runLeast, p.rate*runLess.Seconds()))
}

// Message is the number of bytes that should go as one message at most.
func (p *Path) Message() int { return max(runLeast, int(p.run())) }

// room is the number of bytes that may be given to the path now.
func (p *Path) room(now time.Duration) int {
	p.carry(now)
	if now < p.paused || p.Full {
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

// Takes is how long the path takes for so many bytes.
func (p *Path) Takes(bytes int) time.Duration {
	return time.Duration(float64(bytes) / p.rate * 1e9)
}

// Measuring tells whether the path is new, and padding shall find out what it carries. The
// queue that padding makes does not prolong it.
func (p *Path) Measuring(now time.Duration) bool {
	return p.Live() && !p.full && p.rate < measureMost && p.fresh > 0 && now-p.fresh < measureTime+8*p.short
}

// Cold returns how many bytes of padding may be sent on a path that is Measuring now.
func (p *Path) Cold(now time.Duration) (room int, ok bool) {
	if p.fresh == 0 {
		p.fresh = now
	}
	if !p.Measuring(now) {
		return 0, false
	}
	p.held, p.padded = now, now
	room = p.room(now)
	return room, float64(room) >= p.run()/2
}

// Rest has a path that is Measuring be measured from the beginning, later. One that was measured
// for most of its time is done.
func (p *Path) Rest(now time.Duration) {
	if p.Measuring(now) && now-p.fresh < measureTime {
		p.fresh = 0
	}
}

// expected is when a full packet given now would arrive, in µs of a scale that all paths share.
func (p *Path) expected() float64 { return p.length() + max(p.backlog, 0)/p.rate*1e6 }

// Sent notes a run and returns the path sequence number of its first packet.
func (p *Path) Sent(now time.Duration, packets, bytes int) uint64 {
	first := p.seq
	p.seq += uint64(packets)
	p.backlog += float64(bytes)
	p.inflight += bytes
	if p.sends.full() {
		p.drop()
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
		p.proof(now, r)
	}
	p.asOf = r.AsOf
	first := !p.reported
	r = p.credible(r)
	if first {
		p.back = now
		p.reported, p.last = true, r
		p.begin(r)
	}
	news := int(r.Highest - p.last.Highest)
	came, bytes := int(r.Packets-p.last.Packets), int(r.Bytes-p.last.Bytes)
	if at, ok := p.acknowledge(r.Highest); ok {
		p.acked = max(p.acked, at)
	}
	p.lost += uint64(max(news-came, 0))
	p.goodput.add(now, float64(bytes))
	p.last = r
	if news == 0 {
		return 0
	}
	p.average = bytes / max(came, 1)
	p.lossRate += (float64(max(news-came, 0))/float64(news) - p.lossRate) * min(1, float64(news)/500)
	if r.Delay != math.MaxInt32 { // else nothing has come since a report that was lost
		p.measure(now, r)
	}
	p.leak(now, news, max(news-came, 0))
	return news
}

// strayBytes and strayPackets are what a report may count beyond what was on its way: what
// came late, or twice. strayMost bytes of what nobody waits for any more may have come.
const (
	strayBytes   = 64 << 10
	strayPackets = 64
	strayMost    = 16 << 20 // what the peer's socket holds
)

// strays notes bytes that nobody waits for any more, though they may come.
func (p *Path) strays(bytes int) { p.stray = min(p.stray+bytes, strayMost) }

// credible replaces what a report counts by what this end believes of it: no more has come
// than was on its way. The peer may have begun to count anew, or count what it likes; a
// rate that follows from that would be none of the path's.
func (p *Path) credible(r Report) Report {
	packets, bytes := r.Packets, r.Bytes
	if p.reported {
		packets, bytes = packets-p.counted.Packets, bytes-p.counted.Bytes
		if int32(packets) < 0 || int32(bytes) < 0 {
			packets, bytes = 0, 0
		}
	}
	onItsWay := uint64(int32(uint32(p.seq) - p.acknowledged))
	packets = uint32(min(uint64(packets), onItsWay+strayPackets))
	bytes = uint32(min(uint64(bytes), uint64(p.inflight+p.stray)+strayBytes))
	p.stray -= min(max(int(bytes)-p.inflight, 0), p.stray)
	p.counted = r
	p.delivered += uint64(packets)
	p.deliveredBytes += uint64(bytes)
	p.acknowledged = r.Highest + 1
	r.Packets, r.Bytes = uint32(p.delivered), uint32(p.deliveredBytes)
	return r
}

// Average is the size of the packets that came with the last news, in bytes, with the outer
// headers, Ethernet's included: one at least was as long. 0: none came.
func (p *Path) Average() int { return p.average }
