package tunnel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// simWay carries size bytes of a flow and calls arrive when they have arrived, unless
// they are lost.
type simWay func(flow, size int, arrive func())

// simTCP is a TCP connection with unlimited data, as far as a network notices: slow start
// that ends as with HyStart, CUBIC (RFC 9438) or Reno (or BBR, see simBBR), RACK (RFC 8985) with an adaptive
// reordering tolerance, a retransmission timeout (RFC 6298), and acknowledgements of
// every second segment. Sequence numbers count whole segments. A wrong reduction of the
// window is not undone, so reordering costs more than with Linux.
type simTCP struct {
	*simClock
	flow        int
	there, back simWay

	// sender
	sent           simRing[simSegment]      // segments from unacked on
	flying, lost   simSet                   // their numbers; what is in neither has arrived
	overtaken      simSet                   // those of flying that were last sent before rackTime
	transmissions  simRing[simTransmission] // since rackTime, by time
	unacked        int
	cwnd, ssthresh float64
	recover        int           // losses below this number belong to the last reduction
	restarted      bool          // after a timeout, the window grows before recover is reached
	epoch          time.Duration // start of CUBIC's growth; 0: the next acknowledgement
	lastMax        float64       // window at the last loss
	slowStart      simSlowStart
	srtt, rttvar   time.Duration
	minRTT         time.Duration
	lastRTT        time.Duration
	rackTime       time.Duration // when the last-sent segment of those that have arrived was sent
	sacked, high   int           // segments above the first gap
	reordered      bool
	detectAt       time.Duration // when losses are looked for without an acknowledgement; 0: never
	steps          int           // in quarters of the least round trip
	stepped        int           // the tolerance grows next when unacked reaches this
	timeout        time.Duration // when the timer expires
	backoff        int
	retransmits    int
	timeouts       int

	window            int         // segments that the receiver can buffer
	reno              bool        // Reno instead of CUBIC
	marked            func() bool // whether the segment that arrives now is marked; nil: no ECN
	echo              bool        // a mark has not been acknowledged
	bbr               *simBBR     // BBR instead of CUBIC, if not nil
	deliveredSegments int
	deliveredAt       time.Duration

	// receiver
	next         int
	early        simSet
	arrivals     simPool[simTCPArrival]
	acks         simPool[simAckArrival]
	lately       [4]int // segments that arrived last
	pending      int    // not acknowledged
	inOrderBytes int
}

type simTransmission struct {
	n  int
	at time.Duration
}

type simSegment struct {
	at    time.Duration // when it was last sent; 0: never
	again bool          // sent more than once

	delivered   int           // segments when it was sent
	deliveredAt time.Duration // when the last of them was
}

const (
	simWindow     = 8192 // segments that the receiver can buffer
	simAckSize    = 60
	simFirstRTO   = time.Second
	simLeastRTO   = 200 * time.Millisecond
	simAckTimeout = 40 * time.Millisecond
)

// simAck is an acknowledgement.
type simAck struct {
	next   int
	lately [4]int // instead of ranges
	twice  bool   // the last segment was a duplicate
	marked bool   // a segment was marked
}

func newSimTCP(clock *simClock, flow int, there, back simWay) *simTCP {
	c := &simTCP{simClock: clock, flow: flow, there: there, back: back, window: simWindow, cwnd: 10, ssthresh: math.Inf(1), recover: -1, steps: 1, lately: [4]int{-1, -1, -1, -1}}
	c.minRTT = time.Hour
	c.at(c.now, func() {
		for _, s := range []*simSet{&c.flying, &c.lost, &c.overtaken, &c.early} {
			*s = newSimSet(c.window)
		}
		c.send()
		c.checkTimer()
	})
	return c
}

// use changes the congestion control, before the connection starts.
func (c *simTCP) use(congestion string) {
	switch congestion {
	case "reno":
		c.reno = true
	case "bbr":
		c.bbr = &simBBR{simTCP: c}
	}
}

// maySend reports whether the window, or the pacing, allows to send.
func (c *simTCP) maySend() bool {
	if c.bbr != nil {
		return c.bbr.maySend()
	}
	return c.flying.len() < int(c.cwnd)
}

// send sends what the window allows, lost segments first.
func (c *simTCP) send() {
	for n := c.unacked; (c.lost.len() > 0 || c.sent.len() < c.window) && c.maySend(); {
		if c.lost.len() > 0 {
			n = c.lost.next(n, c.end())
			c.lost.remove(n)
			c.retransmits++
			c.transmit(n)
			continue
		}
		c.sent.push(simSegment{})
		c.transmit(c.end() - 1)
	}
}

