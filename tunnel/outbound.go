package tunnel

import (
	"fmt"
	"os"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// outbound moves packets from the device to the paths, in one thread.
type outbound struct {
	t           *Tunnel
	queue       queue[*entry] // read and not sent yet
	queueTarget time.Duration // queueing delay that CoDel tolerates
	interval    time.Duration // how long CoDel tolerates a longer one
	flows       flowTable
	anchored    uint64          // sched.Sender.Anchored
	lastOfFlow  [1 << 12]uint32 // by hash of the flow, connection sequence number after its last packet; 0: none
	nextSeq     uint32          // connection sequence number of the next packet

	supply   supply
	entries  []*entry // scratch space of enqueueRead
	copies   copies
	innerMTU int // size of the largest inner packet that all paths carry

	batch          *batch        // the run being prepared
	stalled        []*batch      // runs whose sockets are full
	spare          []*batch      // batches for reuse
	polls          []unix.PollFd // for wait
	tickedAt       time.Duration // when tick last ran
	load           load          // how much data is being sent
	sentAt         time.Duration // when a path last took data
	announcedLive  uint64        // set of live paths, as last announced to the peer
	announcements  int           // how many more times to announce it on all paths
	sessionChanged bool          // a new session has begun and startSession has not run yet
	rate           float64       // sum over the paths in use, bytes/s
	spread         time.Duration // sched.Sender.Spread

	limited    time.Duration // how long packets have waited for a path to have room
	wakeBy     time.Duration // latest time at which the thread should run again
	graceUntil time.Duration // CoDel drops nothing until then, because the thread could not run
}

const (
	// maxReadAhead is how many bytes are read before the paths have room. The device's
	// own queue is for times in which nobody reads: how long packets have waited in it is
	// unknown.
	maxReadAhead = 32 << 20
	// minQueueBytes, or what all paths carry in queueTime, may wait without limit. Of a
	// longer queue, packets that have waited too long are dropped. Senders that react to
	// CoDel keep the queue shorter.
	minQueueBytes = 512 << 10
	queueTime     = 60 * time.Millisecond
	tickEvery     = 5 * time.Millisecond

	minQueueTarget = 3 * time.Millisecond // queueing delay tolerated in front of paths with short round trips
	maxQueueTarget = 25 * time.Millisecond
	// A queue of cachedQueue bytes stays in a processor's cache until it is sent, so on paths
	// that carry it sooner than in minQueueTarget the delay is shorter, to minFastTarget.
	cachedQueue   = 512 << 10
	minFastTarget = 300 * time.Microsecond

	minDropInterval = 50 * time.Millisecond // how long a longer queue is tolerated
	// maxNap is the longest wait while packets are queued.
	maxNap = time.Millisecond
)

func newOutbound(t *Tunnel) *outbound {
	return &outbound{t: t, innerMTU: 1 << 16, batch: newBatch()}
}

// loop reads, sends and waits until the Tunnel is closed.
func (o *outbound) loop() error {
	var b yielder
	for !o.t.closed.Load() {
		began := o.t.now()
		b.yield(began)
		o.checkLate(began)
		if err := o.read(began); err != nil {
			return err
		}
		now := o.t.now()
		o.flush(now)
		for o.preparePadding(o.t.now()) {
			o.dispatch()
		}
		if now-o.tickedAt >= tickEvery {
			o.tickedAt = now
			o.setCoDel()
			o.t.stats.queued.Store(int64(o.queue.bytes()))
			o.tick(now)
		}
		o.wakeBy = began + o.wait()
	}
	return nil
}

// A thread that runs lateThreshold later than planned had no processor, or was stopped.
// CoDel drops nothing for lateGraceFactor times the delay: the paths need a while to
// carry what has come in the meantime.
const (
	lateThreshold   = 20 * time.Millisecond
	lateGraceFactor = 8
)

// checkLate starts a grace period if the thread runs late.
func (o *outbound) checkLate(now time.Duration) {
	if by := now - o.wakeBy; o.wakeBy > 0 && by > lateThreshold {
		o.graceUntil = now + min(lateGraceFactor*by, maxRecovery)
	}
}

// setCoDel sets how long packets may wait. A sender that halves its window after a drop
// keeps the paths full only if the queue held as much. So the target follows the longest
// round trip, unless Config.Queue sets it. Where that is short, it is what the paths carry of
// cachedQueue. Where the delays of paths differ, the target is longer by the difference:
// longer paths are used for packets that have waited that long.
func (o *outbound) setCoDel() {
	rtt := time.Duration(o.t.maxRTT.Load())
	o.queueTarget = time.Duration(o.t.queue.Load())
	if o.queueTarget == 0 {
		least := min(max(time.Duration(cachedQueue/max(o.rate, 1)*1e9), minFastTarget), minQueueTarget)
		o.queueTarget = min(max(least, rtt/4), maxQueueTarget) + o.spread
	}
	o.interval = max(minDropInterval, 3*rtt)
}

// read reads from the device as long as there is room in the queue.
func (o *outbound) read(now time.Duration) error {
	o.stock() // fills the supply with memory that has just been freed and is still in the cache
	for o.queue.bytes() < maxReadAhead {
		n, errno := sys.ReadNow(o.t.cfg.Device, o.readBuffer())
		switch errno {
		case 0:
		case unix.EAGAIN, unix.EINTR:
			return nil
		case unix.EIO: // the device is down
			return nil
		default:
			return fmt.Errorf("read from the tunnel's device: %w", os.NewSyscallError("read", errno))
		}
		o.enqueueRead(now, n)
		if o.queue.bytes() > 256<<10 {
			o.flush(o.t.now()) // send what the paths have room for while it is still in the cache
		}
	}
	return nil
}

// readBuffer returns where to read the next packet to. It takes the lock at most once in
// many packets.
func (o *outbound) readBuffer() []byte {
	if o.supply.empty() {
		o.stock()
	}
	return o.supply.buffer()
}

func (o *outbound) stock() {
	o.t.mu.Lock()
	defer o.t.mu.Unlock()
	o.t.arena.refill(&o.supply)
}

// maxQueuedBytes returns how many bytes may wait without limit.
func (o *outbound) maxQueuedBytes() int {
	return max(minQueueBytes, min(maxReadAhead, int(o.rate*(queueTime+2*o.spread).Seconds())))
}

// enqueueRead adds what was read to the queue.
func (o *outbound) enqueueRead(now time.Duration, n int) {
	e := o.supply.newEntry(n)
	if e == nil {
		o.t.stats.invalid.Add(1)
		return
	}
	o.entries = o.fit(e, o.entries[:0])
	for _, e := range o.entries {
		o.enqueue(now, e)
	}
}

func (o *outbound) enqueue(now time.Duration, e *entry) {
	e.readAt = now
	e.classify(e.pkt)
	e.paths = o.flows.add(now, e.flow, e.count, e.opens, time.Duration(o.t.maxRTT.Load()), o.anchored)
	o.t.stats.read.Add(uint64(e.count))
	o.t.stats.readBytes.Add(uint64(len(e.pkt)))
	o.queue.add(e)
}

// flush sends as much as the paths have room for.
func (o *outbound) flush(now time.Duration) {
	o.resume()
	for o.prepareRun(now) {
		o.dispatch()
		now = o.t.now()
	}
}

// prepareRun prepares one run: packets for one path. It reports whether there is one.
func (o *outbound) prepareRun(now time.Duration) bool {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expireKeys(now); !t.session.up {
		o.dropUnsendable(now)
		return false
	}
	if o.sessionChanged {
		o.startSession()
	}
	if t.dropLateResends(now); t.resends.len() > 0 {
		return o.prepareResend(now)
	}
	if o.copies.pending != 0 {
		return o.prepareCopy(now, nil)
	}
	o.refuseTooBig()
	for _, l := range o.queue.lanes() {
		if o.prepareLane(now, l) {
			return true
		}
	}
	return false
}

// prepareLane prepares one run of a lane's packets. It reports whether there is one. It is
// called with mu held.
func (o *outbound) prepareLane(now time.Duration, l *lane[*entry]) bool {
	t := o.t
	for !l.empty() {
		e := l.first()
		if o.shouldDrop(now, now-e.readAt, &l.backlog) && !o.markCongestion(e) {
			t.stats.queueDrops.Add(1)
			o.skipPacket(l)
			continue
		}
		o.describe(now, l)
		if t.sender.Mode == sched.Duplicate && !t.session.compat {
			return o.prepareCopy(now, l)
		}
		if t.session.compat && !e.completeChecksum() {
			o.popEntry(l)
			continue
		}
		sp, room := t.sender.Pick(now, e.flow, e.split.Bytes(e.next)+wire.HeaderBytes)
		if sp == nil {
			return false
		}
		if sp.SocketFull { // the flow's only path
			t.stats.queueDrops.Add(1)
			o.skipPacket(l)
			continue
		}
		o.gather(now, l, sp, room)
		return true
	}
	return false
}

// describe sets the Sender's fields to what waits at the head of a lane. It is called with mu held.
func (o *outbound) describe(now time.Duration, l *lane[*entry]) {
	e, s := l.first(), &o.t.sender
	s.HeadWait, s.FlowPaths = now-e.readAt, e.paths
	s.BulkWaits = l == &o.queue.sparse && !o.queue.bulk.empty()
}

// After a path was lost, CoDel drops nothing for minRecovery, in which the rates of the
// other paths are measured again. That is extended up to maxRecovery until the queue is
// back at its target: what the dead path had not delivered, and all that came since, has
// to go over the other paths first.
const (
	minRecovery = 200 * time.Millisecond
	maxRecovery = time.Second
)

// shouldDrop reports whether to drop or mark the packet at the head of a lane, which has
// waited for the given time. It is called with mu held.
func (o *outbound) shouldDrop(now, waited time.Duration, b *backlog) bool {
	if since := o.t.pathLostAt; since > b.recoveredOf {
		if past := now - since; past < minRecovery || past < maxRecovery && waited > o.queueTarget {
			b.codel.Reset()
			return false
		}
		b.recoveredOf = since
	}
	if now < o.graceUntil && waited > o.queueTarget {
		b.codel.Reset()
		return false
	}
	b.codel.Target, b.codel.Interval = o.queueTarget, o.interval
	return b.codel.Drop(now, waited, b.bytes) || waited > o.maxWait() && b.bytes > o.maxQueuedBytes()
}

// maxWait returns how long packets may wait if CoDel does not drop them: the target, and
// time for a sender to notice CoDel's drops and react.
func (o *outbound) maxWait() time.Duration {
	return o.queueTarget + 2*(o.interval+o.spread) + 100*time.Millisecond
}

// startSession restarts sequence numbers at 0. It is called with mu held.
func (o *outbound) startSession() {
	o.sessionChanged, o.nextSeq, o.announcedLive = false, 0, 0
	clear(o.lastOfFlow[:])
	for _, pc := range o.copies.pieces { // their sequence numbers belong to the last session
		o.t.arena.release(pc.e)
	}
	o.copies = copies{pieces: o.copies.pieces[:0]}
}

// markCongestion marks the packet instead of dropping it, if its sender supports ECN (RFC
// 3168). All remaining segments of a super-packet are marked: they belong to one round
// trip.
func (o *outbound) markCongestion(e *entry) bool {
	if e.tos&3 == 0 || !markCE(e.pkt) {
		return false
	}
	e.tos |= ecnCE
	o.t.stats.queueMarks.Add(1)
	return true
}

// noPeerPatience is how long packets wait while there is no peer: often the first packet
// of a connection is what starts the peer.
const noPeerPatience = time.Second

// dropUnsendable drops packets that have waited too long, or are too many, while there is
// no session.
func (o *outbound) dropUnsendable(now time.Duration) {
	for l := o.queue.oldest(); l != nil && (now-l.first().readAt > noPeerPatience || o.queue.bytes() > o.maxQueuedBytes()); l = o.queue.oldest() {
		o.dropEntry(l)
	}
}

// dropEntry drops the first entry of a lane.
func (o *outbound) dropEntry(l *lane[*entry]) {
	for e := l.first(); !l.empty() && l.first() == e; {
		o.t.stats.queueDrops.Add(1)
		o.skipPacket(l)
	}
}

// skipPacket passes over the next packet of a lane's first entry.
func (o *outbound) skipPacket(l *lane[*entry]) {
	e := l.first()
	l.bytes -= e.split.Bytes(e.next)
	if e.next++; e.next == e.count {
		o.popEntry(l)
	}
}

// popEntry removes the first entry of a lane.
func (o *outbound) popEntry(l *lane[*entry]) {
	e := l.first()
	o.queue.pop(l)
	o.t.arena.release(e)
}

// gather moves packets of up to room bytes from a lane into a run for a path. It is called
// with mu held.
func (o *outbound) gather(now time.Duration, l *lane[*entry], sp *sched.Path, room int) {
	p := o.t.paths[sp.ID]
	o.batch.begin(o.t, p)
	for paths := l.first().paths; !l.empty() && room > 0; {
		e := l.first()
		if e.paths != paths {
			break // its flow fills other paths first
		}
		if o.batch.compat && !e.completeChecksum() {
			break
		}
		n := o.batch.addNew(l, o, &room)
		if n == 0 {
			break
		}
		if e.next == e.count {
			o.popEntry(l)
		}
	}
	o.queue.sent(l, o.batch.bytes+p.outerBytes()*o.batch.packets)
	o.load.add(now, o.batch.packets)
	o.batch.commit(o.t, sp, now)
	p.carriedData, p.lastDataAt, o.sentAt = true, now, now
}

// assignSeqs assigns sequence numbers to the entry's next n packets.
func (o *outbound) assignSeqs(e *entry, n int) (seq uint32, flowDistance uint16) {
	last := &o.lastOfFlow[e.flow%uint32(len(o.lastOfFlow))]
	if *last != 0 && o.nextSeq-*last < 1<<16-1 {
		flowDistance = uint16(o.nextSeq - *last + 1)
	}
	seq = o.nextSeq
	o.nextSeq += uint32(n)
	*last = o.nextSeq
	return seq, flowDistance
}

// prepareResend prepares a run of packets that are sent again. It is called with mu held.
func (o *outbound) prepareResend(now time.Duration) bool {
	t := o.t
	pc := t.resends.first()
	size := pc.e.split.Bytes(pc.first) + wire.HeaderBytes
	t.sender.ResendBytes = t.resends.packets * size
	sp, room := t.sender.PickResend(now, pc.e.flow, size)
	if sp == nil {
		return false
	}
	if sp.SocketFull { // the flow's only path
		t.stats.queueDrops.Add(uint64(pc.n))
		t.arena.release(pc.e)
		t.resends.drop()
		return t.resends.len() > 0 && o.prepareResend(now)
	}
	o.batch.begin(t, t.paths[sp.ID])
	o.batch.resend = true
	for t.resends.len() > 0 && room > 0 && o.batch.addResend(t, t.resends.first(), &room) {
		if pc := t.resends.first(); pc.n == 0 {
			t.arena.release(pc.e)
			t.resends.drop()
			t.dropLateResends(now)
		}
	}
	t.resends.packets -= o.batch.packets
	t.stats.resent.Add(uint64(o.batch.packets))
	o.batch.commit(t, sp, now)
	return true
}

// measuring reports whether a path is being measured with padding. It is called with mu
// held.
func (o *outbound) measuring(now time.Duration) bool {
	for _, sp := range o.t.sender.Paths() {
		if sp.Measuring(now) {
			return o.t.session.up && !o.t.session.compat
		}
	}
	return false
}

// wait sleeps until there is something to do. It returns the longest time that it would
// have slept.
func (o *outbound) wait() time.Duration {
	limit, pending := o.sleepTime()
	o.polls = append(o.polls[:0], unix.PollFd{Fd: int32(o.t.wakeOut), Events: unix.POLLIN})
	for _, b := range o.stalled {
		o.polls = append(o.polls, unix.PollFd{Fd: int32(b.fd), Events: unix.POLLOUT})
	}
	// While packets are queued, new ones can wait. With too many in the queue nothing is
	// read, so the device must not end the wait.
	if !pending && o.queue.bytes() < maxReadAhead {
		o.polls = append(o.polls, unix.PollFd{Fd: int32(o.t.cfg.Device), Events: unix.POLLIN})
	}
	ts := unix.NsecToTimespec(int64(limit))
	began := o.t.now()
	if _, err := unix.Ppoll(o.polls, &ts, nil); err == nil && o.polls[0].Revents != 0 {
		var buf [8]byte
		_, _ = sys.ReadNow(o.t.wakeOut, buf[:])
	}
	if pending {
		o.limited += o.t.now() - began
	}
	return limit
}

// sleepTime returns how long the thread may sleep, and whether packets wait for a path.
func (o *outbound) sleepTime() (limit time.Duration, pending bool) {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	switch pending = t.session.up && (o.queue.waiting() || t.resends.len() > 0); {
	case pending:
		return max(min(o.roomAt(now)-now, maxNap), 50*time.Microsecond), true
	case o.measuring(now):
		return maxNap, false
	case o.isIdle(now) && t.direct.active(now):
		return probeDirect, false
	case o.isIdle(now):
		return 100 * time.Millisecond, false
	}
	return tickEvery, false
}

// roomAt returns when a path will have room for what waits. It is called with mu held.
func (o *outbound) roomAt(now time.Duration) time.Duration {
	at := now + maxNap
	for _, l := range o.queue.lanes() {
		flow := uint32(0)
		if !l.empty() {
			o.describe(now, l)
			flow = l.first().flow
		}
		at = min(at, o.t.sender.RoomAt(now, flow))
	}
	return at
}
