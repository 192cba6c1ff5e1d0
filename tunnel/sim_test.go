package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sort"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// The simulated network has two directions over links with a rate, a delay, a queue and
// losses. All decisions are made by the real code: sched.Sender, CoDel, inbound's
// records, order.Buffer. Links replace the sockets of outbound. The clock is virtual.
//
//	source ─ queue ─ sched.Sender ─┬─ link 0 ─┬─ inbound, order.Buffer ─ flows
//	                               ├─ link 1 ─┤          │
//	                               └─ …       ┘          │
//	     reports, missing, echoes ◀── the links' other direction

// simPacket is an inner packet.
type simPacket struct {
	queueInfo
	shim         wire.Shim
	size         int
	onDelivery   func()        // called on delivery, if not nil
	marked       bool          // by CoDel
	resendQueued bool          // it has been queued for resending
	resendBy     time.Duration // as in piece
	slot         int           // in simNet.inFlight
}

// bytesLeft implements queueable.
func (p *simPacket) bytesLeft() int { return p.size }

// simInFlight is a packet that has not been delivered yet.
type simInFlight struct {
	seq        uint32
	flow, size int // size 0: none
	onDelivery func()
	marked     bool
}

// simPath is a path of outbound.
type simPath struct {
	link                 *simLink
	unacked              simRing[simPacket] // by path sequence number
	carriedData          bool
	lastDataAt, probedAt time.Duration
}

// simNet is one direction.
type simNet struct {
	*simClock
	rng     *rand.Rand
	reverse *simNet // the other direction
	sender  sched.Sender
	out     *outbound // only used to decide how long packets may wait, and how many bytes
	paths   []*simPath
	links   []*simLink

	haltedUntil   time.Duration // nothing is read or sent until then; the device holds new packets
	ect           bool          // inner packets support ECN
	keepsNothing  bool          // nothing is kept: what a path loses is lost for good
	endless       bool          // there is always something to send, of four flows in turn
	queue         queue[*simPacket]
	spare         []*simPacket // memory of queue
	resends       simRing[simPacket]
	gathered      []simPacket // memory of gather
	lastOfFlow    [16]uint32  // sequence number after each flow's last packet
	nextSeq       uint32
	announcedLive uint64 // as last announced to the receiver
	announcements int
	tickedAt      time.Duration
	dropped       int // by CoDel
	lateResends   int
	resent        int // packets
	sentBytes     int
	reportBytes   []int // of reports about the other direction, by link
	deaths        int

	in       *inbound
	slew     float64 // by which the receiver's clock runs faster, as a ratio
	inFlight []simInFlight
	unused   []int // elements of inFlight
	arrivals simPool[simArrival]
	piece    [simPieceBytes]byte // memory of receive

	highestOfFlow  [16]uint32 // by flow, highest sequence number delivered
	delivering     bool       // the packet that is delivered now is marked
	outOfOrder     int
	deliveredBytes int
	longestSilence time.Duration
	lastDeliveryAt time.Duration
}

// newSim returns a network with an endless source. Only reports use the other direction.
func newSim(seed uint64, links ...*simLink) *simNet {
	there := newSimPair(seed, links...)
	there.endless = true
	return there
}

// newSimPair returns a network without a source. The other direction has equal links.
func newSimPair(seed uint64, links ...*simLink) *simNet {
	clock, rng := &simClock{now: time.Second}, rand.New(rand.NewPCG(seed, 7))
	var others []*simLink
	for _, l := range links {
		other := *l
		others = append(others, &other)
	}
	there := newDirections(clock, rng, links, others)
	for i, l := range links {
		if l.unplugTime > 0 {
			clock.at(clock.now+2*time.Second, func() { there.setPlugged(i, false) })
		}
	}
	return there
}

// newDirections returns a network with links in both directions.
func newDirections(clock *simClock, rng *rand.Rand, links, others []*simLink) *simNet {
	there, back := newDirection(clock, rng, links), newDirection(clock, rng, others)
	there.reverse, back.reverse = back, there
	return there
}