// end returns the number after that of the last segment sent.
func (c *simTCP) end() int { return c.unacked + c.sent.len() }

func (c *simTCP) transmit(n int) {
	s := c.sent.at(n - c.unacked)
	if s.again, s.at = s.at > 0, c.now; c.flying.len() == 0 {
		c.deliveredAt = c.now
	}
	s.delivered, s.deliveredAt = c.deliveredSegments, c.deliveredAt
	c.flying.add(n)
	c.transmissions.push(simTransmission{n, c.now})
	if c.timeout == 0 {
		c.restartTimer()
	}
	c.there(c.flow, simSize, c.arrivals.bind(simTCPArrival.receive, simTCPArrival{c, n}))
}

// simTCPArrival is a segment on its way.
type simTCPArrival struct {
	c *simTCP
	n int
}

// receive processes the segment at the receiver.
func (a simTCPArrival) receive() { a.c.receive(a.n) }

// acknowledge acknowledges the segment if it was the last one and still isn't acknowledged.
func (a simTCPArrival) acknowledge() {
	if c := a.c; c.pending > 0 && c.lately[0] == a.n {
		c.acknowledge(false)
	}
}

// receive processes a segment at the receiver.
func (c *simTCP) receive(n int) {
	c.echo = c.echo || c.marked != nil && c.marked()
	twice := n < c.next || c.early.has(n)
	plain := n == c.next && c.early.len() == 0
	if !twice {
		c.early.add(n)
	}
	for ; c.early.has(c.next); c.next++ {
		c.early.remove(c.next)
		c.inOrderBytes += simSize
	}
	copy(c.lately[1:], c.lately[:3])
	c.lately[0] = n
	if c.pending++; !plain || c.pending > 1 {
		c.acknowledge(twice)
		return
	}
	c.at(c.now+simAckTimeout, c.arrivals.bind(simTCPArrival.acknowledge, simTCPArrival{c, n}))
}

func (c *simTCP) acknowledge(twice bool) {
	c.pending = 0
	a := simAck{next: c.next, lately: c.lately, twice: twice, marked: c.echo}
	c.echo = false
	c.back(c.flow, simAckSize, c.acks.bind(simAckArrival.receive, simAckArrival{c, a}))
}

// simAckArrival is an acknowledgement on its way.
type simAckArrival struct {
	c *simTCP
	simAck
}

// receive processes the acknowledgement at the sender.
func (a simAckArrival) receive() { a.c.handleAck(a.simAck) }

// handleAck processes an acknowledgement at the sender.
func (c *simTCP) handleAck(a simAck) {
	before := c.sacked
	for _, n := range a.lately {
		if n >= max(a.next, c.unacked) {
			c.noteDelivered(n)
		}
	}
	news := c.sacked - before
	for ; c.unacked < a.next; c.unacked++ {
		if !c.arrived(c.unacked) {
			c.noteDelivered(c.unacked)
			news++
		}
		c.sacked--
		c.sent.drop(1)
	}
	if a.twice && c.unacked >= c.stepped { // it was late, not lost
		c.reordered, c.steps, c.stepped = true, c.steps+1, c.end()
	}
	if news > 0 {
		c.backoff = 0
		c.restartTimer()
		c.grow(news)
	}
	c.detectLosses()
	if a.marked && c.unacked >= c.recover { // RFC 3168: as if it were lost
		c.reduce()
		c.cwnd = c.ssthresh
	}
	c.send()
}

// arrived reports whether a segment from unacked on is known to have arrived.
func (c *simTCP) arrived(n int) bool { return !c.flying.has(n) && !c.lost.has(n) }

// noteDelivered records a delivered segment.
func (c *simTCP) noteDelivered(n int) {
	s := c.sent.at(n - c.unacked)
	switch {
	case c.flying.has(n):
		c.land(n)
	case c.lost.has(n):
		c.lost.remove(n)
	default:
		return
	}
	c.sacked++
	c.deliveredSegments, c.deliveredAt = c.deliveredSegments+1, c.now
	if c.bbr != nil {
		rtt := c.now - s.at
		if s.again {
			rtt = 0
		}
		c.bbr.delivered(rtt, s.delivered, s.deliveredAt)
	}
	if n < c.high && !s.again {
		c.reordered = true
	}
	c.high = max(c.high, n+1)
	if rtt := c.now - s.at; !s.again || rtt >= c.minRTT {
		c.lastRTT = rtt
		c.advanceRACK(s.at)
		if !s.again {
			c.addRTT(rtt)
		}
	}
}

