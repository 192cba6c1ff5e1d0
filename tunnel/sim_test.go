package tunnel

import (
	"bytes"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// The simulated network: a sender with as much to send as the paths take, paths with a
// rate, a delay, a queue and losses, a receiver that reports. Everything that decides is
// the real thing: sched.Sender, the receiver's books, order.Buffer. The clock is virtual.
//
//	source ─ sched.Sender ─┬─ link 0 ─┬─ books, order.Buffer ─ flows
//	                       ├─ link 1 ─┤          │
//	                       └─ …       ┘ ◀─ reports
type simNet struct {
	now    time.Duration
	rng    *rand.Rand
	send   sched.Sender
	links  []*simLink
	in     *inbound
	events events
	flows  []uint32 // behind each flow's last
	seq    uint32
	kept   []map[uint32]simPacket
	again  []simPacket
	live   uint64 // as the receiver is told

	arrived   []uint32 // of a flow, the highest delivered
	backwards int
	got       int // bytes delivered
	most      int // packets that waited
	silent    time.Duration
	last      time.Duration
}

// simLink is one path's wire.
type simLink struct {
	rate  float64 // bytes/s
	delay time.Duration
	queue time.Duration
	loss  float64
	dead  bool
	free  time.Duration
	drops int
}

// most is the queue that a sender may keep in the link: 25 ms, or six packets.
func (l *simLink) most() time.Duration {
	return max(25*time.Millisecond, time.Duration(6*simSize/l.rate*1e9))
}

type simPacket struct {
	shim wire.Shim
	flow int
	size int
}

type event struct {
	at     time.Duration
	n      int
	p      *simPacket
	report []byte
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

const simSize = 1500

func newSim(seed uint64, links ...*simLink) *simNet {
	s := &simNet{now: time.Second, rng: rand.New(rand.NewPCG(seed, 7)), links: links, flows: make([]uint32, 4), arrived: make([]uint32, 4)}
	t := &Tunnel{}
	t.slowest.Store(int64(100 * time.Millisecond))
	s.in = &inbound{t: t}
	s.in.buf = order.New(order.Config{}, s)
	for i, l := range links {
		if l.queue == 0 {
			l.queue = 25 * time.Millisecond
		}
		s.send.Add(s.now, i, 1, 0)
		s.kept = append(s.kept, map[uint32]simPacket{})
	}
	return s
}

func mbit(n float64) float64 { return n * 1e6 / 8 }

// Deliver implements order.Receiver.
func (s *simNet) Deliver(p order.Packet) {
	flow := int(p.Data[0])
	seq := uint32(p.Data[1])<<24 | uint32(p.Data[2])<<16 | uint32(p.Data[3])<<8 | uint32(p.Data[4])
	if seq < s.arrived[flow] {
		s.backwards++
	}
	s.arrived[flow] = max(s.arrived[flow], seq)
	s.got += simSize
	s.silent = max(s.silent, s.now-s.last)
	s.last = s.now
}

// put sends a packet over a link.
func (s *simNet) put(p simPacket) {
	l := s.links[p.shim.Path]
	l.free = max(l.free, s.now)
	if l.dead || l.free-s.now > l.queue || s.rng.Float64() < l.loss {
		l.drops++
		return
	}
	l.free += time.Duration(float64(p.size) / l.rate * 1e9)
	s.schedule(event{at: l.free + l.delay, p: &p})
}

func (s *simNet) schedule(e event) {
	e.n = s.events.Len()
	heap.Push(&s.events, e)
}

// fill gives the paths what they have room for.
func (s *simNet) fill() {
	for {
		flow := int(s.seq) % len(s.flows)
		p, room := s.send.Pick(s.now, uint32(flow), simSize)
		if p == nil {
			return
		}
		n := max(1, room/simSize)
		if len(s.again) > 0 {
			n = min(n, len(s.again))
		}
		path := uint32(p.Sent(s.now, n, n*simSize))
		for i := range n {
			s.one(p, path+uint32(i))
		}
	}
}

func (s *simNet) one(p *sched.Path, path uint32) {
	var out simPacket
	if len(s.again) > 0 {
		out, s.again = s.again[0], s.again[1:]
		out.shim.Kind = wire.Again
	} else {
		flow := int(s.seq) % len(s.flows)
		before := uint16(0)
		if s.flows[flow] > 0 {
			before = uint16(s.seq - s.flows[flow] + 1)
		}
		out = simPacket{flow: flow, size: simSize, shim: wire.Shim{Kind: wire.Data, Seq: s.seq, Before: before}}
		s.seq++
		s.flows[flow] = s.seq
	}
	out.shim.Path, out.shim.PathSeq, out.shim.Time = uint8(p.ID), path, uint32(s.now/time.Microsecond)
	s.kept[p.ID][path] = out
	s.put(out)
}

// tick does what the sender's clock asks for.
func (s *simNet) tick() {
	died, _ := s.send.Check(s.now)
	for _, id := range sched.Ones(died) {
		for _, p := range s.kept[id] {
			s.again = append(s.again, p)
		}
		clear(s.kept[id])
	}
	if len(s.again) == 0 {
		s.live = s.send.LiveSet()
	}
	for _, p := range s.send.Paths() {
		mark := simPacket{size: 60, shim: wire.Shim{Kind: wire.Probe, Path: uint8(p.ID), Seq: s.seq, Time: uint32(s.now / time.Microsecond)}}
		mark.shim.PathSeq = uint32(p.Sent(s.now, 1, 60))
		mark.flow = int(s.live)
		s.put(mark)
	}
}

// receive takes a packet off its link.
func (s *simNet) receive(p *simPacket) {
	s.in.arrived(s.now, int(p.shim.Path), &p.shim, uint32(s.now/time.Microsecond), p.size)
	if p.shim.Kind == wire.Probe {
		s.in.mark(int(p.shim.Path), wire.Mark{Next: p.shim.Seq, Live: uint64(p.flow)})
		return
	}
	n := p.shim.Seq
	s.in.buf.Data(s.now, &order.Arrival{Path: int(p.shim.Path), Seq: n, Before: p.shim.Before, Resent: p.shim.Kind == wire.Again,
		Packet: order.Packet{Data: []byte{byte(p.flow), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}}})
}

// reported takes a report.
func (s *simNet) reported(b []byte) {
	for b = b[wire.HeaderBytes:]; len(b) > 0; {
		kind, value, rest, _ := wire.Next(b)
		b = rest
		var m wire.Missing
		var r wire.Report
		switch {
		case kind == wire.TypeMissing && wire.ParseMissing(value, &m) == nil:
			for i := range uint32(m.Count) {
				if p, ok := s.kept[m.Path][m.First+i]; ok && p.shim.Kind != wire.Probe {
					s.again = append(s.again, p)
				}
			}
		case kind == wire.TypeReport && wire.ParseReport(value, &r) == nil:
			p := s.send.Path(int(r.Path))
			p.RTT(2*s.links[r.Path].delay + 5*time.Millisecond)
			p.Report(s.now, r.Report)
			for seq := range s.kept[r.Path] {
				if int32(seq-r.Highest) <= 0 {
					delete(s.kept[r.Path], seq)
				}
			}
		}
	}
}

// run lets time pass.
func (s *simNet) run(d time.Duration) {
	const step = 200 * time.Microsecond
	for end := s.now + d; s.now < end; s.now += step {
		for s.events.Len() > 0 && s.events[0].at <= s.now {
			e := heap.Pop(&s.events).(event)
			if e.p != nil {
				s.receive(e.p)
			} else {
				s.reported(e.report)
			}
		}
		s.in.buf.Settle(s.now)
		s.in.buf.Recycle()
		s.most = max(s.most, s.in.buf.Stats().Waiting)
		if rp := &s.in.report; rp.due > 0 && s.now >= rp.due {
			rp.due, rp.last, rp.ready = 0, s.now, false
			for i := range s.links {
				s.in.looked[i], s.in.open[i] = s.now, true
			}
			s.in.compare()
			s.in.collect(s.now, func(_ time.Duration, b []byte) {
				s.schedule(event{at: s.now + s.links[0].delay, report: bytes.Clone(b)})
			})
		}
		if s.now%(5*time.Millisecond) < step {
			s.tick()
		}
		s.fill()
	}
}

// rate is what was delivered in d, bytes/s.
func (s *simNet) rate(d time.Duration) float64 {
	before := s.got
	s.run(d)
	return float64(s.got-before) / d.Seconds()
}

func (s *simNet) sum() float64 {
	sum := 0.0
	for _, l := range s.links {
		sum += l.rate
	}
	return sum
}

func TestSimulated(t *testing.T) {
	same := func(n int, mb float64) []*simLink {
		var l []*simLink
		for range n {
			l = append(l, &simLink{rate: mbit(mb), delay: time.Millisecond})
		}
		return l
	}
	delays := same(12, 100)
	for i, l := range delays {
		l.delay = time.Millisecond + time.Duration(i)*49*time.Millisecond/11
	}
	rates := same(4, 100)
	rates[2].rate, rates[3].rate = mbit(50), mbit(20)
	lossy := same(4, 100)
	lossy[1].loss = 0.01
	tests := []struct {
		name  string
		links []*simLink
		least float64 // of the sum
	}{
		{"one link", same(1, 100), 0.97},
		{"12 × 100 Mbit/s", same(12, 100), 0.97},
		{"2 × 1 Gbit/s", same(2, 1000), 0.97},
		{"2 × 2 Mbit/s", same(2, 2), 0.9},
		{"100/100/50/20", rates, 0.97},
		{"delays of 1…50 ms", delays, 0.95},
		{"1 % loss on one of 4", lossy, 0.95},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(1, tt.links...)
			s.run(2 * time.Second)
			got := s.rate(2 * time.Second)
			if share := got / s.sum(); share < tt.least {
				t.Errorf("carried %.1f %% of the sum, want %.0f", share*100, tt.least*100)
			}
			if late := s.in.buf.Stats().Late; s.backwards > int(late) {
				t.Errorf("%d packets out of order, %d late", s.backwards, late)
			}
			for i, l := range s.links {
				if q := l.free - s.now; q > l.most() {
					t.Errorf("link %d has a queue of %v", i, q)
				}
			}
		})
	}
}