func newDirection(clock *simClock, rng *rand.Rand, links []*simLink) *simNet {
	t := &Tunnel{}
	t.maxRTT.Store(int64(100 * time.Millisecond))
	s := &simNet{simClock: clock, rng: rng, links: links, out: &outbound{t: t}, in: &inbound{t: t}}
	s.in.buf = order.New(order.Config{PacketBytes: simPieceBytes}, s)
	for i, l := range links {
		s.sender.Add(s.now, i, 1, 0)
		s.paths = append(s.paths, &simPath{link: l})
		s.reportBytes = append(s.reportBytes, 0)
	}
	return s
}

// Deliver implements order.Receiver.
func (s *simNet) Deliver(p order.Packet) {
	seq, slot := binary.BigEndian.Uint32(p.Data), int(binary.BigEndian.Uint32(p.Data[4:]))
	pkt := s.inFlight[slot]
	if pkt.size == 0 || pkt.seq != seq {
		return
	}
	s.inFlight[slot] = simInFlight{}
	s.unused = append(s.unused, slot)
	if seq < s.highestOfFlow[pkt.flow] {
		s.outOfOrder++
	}
	s.highestOfFlow[pkt.flow] = max(s.highestOfFlow[pkt.flow], seq)
	s.deliveredBytes += pkt.size
	s.longestSilence = max(s.longestSilence, s.now-s.lastDeliveryAt)
	s.lastDeliveryAt = s.now
	s.delivering = pkt.marked
	if pkt.onDelivery != nil {
		pkt.onDelivery()
	}
}

// offer adds a packet to the queue.
func (s *simNet) offer(flow, size int, then func()) {
	opens := s.lastOfFlow[flow] == 0 && flow < simPingFlow
	info := queueInfo{readAt: max(s.now, s.haltedUntil), flow: uint32(flow)}
	info.paths = s.out.flows.add(s.now, info.flow, 1, opens, time.Duration(s.out.t.maxRTT.Load()), s.out.anchored)
	if len(s.spare) == 0 {
		s.spare = append(s.spare, new(simPacket))
	}
	p := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	*p = simPacket{queueInfo: info, size: size, onDelivery: then}
	s.queue.add(p)
}

// datagrams offers that many Mbit/s from now on.
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

// first returns the packet of a lane that is sent next, or nil.
func (s *simNet) first(l *lane[*simPacket]) *simPacket {
	for {
		if flow := int(s.nextSeq % 4); s.endless && s.queue.bulk.empty() && (s.queue.sparse.empty() || s.out.flows[flow].paths != 0) {
			s.offer(flow, simSize, nil)
		}
		if l.empty() {
			return nil
		}
		p := l.first()
		if !s.out.shouldDrop(s.now, s.now-p.readAt, &l.backlog) {
			return p
		}
		if s.ect {
			p.marked = true
			return p
		}
		s.dropped++
		s.pop(l)
	}
}

func (s *simNet) pop(l *lane[*simPacket]) simPacket {
	p := l.first()
	s.queue.pop(l)
	s.spare = append(s.spare, p)
	return *p
}

// sendQueued sends what the paths have room for.
func (s *simNet) sendQueued() {
	for s.sendRun() {
	}
}

// sendRun sends one run. It reports whether there is one.
func (s *simNet) sendRun() bool {
	if s.dropLateResends(); s.resends.len() > 0 {
		p := s.resends.at(0)
		s.sender.ResendBytes = s.resends.len() * simSize
		sp, room := s.sender.PickResend(s.now, p.flow, p.size)
		if sp != nil {
			s.resend(sp, room)
		}
		return sp != nil
	}
	for _, l := range s.queue.lanes() {
		p := s.first(l)
		if p == nil {
			continue
		}
		s.sender.HeadWait, s.sender.FlowPaths = s.now-p.readAt, p.paths
		s.sender.BulkWaits = l == &s.queue.sparse && !s.queue.bulk.empty()
		if s.endless {
			s.sender.HeadWait = time.Second
		}
		if sp, room := s.sender.Pick(s.now, p.flow, p.size); sp != nil {
			s.gather(l, sp, room)
			return true
		}
	}
	return false
}