func (c *simTCP) addRTT(rtt time.Duration) {
	c.minRTT = min(c.minRTT, rtt)
	if c.srtt == 0 {
		c.srtt, c.rttvar = rtt, rtt/2
	}
	c.rttvar += (max(rtt-c.srtt, c.srtt-rtt) - c.rttvar) / 4
	c.srtt += (rtt - c.srtt) / 8
	c.hyStart(rtt)
}

// hyStart ends slow start as Linux does: when the first acknowledgements of a round took
// longer than the shortest round trip, or when they follow each other for half of it.
func (c *simTCP) hyStart(rtt time.Duration) {
	h := &c.slowStart
	if c.unacked >= h.roundEnd {
		*h = simSlowStart{roundEnd: c.end(), began: c.now, lastAck: c.now, lowest: time.Hour}
	}
	if c.now-h.lastAck <= 2*time.Millisecond {
		h.lastAck = c.now
	}
	if h.samples < 8 {
		h.samples++
		h.lowest = min(h.lowest, rtt)
	}
	late := h.samples == 8 && h.lowest > c.minRTT+min(max(c.minRTT/8, 4*time.Millisecond), 16*time.Millisecond)
	train := h.lastAck == c.now && c.now-h.began > c.minRTT/2
	if c.cwnd < c.ssthresh && c.cwnd >= 16 && !c.reno && c.bbr == nil && (late || train) {
		c.ssthresh = c.cwnd
	}
}

type simSlowStart struct {
	roundEnd       int // the round ends when segments up to this one are acknowledged
	began, lastAck time.Duration
	samples        int
	lowest         time.Duration // of the first round trips
}

// grow grows the window for n delivered segments.
func (c *simTCP) grow(n int) {
	switch {
	case c.unacked < c.recover && !c.restarted || c.flying.len()+n < int(c.cwnd)*9/10:
	case c.cwnd < c.ssthresh:
		c.cwnd += float64(n)
	case c.reno:
		c.cwnd += float64(n) / c.cwnd
	default:
		if c.epoch == 0 {
			c.epoch = c.now
			c.lastMax = max(c.lastMax, c.cwnd)
		}
		t := (c.now - c.epoch + c.srtt).Seconds()
		want := 0.4*math.Pow(t-math.Cbrt((c.lastMax-c.ssthresh)/0.4), 3) + c.lastMax
		reno := c.ssthresh + 0.53*t/max(c.srtt, time.Millisecond).Seconds()
		c.cwnd += float64(n) * min(max(want-c.cwnd, reno-c.cwnd, 0.01)/c.cwnd, 0.5)
	}
	c.cwnd = min(c.cwnd, float64(c.window))
}

// reorderTolerance returns how much later than others a segment may arrive.
func (c *simTCP) reorderTolerance() time.Duration {
	if !c.reordered && c.sacked >= 3 {
		return 0
	}
	return min(c.minRTT/4*time.Duration(c.steps), c.srtt)
}

// advanceRACK notes that a segment has arrived that was last sent at a time.
func (c *simTCP) advanceRACK(at time.Duration) {
	c.rackTime = max(c.rackTime, at)
	for c.transmissions.len() > 0 && c.transmissions.at(0).at < c.rackTime {
		t := c.transmissions.pop()
		if t.n >= c.unacked && c.flying.has(t.n) && !c.overtaken.has(t.n) && c.sent.at(t.n-c.unacked).at == t.at {
			c.overtaken.add(t.n)
		}
	}
}

// land records that a segment is no longer in flight.
func (c *simTCP) land(n int) {
	c.flying.remove(n)
	if c.overtaken.has(n) {
		c.overtaken.remove(n)
	}
}

// detectLosses finds segments that should have arrived.
func (c *simTCP) detectLosses() {
	found := false
	end := c.end()
	for n := c.overtaken.next(c.unacked, end); n < end; n = c.overtaken.next(n+1, end) {
		due := c.sent.at(n-c.unacked).at + c.lastRTT + c.reorderTolerance()
		if due > c.now {
			if c.detectAt == 0 || due < c.detectAt {
				c.detectAt = due
				c.at(due, func() {
					if c.detectAt == due {
						c.detectAt = 0
						c.detectLosses()
						c.send()
					}
				})
			}
			break
		}
		found = true
		c.lose(n)
	}
	if found && c.unacked >= c.recover {
		c.reduce()
		c.cwnd = c.ssthresh
	}
}

