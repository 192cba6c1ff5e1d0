package sched

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// link simulates a path: a rate, an unlimited queue and a delay. Reports come every 10
// ms.
type link struct {
	rate   float64 // bytes/s
	delay  time.Duration
	loss   float64
	bucket time.Duration // if not 0: what would wait for longer is dropped, and the rest does not wait
	late   time.Duration // every 4 ms, the sender wakes up so much later

	p        *Path
	now      time.Duration
	rng      *rand.Rand
	free     time.Duration // when the link has sent all that is queued
	inFlight []flight
	report   Report
	reports  []sentReport
	due      time.Duration // of the next report
	longest  time.Duration // longest queue in this run
	bytes    int           // delivered in this run
	lost     int           // packets
}

// flight is a packet in flight.
type flight struct {
	at, sent time.Duration
	n        uint64
	size     int
}

type sentReport struct {
	at time.Duration
	r  Report
}

const noDelay = math.MaxInt32 // no packet has arrived, so there is no delay

// run sends 1500-byte packets for a time, whenever the path has room. demand is how much
// there is to send, in bytes/s.
func (l *link) run(d time.Duration, demand float64) {
	const step = 100 * time.Microsecond
	l.longest, l.bytes = 0, 0
	offered := 0.0
	for end, turn := l.now+d, 0; l.now < end; l.now, turn = l.now+step, turn+1 {
		if turn%40 == 0 {
			l.now += l.late
		}
		for offered = min(offered+demand*(step+l.late).Seconds(), 1e6); offered >= 1500; offered -= 1500 {
			if room := l.p.room(l.now); room <= 0 || float64(room) < l.p.pacer.runBytes()/2 {
				l.p.pacer.heldBackAt = l.now
				break
			}
			l.send()
		}
		l.receive()
		if l.now >= l.due && l.report.Packets > 0 {
			l.due = l.now + 10*ms
			l.report.CheckedUntil = uint32(l.now / time.Microsecond)
			l.reports = append(l.reports, sentReport{l.now + l.delay, l.report})
			l.report.MinDelay = noDelay
		}
		for len(l.reports) > 0 && l.reports[0].at <= l.now {
			l.p.Report(l.now, l.reports[0].r)
			l.reports = l.reports[1:]
		}
	}
}

func (l *link) send() {
	n := l.p.Sent(l.now, 1, 1500)
	start := max(l.now, l.free)
	if l.bucket > 0 {
		if start-l.now > l.bucket {
			l.lost++
			return
		}
		l.free = start + time.Duration(1500/l.rate*1e9)
		l.arrive(l.now+l.delay, n)
		return
	}
	l.longest = max(l.longest, start-l.now)
	l.free = start + time.Duration(1500/l.rate*1e9)
	l.arrive(l.free+l.delay, n)
}

// arrive lets a packet arrive unless it is lost.
func (l *link) arrive(at time.Duration, n uint64) {
	if l.rng.Float64() < l.loss {
		l.lost++
		return
	}
	l.inFlight = append(l.inFlight, flight{at, l.now, n, 1500})
}

func (l *link) receive() {
	for len(l.inFlight) > 0 && l.inFlight[0].at <= l.now {
		c := l.inFlight[0]
		l.inFlight = l.inFlight[1:]
		l.bytes += c.size
		r := &l.report
		r.HighestSeq, r.Packets, r.Bytes = uint32(c.n), r.Packets+1, r.Bytes+uint32(c.size)
		r.Arrived = uint32(c.at / time.Microsecond)
		r.MinDelay = min(r.MinDelay, int32((c.at-c.sent)/time.Microsecond))
	}
}

func newLink(rate float64, delay time.Duration) *link {
	s := &Sender{}
	l := &link{rate: rate, delay: delay, p: s.Add(0, 0, 1, 0), rng: rand.New(rand.NewPCG(1, 2))}
	l.report.MinDelay = noDelay
	l.p.AddRTT(2 * delay)
	return l
}