// resend sends a run of packets again on a path.
func (s *simNet) resend(sp *sched.Path, room int) {
	run, bytes := s.gathered[:0], 0
	for s.resends.len() > 0 && (len(run) == 0 || bytes+s.resends.at(0).size <= room) {
		p := s.resends.pop()
		p.shim.Kind = wire.Resend
		s.resent++
		run = append(run, p)
		bytes += p.size
		s.dropLateResends()
	}
	s.send(sp, run, bytes)
}

// gather sends a run of a lane's packets on a path.
func (s *simNet) gather(l *lane[*simPacket], sp *sched.Path, room int) {
	run, bytes := s.gathered[:0], 0
	for p := s.first(l); p != nil && (len(run) == 0 || bytes+p.size <= room && p.paths == run[0].paths); p = s.first(l) {
		run = append(run, s.assignSeq(s.pop(l)))
		bytes += run[len(run)-1].size
	}
	s.queue.sent(l, bytes)
	s.send(sp, run, bytes)
}

// send sends a run on a path.
func (s *simNet) send(sp *sched.Path, run []simPacket, bytes int) {
	path := s.paths[sp.ID]
	path.carriedData, path.lastDataAt, s.out.sentAt = true, s.now, s.now
	s.out.load.add(s.now, len(run))
	first := uint32(sp.Sent(s.now, len(run), bytes))
	for i := range run {
		p := &run[i]
		s.sentBytes += p.size
		p.shim.Path, p.shim.PathSeq, p.shim.Time = uint8(sp.ID), first+uint32(i), uint32(s.now/time.Microsecond)
		if !s.keepsNothing {
			path.unacked.push(*p)
		}
		path.link.ect = s.ect
		path.link.send(s.simClock, s.rng, p.size, s.arrivals.bind(simArrival.receive, simArrival{s, p.shim, p.size, p.slot}))
		path.link.ect = false
	}
	s.gathered = run
}

// assignSeq assigns a sequence number to a new packet.
func (s *simNet) assignSeq(p simPacket) simPacket {
	before := uint16(0)
	if s.lastOfFlow[p.flow] > 0 && s.nextSeq-s.lastOfFlow[p.flow] < 1<<16-1 {
		before = uint16(s.nextSeq - s.lastOfFlow[p.flow] + 1)
	}
	p.shim = wire.Shim{Kind: wire.Data, Seq: s.nextSeq, FlowDistance: before}
	if len(s.unused) == 0 {
		s.inFlight = append(s.inFlight, simInFlight{})
		s.unused = append(s.unused, len(s.inFlight)-1)
	}
	p.slot, s.unused = s.unused[len(s.unused)-1], s.unused[:len(s.unused)-1]
	s.inFlight[p.slot] = simInFlight{seq: s.nextSeq, flow: int(p.flow), size: p.size, onDelivery: p.onDelivery, marked: p.marked}
	s.nextSeq++
	s.lastOfFlow[p.flow] = s.nextSeq
	return p
}

// pad measures new paths as outbound.pad does.
func (s *simNet) pad() {
	for id, sp := range s.sender.Paths() {
		for room, ok := s.out.load.paddingRoom(s.now, sp); ok; room, ok = s.out.load.paddingRoom(s.now, sp) {
			n := max(1, min(padRunPackets, room/simSize))
			first := uint32(sp.Sent(s.now, n, n*simSize))
			for i := range n {
				shim := wire.Shim{Kind: wire.Probe, Path: uint8(id), PathSeq: first + uint32(i), Seq: s.nextSeq, Time: uint32(s.now / time.Microsecond)}
				s.links[id].send(s.simClock, s.rng, simSize, s.arrivals.bind(simArrival.recordPadding, simArrival{s: s, shim: shim, size: simSize}))
			}
		}
	}
}

// check does what Tunnel.checkPaths does.
func (s *simNet) check() {
	died, _ := s.sender.Check(s.now)
	s.deaths += bits.OnesCount64(died)
	s.resendUnacked(died)
}

// queueResend does what Tunnel.queueResend does.
func (s *simNet) queueResend(p *simPacket) {
	again := *p
	p.resendQueued = true
	if again.resendBy == 0 {
		again.resendBy = resendBy(s.now, order.DefaultHold, time.Duration(s.out.t.maxRTT.Load()))
	}
	s.resends.push(again)
}