func TestSimulatedDeath(t *testing.T) {
	var links []*simLink
	for range 4 {
		links = append(links, &simLink{rate: mbit(100), delay: time.Millisecond})
	}
	s := newSim(3, links...)
	s.run(2 * time.Second)
	lost := s.in.buf.Stats().Lost
	s.silent, links[1].dead = 0, true
	s.run(time.Second)
	if s.silent > 60*time.Millisecond {
		t.Errorf("nothing was delivered for %v", s.silent)
	}
	if n := s.in.buf.Stats().Lost - lost; n > 0 {
		t.Errorf("%d packets were lost", n)
	}
	if got := s.rate(time.Second) / mbit(300); got < 0.97 {
		t.Errorf("three links carry %.1f %% of what they can", got*100)
	}
	links[1].dead = false
	s.run(3 * time.Second)
	if got := s.rate(time.Second) / mbit(400); got < 0.95 {
		t.Errorf("after its return four links carry %.1f %%", got*100)
	}
}

// TestSimulatedStarvation stops the receiver's reports for a while: a starved processor
// is no reason to give a path up.
func TestSimulatedStarvation(t *testing.T) {
	s := newSim(4, &simLink{rate: mbit(100), delay: time.Millisecond}, &simLink{rate: mbit(100), delay: 5 * time.Millisecond})
	s.run(time.Second)
	s.in.report.due, s.in.report.last = s.now+300*time.Millisecond, s.now+300*time.Millisecond
	for range 300 {
		s.run(time.Millisecond)
		if set := s.send.LiveSet(); set != 3 {
			t.Fatalf("paths in use: %b", set)
		}
	}
}