// TestRate checks that a path uses all of its link and keeps a short queue.
func TestRate(t *testing.T) {
	const mbit = 1e6 / 8
	tests := []struct {
		name  string
		rate  float64
		delay time.Duration
		loss  float64
		late  time.Duration
		queue time.Duration // longest allowed
	}{
		{"5 Mbit/s", 5 * mbit, 10 * ms, 0, 0, 25 * ms}, // a packet takes 2.4 ms
		{"100 Mbit/s", 100 * mbit, 200 * time.Microsecond, 0, 0, 5 * ms},
		{"100 Mbit/s, 50 ms", 100 * mbit, 50 * ms, 0, 0, 15 * ms},
		{"100 Mbit/s, 1 % loss", 100 * mbit, 5 * ms, 0.01, 0, 5 * ms},
		{"100 Mbit/s, late wake-ups", 100 * mbit, ms, 0, 3 * ms, 10 * ms},
		{"1 Gbit/s", 1000 * mbit, 200 * time.Microsecond, 0, 0, 5 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLink(tt.rate, tt.delay)
			l.loss, l.late = tt.loss, tt.late
			l.run(2*time.Second, 2*tt.rate)
			check := func(name string, rate float64) {
				t.Helper()
				l.run(3*time.Second, 2*rate)
				if got := float64(l.bytes) / 3 / rate; got < 0.97*(1-tt.loss) {
					t.Errorf("%s: %.1f %% of the link used", name, got*100)
				}
				if l.longest > tt.queue {
					t.Errorf("%s: queue of %v, want at most %v", name, l.longest, tt.queue)
				}
			}
			check("initially", tt.rate)
			l.rate /= 2
			l.run(2*time.Second, tt.rate)
			check("at half the rate", tt.rate/2)
			l.rate = tt.rate
			l.run(2*time.Second, 2*tt.rate)
			check("at the full rate again", tt.rate)
		})
	}
}

// TestRateOfShortPackets sets the least delay to that of packets that take 0.4 ms less
// than full ones. The path must not take that difference for a queue.
func TestRateOfShortPackets(t *testing.T) {
	const rate = 29e6 / 8
	l := newLink(rate, 18*ms)
	l.run(2*time.Second, 2*rate)
	l.p.delay.minimum.set(l.now, float64((18 * ms / time.Microsecond)))
	l.p.pacer.rate, l.p.control.capacity = rate/2, rate/2
	l.p.drain.lastAt = l.now
	l.run(time.Second, 2*rate)
	if l.run(time.Second, 2*rate); float64(l.bytes) < 0.95*rate {
		t.Errorf("%.1f %% of the link used", float64(l.bytes)/rate*100)
	}
}

// TestHiddenQueue checks that a drain finds a queue of 40 ms that passed for delay.
func TestHiddenQueue(t *testing.T) {
	const rate = 5e6 / 8
	l := newLink(rate, 19*ms)
	l.run(2*time.Second, 2*rate)
	l.free += 40 * ms
	l.p.delay.minimum.set(l.now, l.p.delay.minimum.get()+40e3)
	l.p.drain.lastAt = l.now - drainEvery
	l.run(drainEvery/2, 2*rate)
	if l.run(drainEvery/4, 2*rate); l.longest > 12*ms {
		t.Errorf("queue of %v, want at most 12ms", l.longest)
	}
}

// TestLostReport checks that a report without a delay, because all packets were covered
// by a lost report, leaves the delay alone.
func TestLostReport(t *testing.T) {
	p := newSender(1).Path(0)
	deliverTwo(p, ms)
	p.startDrain(5 * ms)
	p.Sent(20*ms, 3, 3000)
	p.Report(30*ms, Report{HighestSeq: 4, Packets: 5, Bytes: 5000, Arrived: 21000, MinDelay: noDelay})
	if p.delay.minimum.get() != 1000 || p.delay.standingQueue > 0 || p.delay.oneWay != 1000 || p.ledger.deliveredPackets != 5 {
		t.Errorf("delay %v µs, minimum %v µs, queue %v µs, %d packets delivered", p.delay.oneWay, p.delay.minimum.get(), p.delay.standingQueue, p.ledger.deliveredPackets)
	}
}

// TestWrongRate has a path's rate be a multiple of what its link carries, and sends less than
// that: the queue shows what the link carries.
func TestWrongRate(t *testing.T) {
	const rate = 13e6 / 8
	l := newLink(rate, ms/10)
	l.run(2*time.Second, 2*rate)
	l.p.control.capacity, l.p.pacer.rate = 6*rate, 6*rate
	for n := range 100 {
		l.p.pacer.heldBackAt = l.now
		l.run(20*ms, [...]float64{1.8, 0.6}[n/10%2]*rate)
	}
	if got := l.p.control.capacity; got > 1.3*rate {
		t.Errorf("capacity counts as %.1f Mbit/s, of a link of %.1f", got*8e-6, rate*8e-6)
	}
}

