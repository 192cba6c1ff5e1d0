package tunnel

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sort"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// The simulated network: two directions over links with a rate, a delay, a queue and
// losses. Everything that decides is the real thing: sched.Sender, CoDel, the receiver's
// books, order.Buffer; what outbound does with sockets is done here with links. The clock
// is virtual.
//
//	source ─ queue ─ sched.Sender ─┬─ link 0 ─┬─ books, order.Buffer ─ flows
//	                               ├─ link 1 ─┤          │
//	                               └─ …       ┘          │
//	     reports, missing, echoes ◀── the links' other direction

// simClock is virtual time, and what happens in it.
type simClock struct {
	now    time.Duration
	events events
	n      int // events so far
}

type event struct {
	at time.Duration
	n  int
	do func()
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

// at has something done at a time.
func (c *simClock) at(t time.Duration, do func()) {
	c.n++
	heap.Push(&c.events, event{at: t, n: c.n, do: do})
}

// advance lets time pass, with a step of the network's own every 200 µs.
func (c *simClock) advance(d time.Duration, step func()) {
	const every = 200 * time.Microsecond
	for end := c.now + d; c.now < end; c.now += every {
		for c.events.Len() > 0 && c.events[0].at <= c.now {
			heap.Pop(&c.events).(event).do()
		}
		step()
	}
}

// simLink is one path's wire in one direction.
type simLink struct {
	rate  float64 // bytes/s
	delay time.Duration
	queue time.Duration // 0: 25 ms
	loss  float64
	dead  bool
	dies  time.Duration // when it becomes so; 0: never
	comes time.Duration // until when it is dead
	flaps time.Duration // it is dead for so long in each two of it; 0: it does not
	pulls time.Duration // after 2 s it is unplugged likewise, and one end is told; 0: it is not
	late  float64       // share of packets that are late by lateBy
	free  time.Duration
	cuts  int // how often it was unplugged: what was on its way is lost
	drops int
}

const (
	simSize = 1500
	lateBy  = 40 * time.Millisecond
)

func mbit(n float64) float64 { return n * 1e6 / 8 }

// most is the queue that a sender may keep in the link: 25 ms, or six packets.
func (l *simLink) most() time.Duration {
	return max(25*time.Millisecond, time.Duration(6*simSize/l.rate*1e9))
}

func (l *simLink) broken(now time.Duration) bool {
	return l.dead || now < l.comes || l.dies > 0 && now >= l.dies || l.flaps > 0 && now/l.flaps%2 == 1
}

// put sends size bytes over the link. What shall happen when they have come is done, if
// they do.
func (l *simLink) put(c *simClock, rng *rand.Rand, size int, come func()) {
	queue := l.queue
	if queue == 0 {
		queue = 25 * time.Millisecond
	}
	l.free = max(l.free, c.now)
	if l.broken(c.now) || l.free-c.now > queue || rng.Float64() < l.loss {
		l.drops++
		return
	}
	l.free += time.Duration(float64(size) / l.rate * 1e9)
	at, cuts := l.free+l.delay, l.cuts
	if l.late > 0 && rng.Float64() < l.late {
		at += lateBy
	}
	c.at(at, func() {
		if cuts == l.cuts {
			come()
		}
	})
}

// simPacket is a packet of the inner network.
type simPacket struct {
	shim  wire.Shim
	flow  int
	size  int
	came  time.Duration
	then  func() // what its delivery does; nil: nothing
	asked bool   // it has been queued to be sent again
}

// simPath is a path as outbound has it.
type simPath struct {
	link         *simLink
	kept         []simPacket // by path sequence number
	data         bool
	last, probed time.Duration
}

// simNet is one direction.
type simNet struct {
	*simClock
	rng   *rand.Rand
	back  *simNet // the other
	send  sched.Sender
	rules *outbound // how long packets may wait, and how many bytes; no more of it is used
	paths []*simPath
	links []*simLink

	halted  time.Duration // until when nothing is read or sent; the device holds what comes
	forgets bool          // nothing is kept: what a path loses is lost for good
	endless bool          // there is always something to send, of four flows in turn
	queue   []simPacket
	again   []simPacket
	flows   [16]uint32 // behind each flow's last
	seq     uint32
	live    uint64 // as the receiver is told
	tell    int
	ticked  time.Duration
	dropped int // by CoDel
	deaths  int

	in     *inbound
	flight map[uint32]simPacket // what has not been delivered

	arrived   [16]uint32 // of a flow, the highest delivered
	backwards int
	got       int // bytes delivered
	silent    time.Duration
	last      time.Duration
}

// newSim makes a network whose source is endless. Nothing but reports goes back.
func newSim(seed uint64, links ...*simLink) *simNet {
	there := newSimPair(seed, links...)
	there.endless = true
	return there
}

// newSimPair makes a network without a source. The other direction has links like these.
func newSimPair(seed uint64, links ...*simLink) *simNet {
	clock, rng := &simClock{now: time.Second}, rand.New(rand.NewPCG(seed, 7))
	var others []*simLink
	for _, l := range links {
		other := *l
		others = append(others, &other)
	}
	there, back := newDirection(clock, rng, links), newDirection(clock, rng, others)
	there.back, back.back = back, there
	for i, l := range links {
		if l.pulls > 0 {
			clock.at(clock.now+2*time.Second, func() { there.plug(i, false) })
		}
	}
	return there
}

func newDirection(clock *simClock, rng *rand.Rand, links []*simLink) *simNet {
	t := &Tunnel{}
	t.slowest.Store(int64(100 * time.Millisecond))
	s := &simNet{simClock: clock, rng: rng, links: links, rules: &outbound{t: t}, in: &inbound{t: t}, flight: map[uint32]simPacket{}}
	s.in.buf = order.New(order.Config{}, s)
	for i, l := range links {
		s.send.Add(s.now, i, 1, 0)
		s.paths = append(s.paths, &simPath{link: l})
	}
	return s
}

// Deliver implements order.Receiver.
func (s *simNet) Deliver(p order.Packet) {
	seq := binary.BigEndian.Uint32(p.Data)
	pkt := s.flight[seq]
	delete(s.flight, seq)
	if seq < s.arrived[pkt.flow] {
		s.backwards++
	}
	s.arrived[pkt.flow] = max(s.arrived[pkt.flow], seq)
	s.got += pkt.size
	s.silent = max(s.silent, s.now-s.last)
	s.last = s.now
	if pkt.then != nil {
		pkt.then()
	}
}

// offer puts a packet into the queue before the paths.
func (s *simNet) offer(flow, size int, then func()) {
	s.queue = append(s.queue, simPacket{flow: flow, size: size, came: max(s.now, s.halted), then: then})
	s.rules.bytes += size
}

// datagrams offers so many Mbit/s, from now on.
func (s *simNet) datagrams(rate float64) {
	due := s.now
	var next func()
	next = func() {
		s.offer(0, simSize, nil)
		due += time.Duration(simSize / mbit(rate) * 1e9)
		s.at(due, next)
	}
	next()
}

// head is the packet that is sent next; nil: there is none.
func (s *simNet) head() *simPacket {
	if len(s.again) > 0 {
		return &s.again[0]
	}
	for {
		if len(s.queue) == 0 {
			if !s.endless {
				return nil
			}
			s.offer(int(s.seq%4), simSize, nil)
		}
		p := &s.queue[0]
		if !s.rules.tooLong(s.now, s.now-p.came) {
			return p
		}
		s.dropped++
		s.pop()
	}
}

func (s *simNet) pop() simPacket {
	p := s.queue[0]
	s.rules.bytes -= p.size
	s.queue = s.queue[1:]
	return p
}

// fill gives the paths what they have room for.
func (s *simNet) fill() {
	for p := s.head(); p != nil; p = s.head() {
		sp, room := s.pick(p)
		if sp == nil {
			return
		}
		s.gather(sp, room)
	}
}

// pick chooses the path for the packet that is sent next.
func (s *simNet) pick(p *simPacket) (*sched.Path, int) {
	if len(s.again) > 0 {
		return s.send.PickAgain(s.now, uint32(p.flow), p.size)
	}
	if s.send.Waited = s.now - p.came; s.endless {
		s.send.Waited = time.Second
	}
	return s.send.Pick(s.now, uint32(p.flow), p.size)
}

// gather sends a run on a path: what is to be sent again, or what is new.
func (s *simNet) gather(sp *sched.Path, room int) {
	var run []simPacket
	bytes := 0
	if again := len(s.again) > 0; again {
		for ; len(s.again) > 0 && (len(run) == 0 || bytes+s.again[0].size <= room); s.again = s.again[1:] {
			run = append(run, s.again[0])
			run[len(run)-1].shim.Kind = wire.Again
			bytes += s.again[0].size
		}
	} else {
		for p := s.head(); p != nil && (len(run) == 0 || bytes+p.size <= room); p = s.head() {
			run = append(run, s.number(s.pop()))
			bytes += p.size
		}
	}
	path := s.paths[sp.ID]
	path.data, path.last, s.rules.sent = true, s.now, s.now
	s.rules.load.add(s.now, len(run))
	first := uint32(sp.Sent(s.now, len(run), bytes))
	for i, p := range run {
		p.shim.Path, p.shim.PathSeq, p.shim.Time = uint8(sp.ID), first+uint32(i), uint32(s.now/time.Microsecond)
		if !s.forgets {
			path.kept = append(path.kept, p)
		}
		path.link.put(s.simClock, s.rng, p.size, func() { s.receive(p) })
	}
}

// number gives a new packet its number.
func (s *simNet) number(p simPacket) simPacket {
	before := uint16(0)
	if s.flows[p.flow] > 0 && s.seq-s.flows[p.flow] < 1<<16-1 {
		before = uint16(s.seq - s.flows[p.flow] + 1)
	}
	p.shim = wire.Shim{Kind: wire.Data, Seq: s.seq, Before: before}
	s.flight[s.seq] = p
	s.seq++
	s.flows[p.flow] = s.seq
	return p
}

// pad measures new paths, as outbound.pad does.
func (s *simNet) pad() {
	for id, sp := range s.send.Paths() {
		for room, ok := s.rules.load.padding(s.now, sp); ok; room, ok = s.rules.load.padding(s.now, sp) {
			n := max(1, min(padPackets, room/simSize))
			first := uint32(sp.Sent(s.now, n, n*simSize))
			for i := range n {
				p := simPacket{size: simSize, shim: wire.Shim{Kind: wire.Probe, Path: uint8(id), PathSeq: first + uint32(i), Seq: s.seq, Time: uint32(s.now / time.Microsecond)}}
				s.links[id].put(s.simClock, s.rng, simSize, func() { s.book(p) })
			}
		}
	}
}

// check does what Tunnel.check does.
func (s *simNet) check() {
	died, _ := s.send.Check(s.now)
	s.deaths += bits.OnesCount64(died)
	s.lose(died)
}

// plug has a link be up, or not, this end be told so, and the contrary in a while.
func (s *simNet) plug(id int, up bool) {
	s.at(s.now+s.links[id].pulls, func() { s.plug(id, !up) })
	for _, l := range []*simLink{s.links[id], s.back.links[id]} {
		l.dead, l.free = !up, s.now
		l.cuts++
	}
	s.send.SetUp(id, up)
	if !up {
		s.lose(1 << id)
	}
}

// lose does what Tunnel.lose does.
func (s *simNet) lose(died uint64) {
	for _, id := range sched.Ones(died) {
		if len(s.paths[id].kept) > 0 {
			s.rules.t.lost = s.now
		}
		for _, p := range s.paths[id].kept {
			if !p.asked {
				s.again = append(s.again, p)
			}
		}
		s.paths[id].kept = nil
	}
}

// tick does what outbound.tick does.
func (s *simNet) tick() {
	s.ticked = s.now
	s.rules.control()
	s.rules.rate, s.rules.spread = s.send.Rate(), s.send.Spread()
	s.check()
	doubt, live := s.send.Doubtful(s.now), s.send.LiveSet()
	if live != s.live && len(s.again) == 0 {
		s.live, s.tell = live, tellTimes
	}
	for id, p := range s.paths {
		sp := s.send.Path(id)
		every := probeEvery(sp, doubt, s.now-s.rules.sent < probeIdle)
		turned := p.data && s.now-p.last >= idleAfter
		if s.now-p.probed < every && !turned && s.tell == 0 {
			continue
		}
		if turned {
			p.data = false
		}
		for range probesAtOnce(sp.Unknown(), sp.Takes(probeShare)) {
			s.probe(id, sp.Live() && !p.data)
		}
	}
	s.tell = max(s.tell-1, 0)
}

// probe sends a mark, and asks for an echo.
func (s *simNet) probe(id int, idle bool) {
	const size = 120
	path, sent := s.paths[id], s.now
	path.probed = s.now
	p := simPacket{size: size, shim: wire.Shim{Kind: wire.Probe, Path: uint8(id), Seq: s.seq, Time: uint32(s.now / time.Microsecond)}}
	p.shim.PathSeq = uint32(s.send.Path(id).Sent(s.now, 1, size))
	mark := wire.Mark{Next: s.seq, Idle: idle, Live: s.live}
	path.link.put(s.simClock, s.rng, size, func() {
		s.book(p)
		s.in.mark(id, mark)
		s.back.links[id].put(s.simClock, s.rng, size, func() {
			s.send.Path(id).RTT(s.now - sent)
			s.rules.t.slowest.Store(int64(s.send.SlowestRTT()))
		})
	})
}

// book enters a packet into the receiver's books.
func (s *simNet) book(p simPacket) {
	s.in.arrived(s.now, int(p.shim.Path), &p.shim, uint32(s.now/time.Microsecond), p.size)
}

// receive takes a packet off its link.
func (s *simNet) receive(p simPacket) {
	s.book(p)
	s.in.buf.Data(s.now, &order.Arrival{Path: int(p.shim.Path), Seq: p.shim.Seq, Before: p.shim.Before, Resent: p.shim.Kind == wire.Again,
		Packet: order.Packet{Data: binary.BigEndian.AppendUint32(nil, p.shim.Seq)}})
}

// report sends a report that is due, as inbound.sendReport does.
func (s *simNet) report() {
	rp := &s.in.report
	if rp.due == 0 || s.now < rp.due {
		return
	}
	rp.due, rp.last, rp.ready = 0, s.now, false
	for i := range s.links {
		s.in.looked[i], s.in.open[i] = s.now, true
	}
	s.in.compare()
	s.in.collect(s.now, func(_ time.Duration, b []byte) {
		b = bytes.Clone(b)
		for _, id := range sched.Ones(s.back.send.Tell(s.now, len(b)+reportOuter)) {
			s.sendReport(id, b)
		}
	})
}

func (s *simNet) sendReport(id int, b []byte) {
	s.back.links[id].put(s.simClock, s.rng, len(b)+60, func() { s.reported(b) })
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
			kept := s.paths[m.Path].kept
			for i := s.keptFrom(m.Path, m.First); i < len(kept) && kept[i].shim.PathSeq-m.First < uint32(m.Count); i++ {
				if !kept[i].asked {
					s.again = append(s.again, kept[i])
					kept[i].asked = true
				}
			}
		case kind == wire.TypeReport && wire.ParseReport(value, &r) == nil:
			s.send.Path(int(r.Path)).Report(s.now, r.Report)
			s.paths[r.Path].kept = s.paths[r.Path].kept[s.keptFrom(r.Path, r.Highest+1):]
			s.check()
		}
	}
}

// keptFrom is where what is kept of a path begins to have a number, or a higher one.
func (s *simNet) keptFrom(path uint8, seq uint32) int {
	kept := s.paths[path].kept
	return sort.Search(len(kept), func(i int) bool { return int32(kept[i].shim.PathSeq-seq) >= 0 })
}

// run lets time pass.
func (s *simNet) run(d time.Duration) {
	s.advance(d, func() {
		s.step()
		s.back.step()
	})
}

func (s *simNet) step() {
	s.in.buf.Settle(s.now)
	s.in.buf.Recycle()
	s.report()
	if s.now < s.halted {
		return
	}
	s.rules.late(s.now)
	s.rules.due = s.now + napTime
	if s.now-s.ticked >= tickEvery {
		s.tick()
	}
	s.fill()
	s.pad()
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