// dropLateResends does what Tunnel.dropLateResends does.
func (s *simNet) dropLateResends() {
	for s.resends.len() > 0 && s.now > s.resends.at(0).resendBy {
		s.resends.drop(1)
		s.lateResends++
	}
}

// setPlugged plugs or unplugs a link, notifies this end, and schedules the opposite.
func (s *simNet) setPlugged(id int, up bool) {
	s.at(s.now+s.links[id].unplugTime, func() { s.setPlugged(id, !up) })
	for _, l := range []*simLink{s.links[id], s.reverse.links[id]} {
		l.dead, l.idleAt = !up, s.now
		l.generation++
	}
	s.sender.SetUp(id, up)
	if !up {
		s.resendUnacked(1 << id)
	}
}

// resendUnacked does what Tunnel.resendUnacked does.
func (s *simNet) resendUnacked(died uint64) {
	for _, id := range sched.PathIDs(died) {
		kept := &s.paths[id].unacked
		if kept.len() > 0 {
			s.out.t.pathLostAt = s.now
		}
		for ; kept.len() > 0; kept.drop(1) {
			if p := kept.at(0); !p.resendQueued && !s.sender.RepairStopped(id) {
				s.queueResend(p)
			}
		}
	}
}

// tick does what outbound.tick does.
func (s *simNet) tick() {
	s.tickedAt = s.now
	s.out.setCoDel()
	s.out.anchored = s.sender.Anchored()
	s.out.rate, s.out.spread = s.sender.Rate(), s.sender.Spread()
	s.check()
	doubt, live := s.sender.AckOverdue(s.now), s.sender.LiveSet()
	if live != s.announcedLive && s.resends.len() == 0 {
		s.announcedLive, s.announcements = live, announceTimes
	}
	for id, p := range s.paths {
		sp := s.sender.Path(id)
		every := probeInterval(sp, doubt, s.now-s.out.sentAt < probeIdle)
		turned := p.carriedData && s.now-p.lastDataAt >= idleAfter
		if s.now-p.probedAt < every && !turned && s.announcements == 0 {
			continue
		}
		if turned {
			p.carriedData = false
		}
		for range probeBurst(sp.LossUnknown(), sp.TransmitTime(burstProbeBytes)) {
			s.probe(id, sp.Live() && !p.carriedData)
		}
	}
	s.announcements = max(s.announcements-1, 0)
}

// probe sends a mark and asks for an echo.
func (s *simNet) probe(id int, idle bool) {
	const size = 120
	path, sent := s.paths[id], s.now
	path.probedAt = s.now
	every := max(s.reverse.in.reporter.every, reportEvery) // announced to the other end
	shim := wire.Shim{Kind: wire.Probe, Path: uint8(id), Seq: s.nextSeq, Time: uint32(s.now / time.Microsecond)}
	shim.PathSeq = uint32(s.sender.Path(id).Sent(s.now, 1, size))
	mark := wire.Mark{NextSeq: s.nextSeq, Idle: idle, LivePaths: s.announcedLive}
	path.link.send(s.simClock, s.rng, size, func() {
		s.recordArrival(&shim, size)
		s.in.handleMark(id, mark)
		s.reverse.sender.SetReportInterval(every)
		s.reverse.links[id].send(s.simClock, s.rng, size, func() {
			s.sender.Path(id).AddRTT(s.now - sent)
			s.out.t.maxRTT.Store(int64(s.sender.MaxRTT()))
		})
	})
}

// recordArrival records a packet at the receiver.
func (s *simNet) recordArrival(shim *wire.Shim, size int) {
	s.in.recordArrival(s.now, int(shim.Path), shim, uint32(s.farTime(s.now)/time.Microsecond), size)
}

// farTime returns the time on the receiver's clock.
func (s *simNet) farTime(now time.Duration) time.Duration {
	return now + time.Duration(float64(now)*s.slew)
}

// simArrival is a packet on a link.
type simArrival struct {
	s          *simNet
	shim       wire.Shim
	size, slot int
}

// simPieceBytes is the length of what stands for a packet in order.Buffer: its sequence
// number and its index in simNet.inFlight.
const simPieceBytes = 8