// lose records that a segment in flight is lost.
func (c *simTCP) lose(n int) {
	c.land(n)
	c.lost.add(n)
}

// reduce reduces the window, once per window.
func (c *simTCP) reduce() {
	if c.lastMax = c.cwnd; c.cwnd < c.ssthresh/0.7 {
		c.lastMax *= 0.85
	}
	factor := 0.7
	if c.reno {
		factor = 0.5
	}
	c.ssthresh, c.epoch, c.recover, c.restarted = max(factor*c.cwnd, 2), 0, c.end(), false
}

// restartTimer restarts the retransmission timer.
func (c *simTCP) restartTimer() {
	rto := max(simLeastRTO, c.srtt+4*c.rttvar)
	if c.srtt == 0 {
		rto = simFirstRTO
	}
	c.timeout = c.now + rto<<min(c.backoff, 6)
}

// checkTimer handles an expired timer.
func (c *simTCP) checkTimer() {
	c.at(c.now+10*time.Millisecond, c.checkTimer)
	if c.now < c.timeout || c.sent.len() == 0 {
		return
	}
	c.timeouts++
	c.backoff++
	if c.unacked >= c.recover || !c.restarted {
		c.reduce()
	}
	c.cwnd, c.restarted = 1, true
	for n, end := c.flying.next(c.unacked, c.end()), c.end(); n < end; n = c.flying.next(n+1, end) {
		c.lose(n)
	}
	c.restartTimer()
	c.send()
}

// TestSimulatedTCP checks the source by itself over a plain link: it must fill the link,
// back off when packets are lost, and suffer when they are late.
func TestSimulatedTCP(t *testing.T) {
	link := func(change func(l *simLink)) *simLink {
		l := &simLink{rate: mbit(50), delay: 10 * time.Millisecond, queue: 40 * time.Millisecond}
		change(l)
		return l
	}
	tests := []struct {
		name        string
		link        *simLink
		least, most float64 // share of the link's rate
	}{
		{"plain", link(func(*simLink) {}), 0.97, 1.001},
		{"fast and long", link(func(l *simLink) { l.rate, l.delay = mbit(300), 30*time.Millisecond }), 0.8, 1.001},
		{"slow", link(func(l *simLink) { l.rate = mbit(1) }), 0.95, 1.001},
		{"short queue", link(func(l *simLink) { l.queue = 5 * time.Millisecond }), 0.8, 1.001},
		{"0.01 % loss", link(func(l *simLink) { l.loss = 0.0001 }), 0.8, 1},
		{"1 % loss", link(func(l *simLink) { l.loss = 0.01 }), 0.1, 0.3},
		{"5 % loss", link(func(l *simLink) { l.loss = 0.05 }), 0.01, 0.1},
		{"1 % late", link(func(l *simLink) { l.lateShare = 0.01 }), 0.1, 0.7},
		{"pauses each second", link(func(l *simLink) { l.flapTime = time.Second }), 0.03, 0.4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clock, rng := &simClock{now: time.Second}, rand.New(rand.NewPCG(5, 7))
			other := &simLink{rate: tt.link.rate, delay: tt.link.delay}
			c := newSimTCP(clock, 0,
				func(_, size int, arrive func()) { tt.link.send(clock, rng, size, arrive) },
				func(_, size int, arrive func()) { other.send(clock, rng, size, arrive) })
			clock.advance(4*time.Second, func() {})
			before := c.inOrderBytes
			clock.advance(10*time.Second, func() {})
			share := float64(c.inOrderBytes-before) / 10 / tt.link.rate
			t.Logf("%.1f %%, window %.0f, %d retransmissions, %d timeouts", share*100, c.cwnd, c.retransmits, c.timeouts)
			if share < tt.least || share > tt.most {
				t.Errorf("%.1f %% of the link's rate carried, want %.0f to %.0f", share*100, tt.least*100, tt.most*100)
			}
			if c.flying.len() < 0 || c.lost.len() < 0 || c.sacked < 0 {
				t.Errorf("%d in flight, %d lost, %d above the first gap", c.flying.len(), c.lost.len(), c.sacked)
			}
		})
	}
}