// TestLongerRoute makes a path longer while there is little to send: what is delivered then is
// not what the path can carry.
func TestLongerRoute(t *testing.T) {
	const rate = 100e6 / 8
	l := newLink(rate, 5*ms)
	l.run(2*time.Second, 2*rate)
	l.run(time.Second, rate/10)
	l.delay += 10 * ms
	l.run(3*time.Second, rate/10)
	if got := l.p.control.capacity; got < 0.9*rate {
		t.Errorf("capacity fell from %.0f to %.0f Mbit/s", rate*8e-6, got*8e-6)
	}
}

// TestOthersQueue lets others fill the queue of a new path on which little is sent, and nothing
// waits: what is delivered is not the path's capacity.
func TestOthersQueue(t *testing.T) {
	l := newLink(100e6/8, 5*ms)
	l.run(500*ms, 4e6/8)
	for range 10 {
		l.free = max(l.free, l.now) + 20*ms
		l.run(10*ms, 4e6/8)
	}
	if c := &l.p.control; c.saturated {
		t.Errorf("capacity counts as %.1f Mbit/s", c.capacity*8e-6)
	}
}

// TestRateWithLittleToSend checks that the rate does not fall while there is little to send.
func TestRateWithLittleToSend(t *testing.T) {
	const rate = 100e6 / 8
	l := newLink(rate, ms)
	l.run(2*time.Second, 2*rate)
	was := l.p.pacer.rate
	l.run(5*time.Second, rate/20)
	if l.p.pacer.rate < 0.9*was {
		t.Errorf("rate fell from %.0f to %.0f Mbit/s with little to send", was*8e-6, l.p.pacer.rate*8e-6)
	}
	l.run(200*time.Millisecond, 2*rate)
	if l.longest > 10*ms {
		t.Errorf("queue of %v when there was much to send again", l.longest)
	}
}

// TestRateOfBursts checks that a path keeps a fair part of its rate when packets come in
// bursts, some of them late, with pauses that say nothing about its capacity.
func TestRateOfBursts(t *testing.T) {
	const rate = 50e6 / 8
	for seed := range uint64(6) {
		for _, idle := range []int{20, 80, 300} { // longest pause, ms
			l, r := newLink(rate, ms/10), rand.New(rand.NewPCG(seed, 4))
			l.run(time.Second, 2*rate)
			least := l.p.pacer.rate
			for range 200 {
				if r.IntN(3) == 0 {
					l.free = max(l.free, l.now) + time.Duration(r.Int64N(int64(3*ms)))
				}
				l.run(time.Duration(1+r.IntN(3))*ms, 6*rate*r.Float64())
				l.run(time.Duration(r.IntN(idle))*ms, 0.02*rate)
				least = min(least, l.p.pacer.rate)
			}
			if least < 0.2*rate {
				t.Errorf("seed %d, pauses up to %d ms: rate fell from 50 to %.1f Mbit/s", seed, idle, least*8e-6)
			}
		}
	}
}

// TestLimit checks that a path stays within its configured rate.
func TestLimit(t *testing.T) {
	l := newLink(100e6/8, ms)
	s := Sender{}
	l.p = s.Add(0, 0, 1, 20e6)
	l.run(time.Second, 100e6/8)
	l.run(2*time.Second, 100e6/8)
	if got := float64(l.bytes) * 8 / 2e6; got < 19 || got > 20.2 {
		t.Errorf("%.1f Mbit/s sent, limit 20", got)
	}
	s.Tune(0, 1, 5e6)
	l.run(time.Second, 100e6/8)
	l.run(2*time.Second, 100e6/8)
	if got := float64(l.bytes) * 8 / 2e6; got > 5.1 {
		t.Errorf("%.1f Mbit/s sent, limit lowered to 5", got)
	}
}

func TestMaxMessageBytes(t *testing.T) {
	for _, c := range []struct {
		rate, seen float64 // bit/s
		want       int     // bytes
	}{
		{10e6, 10e6, 12 << 10},
		{80e6, 80e6, 12 << 10},
		{100e6, 100e6, 12 << 10},
		{1e9, 1e9, 37500},
		{2e9, 1e9, 37500},
		{8e9, 0, 12 << 10},
		{8e9, 8e9, 300000},
	} {
		p := &Path{pacer: pacer{rate: c.rate / 8}}
		p.control.peakRate.add(time.Second, c.seen/8, peakAge)
		if got := p.MaxMessageBytes(); got != c.want {
			t.Errorf("largest message at %g bit/s, of which %g have been delivered, is %d bytes, want %d", c.rate, c.seen, got, c.want)
		}
	}
}