// receive receives a packet from its link.
func (a simArrival) receive() {
	s := a.s
	s.recordArrival(&a.shim, a.size)
	if s.links[a.shim.Path].arriving {
		if p := &s.inFlight[a.slot]; p.seq == a.shim.Seq && !p.marked {
			s.in.paths[a.shim.Path].countMark(ecnCE, simECT[:])
			p.marked = true
		}
	}
	binary.BigEndian.PutUint32(s.piece[:], a.shim.Seq)
	binary.BigEndian.PutUint32(s.piece[4:], uint32(a.slot))
	s.in.buf.Data(s.now, &order.Arrival{Path: int(a.shim.Path), Seq: a.shim.Seq, FlowDistance: a.shim.FlowDistance, Resent: a.shim.Kind == wire.Resend, Packet: order.Packet{Data: s.piece[:]}})
}

// recordPadding records a packet that is not delivered.
func (a simArrival) recordPadding() { a.s.recordArrival(&a.shim, a.size) }

// report sends a report that is due, as inbound.sendReport does.
func (s *simNet) report() {
	rp := &s.in.reporter
	if rp.due == 0 || s.now < rp.due {
		return
	}
	if rp.postpone(s.now, s.reverse.sender.ReportAt(s.now, rp.last)) {
		return
	}
	s.in.t.stats.reports.Add(1)
	for i := range s.links {
		s.in.checkedUntil[i], s.in.hasSocket[i] = s.farTime(s.now), true
	}
	s.in.updateDelays()
	s.in.buildReports(s.now, func(_ time.Duration, b []byte) {
		b = bytes.Clone(b)
		for _, id := range sched.PathIDs(s.reverse.sender.ReportPaths(s.now, len(b)+reportOuter)) {
			s.sendReport(id, b)
		}
	})
}

func (s *simNet) sendReport(id int, b []byte) {
	s.reverse.reportBytes[id] += len(b) + reportOuter
	s.reverse.links[id].send(s.simClock, s.rng, len(b)+reportOuter, func() { s.handleReport(b) })
}

// handleReport processes a report.
func (s *simNet) handleReport(b []byte) {
	for b = b[wire.HeaderBytes:]; len(b) > 0; {
		kind, value, rest, _ := wire.Next(b)
		b = rest
		var m wire.Missing
		var r wire.Report
		switch {
		case kind == wire.TypeMissing && wire.ParseMissing(value, &m) == nil:
			kept := &s.paths[m.Path].unacked
			for i := s.unackedFrom(m.Path, m.First); i < kept.len() && kept.at(i).shim.PathSeq-m.First < uint32(m.Count); i++ {
				if p := kept.at(i); !p.resendQueued && !s.sender.RepairStopped(int(m.Path)) {
					s.queueResend(p)
				}
			}
		case kind == wire.TypeReport && wire.ParseReport(value, &r) == nil:
			s.sender.Path(int(r.Path)).Report(s.now, r.Report)
			s.paths[r.Path].unacked.drop(s.unackedFrom(r.Path, r.HighestSeq+1))
			s.check()
		}
	}
}

// unackedFrom returns the index of the first unacknowledged packet of a path from a
// number on.
func (s *simNet) unackedFrom(path uint8, seq uint32) int {
	kept := &s.paths[path].unacked
	return sort.Search(kept.len(), func(i int) bool { return int32(kept.at(i).shim.PathSeq-seq) >= 0 })
}

// run lets time pass.
func (s *simNet) run(d time.Duration) {
	s.advance(d, func() {
		s.step()
		s.reverse.step()
	})
}

func (s *simNet) step() {
	s.in.buf.Settle(s.now)
	s.in.buf.Recycle()
	s.report()
	if s.now < s.haltedUntil {
		return
	}
	s.out.checkLate(s.now)
	s.out.wakeBy = s.now + maxNap
	if s.now-s.tickedAt >= tickEvery {
		s.tick()
	}
	s.sendQueued()
	s.pad()
}

// rate returns the delivery rate in the next d, in bytes/s.
func (s *simNet) rate(d time.Duration) float64 {
	before := s.deliveredBytes
	s.run(d)
	return float64(s.deliveredBytes-before) / d.Seconds()
}

func (s *simNet) sum() float64 {
	sum := 0.0
	for _, l := range s.links {
		sum += l.rate
	}
	return sum
}