// TestSimulatedAtRandom looks at properties over random networks: the sum is not below
// the best single path, queues are bounded, reordering is.
func TestSimulatedAtRandom(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			var links []*simLink
			best := 0.0
			for range 1 + rng.IntN(6) {
				l := &simLink{rate: mbit(math.Pow(10, 0.5+2*rng.Float64())), delay: time.Duration(1+rng.IntN(40)) * time.Millisecond}
				if rng.IntN(3) == 0 {
					l.loss = rng.Float64() * 0.03
				}
				best = max(best, l.rate*(1-l.loss))
				links = append(links, l)
			}
			s := newSim(seed, links...)
			s.run(3 * time.Second)
			got := s.rate(2 * time.Second)
			if got < 0.93*best {
				t.Errorf("%d links carry %.1f Mbit/s, the best alone %.1f", len(links), got*8e-6, best*8e-6)
			}
			for i, l := range links {
				if q := l.free - s.now; q > l.most() {
					t.Errorf("link %d (%.1f Mbit/s) has a queue of %v", i, l.rate*8e-6, q)
				}
			}
			if st := s.in.buf.Stats(); s.backwards > int(st.Late) {
				t.Errorf("%d packets out of order, %d late", s.backwards, st.Late)
			}
			t.Logf("%d links, %.1f of %.1f Mbit/s (best %.1f), %+v", len(links), got*8e-6, s.sum()*8e-6, best*8e-6, s.in.buf.Stats())
		})
	}
}

// TestSimulatedBadPath adds a path that is of little use: the sum is no less for it, and
// nothing waits for it.
func TestSimulatedBadPath(t *testing.T) {
	good := func() []*simLink {
		return []*simLink{{rate: mbit(100), delay: time.Millisecond}, {rate: mbit(60), delay: 4 * time.Millisecond}}
	}
	carried := func(links ...*simLink) (rate float64, pause time.Duration) {
		s := newSim(6, links...)
		s.run(2 * time.Second)
		s.silent = 0
		return s.rate(3 * time.Second), s.silent
	}
	alone, _ := carried(good()...)
	tests := []struct {
		name string
		bad  simLink
	}{
		{"slow", simLink{rate: mbit(0.5), delay: 2 * time.Millisecond}},
		{"far", simLink{rate: mbit(5), delay: 150 * time.Millisecond}},
		{"lossy", simLink{rate: mbit(20), delay: 2 * time.Millisecond, loss: 0.2}},
		{"all of it", simLink{rate: mbit(1), delay: 150 * time.Millisecond, loss: 0.3}},
		{"dead", simLink{rate: mbit(100), delay: time.Millisecond, dead: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with, pause := carried(append(good(), &tt.bad)...)
			if with < 0.98*alone {
				t.Errorf("%.1f Mbit/s with it, %.1f without", with*8e-6, alone*8e-6)
			}
			if pause > 60*time.Millisecond {
				t.Errorf("nothing was delivered for %v", pause)
			}
		})
	}
}
