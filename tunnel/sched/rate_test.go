package sched

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// link is a path's way: a rate, a queue without end and a delay. Reports come every 10 ms.
type link struct {
	rate  float64 // bytes/s
	delay time.Duration
	loss  float64
	late  time.Duration // what wakes up is so much later, once in 4 ms

	p       *Path
	now     time.Duration
	rng     *rand.Rand
	free    time.Duration // when the queue is empty
	coming  []coming
	report  Report
	reports []dated
	due     time.Duration // the next report
	longest time.Duration // queue since
	bytes   int           // delivered since
}

// coming is a packet on its way.
type coming struct {
	at, sent time.Duration
	n        uint64
	size     int
}

type dated struct {
	at time.Duration
	r  Report
}

const quiet = math.MaxInt32 // no delay yet

// run sends whatever there is room for, packets of 1500 bytes, for a time; at most so many
// bytes/s are there to be sent.
func (l *link) run(d time.Duration, demand float64) {
	const step = 100 * time.Microsecond
	l.longest, l.bytes = 0, 0
	offered := 0.0
	for end, turn := l.now+d, 0; l.now < end; l.now, turn = l.now+step, turn+1 {
		if turn%40 == 0 {
			l.now += l.late
		}
		for offered = min(offered+demand*(step+l.late).Seconds(), 1e6); offered >= 1500; offered -= 1500 {
			if room := l.p.room(l.now); room <= 0 || float64(room) < l.p.run()/2 {
				l.p.held = l.now
				break
			}
			l.send()
		}
		l.receive()
		if l.now >= l.due && l.report.Packets > 0 {
			l.due = l.now + 10*ms
			l.report.AsOf = uint32(l.now / time.Microsecond)
			l.reports = append(l.reports, dated{l.now + l.delay, l.report})
			l.report.Delay = quiet
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
	l.longest = max(l.longest, start-l.now)
	l.free = start + time.Duration(1500/l.rate*1e9)
	if l.rng.Float64() >= l.loss {
		l.coming = append(l.coming, coming{l.free + l.delay, l.now, n, 1500})
	}
}

func (l *link) receive() {
	for len(l.coming) > 0 && l.coming[0].at <= l.now {
		c := l.coming[0]
		l.coming = l.coming[1:]
		l.bytes += c.size
		r := &l.report
		r.Highest, r.Packets, r.Bytes = uint32(c.n), r.Packets+1, r.Bytes+uint32(c.size)
		r.Arrived = uint32(c.at / time.Microsecond)
		r.Delay = min(r.Delay, int32((c.at-c.sent)/time.Microsecond))
	}
}

func newLink(rate float64, delay time.Duration) *link {
	s := &Sender{}
	l := &link{rate: rate, delay: delay, p: s.Add(0, 0, 1, 0), rng: rand.New(rand.NewPCG(1, 2))}
	l.report.Delay = quiet
	l.p.RTT(2 * delay)
	return l
}

// TestRate has a path carry all that its link can, with a short queue, whatever it is.
func TestRate(t *testing.T) {
	const mbit = 1e6 / 8
	tests := []struct {
		name  string
		rate  float64
		delay time.Duration
		loss  float64
		late  time.Duration
		queue time.Duration // at most
	}{
		{"5 Mbit/s", 5 * mbit, 10 * ms, 0, 0, 25 * ms}, // a packet is 2.4 ms long
		{"100 Mbit/s", 100 * mbit, 200 * time.Microsecond, 0, 0, 5 * ms},
		{"100 Mbit/s, 50 ms", 100 * mbit, 50 * ms, 0, 0, 15 * ms},
		{"100 Mbit/s, 1 % lost", 100 * mbit, 5 * ms, 0.01, 0, 5 * ms},
		{"100 Mbit/s, late wake-ups", 100 * mbit, ms, 0, 3 * ms, 8 * ms},
		{"1 Gbit/s", 1000 * mbit, 200 * time.Microsecond, 0, 0, 5 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLink(tt.rate, tt.delay)
			l.loss, l.late = tt.loss, tt.late
			l.run(2*time.Second, 2*tt.rate)
			check := func(what string, rate float64) {
				t.Helper()
				l.run(3*time.Second, 2*rate)
				if got := float64(l.bytes) / 3 / rate; got < 0.97*(1-tt.loss) {
					t.Errorf("%s: %.1f %% of the link is carried", what, got*100)
				}
				if l.longest > tt.queue {
					t.Errorf("%s: a queue of %v, want at most %v", what, l.longest, tt.queue)
				}
			}
			check("at first", tt.rate)
			l.rate /= 2
			l.run(2*time.Second, tt.rate)
			check("at half the rate", tt.rate/2)
			l.rate = tt.rate
			l.run(2*time.Second, 2*tt.rate)
			check("at the old rate", tt.rate)
		})
	}
}

// TestRateOfShortPackets has a path be full only when it is, though its least delay is that of
// packets that took 0.4 ms less than full ones.
func TestRateOfShortPackets(t *testing.T) {
	const rate = 29e6 / 8
	l := newLink(rate, 18*ms)
	l.run(2*time.Second, 2*rate)
	l.p.base.set(l.now, float64((18 * ms / time.Microsecond)))
	l.p.rate, l.p.capacity = rate/2, rate/2
	l.p.sounded = l.now
	l.run(time.Second, 2*rate)
	if l.run(time.Second, 2*rate); float64(l.bytes) < 0.95*rate {
		t.Errorf("%.1f %% of the link is carried", float64(l.bytes)/rate*100)
	}
}

// TestHiddenQueue looks for the least delay once, and finds that 40 ms of it are a queue.
func TestHiddenQueue(t *testing.T) {
	const rate = 5e6 / 8
	l := newLink(rate, 19*ms)
	l.run(2*time.Second, 2*rate)
	l.free += 40 * ms
	l.p.base.set(l.now, l.p.base.get()+40e3)
	l.p.sounded = l.now - soundEvery
	l.run(soundEvery/2, 2*rate)
	if l.run(soundEvery/4, 2*rate); l.longest > 12*ms {
		t.Errorf("a queue of %v", l.longest)
	}
}

// TestLostReport has the report that follows a lost one say nothing of delay: nothing has come
// since.
func TestLostReport(t *testing.T) {
	p := sender(1).Path(0)
	bring(p, ms)
	p.sound(5 * ms)
	p.Sent(20*ms, 3, 3000)
	p.Report(30*ms, Report{Highest: 4, Packets: 5, Bytes: 5000, Arrived: 21000, Delay: quiet})
	if p.base.get() != 1000 || p.standing > 0 || p.delay != 1000 || p.delivered != 5 {
		t.Errorf("delay %v µs, at least %v, queue %v; %d packets", p.delay, p.base.get(), p.standing, p.delivered)
	}
}

// TestRateOfLittle has no rate follow from a time in which there was little to send.
func TestRateOfLittle(t *testing.T) {
	const rate = 100e6 / 8
	l := newLink(rate, ms)
	l.run(2*time.Second, 2*rate)
	was := l.p.rate
	l.run(5*time.Second, rate/20)
	if l.p.rate < 0.9*was {
		t.Errorf("the rate fell from %.0f to %.0f Mbit/s with little to send", was*8e-6, l.p.rate*8e-6)
	}
	l.run(200*time.Millisecond, 2*rate)
	if l.longest > 10*ms {
		t.Errorf("a queue of %v when there was much again", l.longest)
	}
}

// TestRateOfBursts has a path keep a fair part of its rate when packets come in bursts, some
// of them late, with time between that says nothing of what it can carry.
func TestRateOfBursts(t *testing.T) {
	const rate = 50e6 / 8
	for seed := range uint64(6) {
		for _, idle := range []int{20, 80, 300} { // ms at most
			l, r := newLink(rate, ms/10), rand.New(rand.NewPCG(seed, 4))
			l.run(time.Second, 2*rate)
			least := l.p.rate
			for range 200 {
				if r.IntN(3) == 0 {
					l.free = max(l.free, l.now) + time.Duration(r.Int64N(int64(3*ms)))
				}
				l.run(time.Duration(1+r.IntN(3))*ms, 6*rate*r.Float64())
				l.run(time.Duration(r.IntN(idle))*ms, 0.02*rate)
				least = min(least, l.p.rate)
			}
			if least < 0.2*rate {
				t.Errorf("seed %d, %d ms between: the rate fell from 50 to %.1f Mbit/s", seed, idle, least*8e-6)
			}
		}
	}
}

// TestLimit has a path never be sent more than its owner allows.
func TestLimit(t *testing.T) {
	l := newLink(100e6/8, ms)
	s := Sender{}
	l.p = s.Add(0, 0, 1, 20e6)
	l.run(time.Second, 100e6/8)
	l.run(2*time.Second, 100e6/8)
	if got := float64(l.bytes) * 8 / 2e6; got < 19 || got > 20.2 {
		t.Errorf("%.1f Mbit/s of the 20 that are allowed", got)
	}
	s.Tune(0, 1, 5e6)
	l.run(time.Second, 100e6/8)
	l.run(2*time.Second, 100e6/8)
	if got := float64(l.bytes) * 8 / 2e6; got > 5.1 {
		t.Errorf("%.1f Mbit/s of the 5 that are allowed now", got)
	}
}

func TestMessage(t *testing.T) {
	for _, c := range []struct {
		rate float64 // bit/s
		want int     // bytes
	}{
		{10e6, 12 << 10},
		{80e6, 12 << 10},
		{100e6, 12 << 10},
		{1e9, 37500},
		{8e9, 300000},
	} {
		if got := (&Path{rate: c.rate / 8}).Message(); got != c.want {
			t.Errorf("a message at %g bit/s has %d bytes at most, want %d", c.rate, got, c.want)
		}
	}
}
