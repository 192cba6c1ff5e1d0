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

// outbound is the direction from the device to the paths: one thread.
type outbound struct {
	t     *Tunnel
	queue []*entry // what has been read and not been sent, from head on
	head  int
	bytes int // in the queue
	codel sched.CoDel
	flows [1 << 12]uint32 // number behind the last packet of each flow, by hash; 0: none
	seq   uint32          // of the next packet

	supply supply
	fitted []*entry
	copies copies
	limit  int // of packets, bytes

	run     *batch
	stalled []*batch      // runs whose sockets are full
	spare   []*batch      // for others
	polls   []unix.PollFd // of wait
	ticked  time.Duration
	load    load          // of data
	sent    time.Duration // when a path last took something
	live    uint64        // what the peer has been told
	tell    int           // so often all paths have to be told yet
	renew   bool          // a new life has begun
	rate    float64       // of all paths, bytes/s
	spread  time.Duration // sched.Sender.Spread

	due    time.Duration // when the thread should run again at the latest
	spared time.Duration // until when CoDel leaves be what came while it could not run
}

const (
	// queueMost is how many bytes are read before the paths have room. The device's own queue
	// is for times in which nobody reads: how long something has waited there isn't known.
	queueMost = 32 << 20
	// queueLeast bytes, or what all paths take in queueTime, may wait for as long as they have
	// to. Of more than that, what is overdue is dropped: senders that heed CoDel keep it
	// shorter.
	queueLeast = 512 << 10
	queueTime  = 60 * time.Millisecond
	tickEvery  = 5 * time.Millisecond

	queueShort   = 3 * time.Millisecond // may stand before paths with short round trips
	queueLong    = 25 * time.Millisecond
	dropInterval = 50 * time.Millisecond // for which more may stand
	// napTime is the longest wait with packets in the queue.
	napTime = time.Millisecond
)

func newOutbound(t *Tunnel) *outbound {
	return &outbound{t: t, limit: 1 << 16, run: newBatch()}
}

func (o *outbound) waiting() bool { return o.head < len(o.queue) }

// loop reads, sends and waits until the Tunnel is closed.
func (o *outbound) loop() error {
	var b breather
	for !o.t.closed.Load() {
		began := o.t.now()
		b.breathe(began)
		o.late(began)
		if err := o.read(began); err != nil {
			return err
		}
		now := o.t.now()
		o.flush(now)
		o.pad(o.t.now())
		if now-o.ticked >= tickEvery {
			o.ticked = now
			o.control()
			o.t.stats.queued.Store(int64(o.bytes))
			o.tick(now)
		}
		o.due = began + o.wait()
	}
	return nil
}

// A thread that runs lateLeast later than it meant to had no processor, or was stopped. What came
// meanwhile is spared for lateSpare times as long: the paths need a while to carry it.
const (
	lateLeast = 20 * time.Millisecond
	lateSpare = 8
)

// late sees whether the thread runs late.
func (o *outbound) late(now time.Duration) {
	if by := now - o.due; o.due > 0 && by > lateLeast {
		o.spared = now + min(lateSpare*by, recoverMost)
	}
}

// control sets how long packets may wait. A sender that halves or thirds its window at a
// drop keeps the paths full only if what waited was as much; so the queue goes by the
// slowest path's round trip, unless Config.Queue says otherwise. Where paths differ in delay
// the queue is longer by that: what waits is what longer paths are used for.
func (o *outbound) control() {
	rtt := time.Duration(o.t.slowest.Load())
	o.codel.Target = time.Duration(o.t.queue.Load())
	if o.codel.Target == 0 {
		o.codel.Target = min(max(queueShort, rtt/4), queueLong) + o.spread
	}
	o.codel.Interval = max(dropInterval, 3*rtt)
}

// read takes what the device has, as far as there is room for it.
func (o *outbound) read(now time.Duration) error {
	o.stock() // memory that has become free is in the cache
	for o.bytes < queueMost {
		n, errno := sys.ReadNow(o.t.cfg.Device, o.buffer())
		switch errno {
		case 0:
		case unix.EAGAIN, unix.EINTR:
			return nil
		case unix.EIO: // the device is down at present
			return nil
		default:
			return fmt.Errorf("read from the tunnel's device: %w", os.NewSyscallError("read", errno))
		}
		o.take(now, n)
		if o.bytes > 256<<10 {
			o.flush(o.t.now()) // what there is room for goes out while it is still in the cache
		}
	}
	return nil
}

// buffer is where the next packet is read to. There is a lock to be taken for one packet
// in many at most.
func (o *outbound) buffer() []byte {
	if o.supply.empty() {
		o.stock()
	}
	return o.supply.buffer()
}

func (o *outbound) stock() {
	o.t.mu.Lock()
	defer o.t.mu.Unlock()
	o.t.arena.stock(&o.supply)
}

// most is the number of bytes that may wait for as long as they have to.
func (o *outbound) most() int {
	return max(queueLeast, min(queueMost, int(o.rate*(queueTime+2*o.spread).Seconds())))
}

// take puts what was read into the queue.
func (o *outbound) take(now time.Duration, n int) {
	e := o.supply.take(n)
	if e == nil {
		o.t.stats.strange.Add(1)
		return
	}
	o.fitted = o.fit(e, o.fitted[:0])
	for _, e := range o.fitted {
		o.enqueue(now, e)
	}
}

func (o *outbound) enqueue(now time.Duration, e *entry) {
	e.came = now
	e.look(e.pkt)
	o.t.stats.read.Add(uint64(e.count))
	o.t.stats.readBytes.Add(uint64(len(e.pkt)))
	for i := range e.count {
		o.bytes += e.split.Bytes(i)
	}
	if o.head > 1024 && o.head*2 > len(o.queue) {
		o.queue = o.queue[:copy(o.queue, o.queue[o.head:])]
		o.head = 0
	}
	o.queue = append(o.queue, e)
}

// flush sends as much as the paths have room for.
func (o *outbound) flush(now time.Duration) {
	o.resume()
	for o.fill(now) {
		o.dispatch()
		now = o.t.now()
	}
}

// fill prepares one run: packets for one path. It tells whether there are any.
func (o *outbound) fill(now time.Duration) bool {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expire(now); !t.sess.up {
		o.discard(now)
		return false
	}
	if o.renew {
		o.renewed()
	}
	if t.again.len() > 0 {
		return o.refill(now)
	}
	if o.copies.to != 0 {
		return o.duplicate(now)
	}
	o.unfit()
	for o.waiting() {
		e := o.queue[o.head]
		if o.tooLong(now, now-e.came) && !o.mark(e) {
			t.stats.queueDrops.Add(1)
			o.skip(e)
			continue
		}
		if t.send.Mode == sched.Duplicate && !t.sess.compat {
			return o.duplicate(now)
		}
		if t.sess.compat && !e.whole() {
			o.pop(e)
			continue
		}
		t.send.Waited = now - e.came
		sp, room := t.send.Pick(now, e.flow, e.split.Bytes(e.next)+wire.HeaderBytes)
		if sp == nil {
			return false
		}
		if sp.Full { // the flow's only path
			t.stats.queueDrops.Add(1)
			o.skip(e)
			continue
		}
		o.gather(now, sp, room)
		return true
	}
	return false
}

// What waits because a path was lost is spared for recoverLeast, in which the others' rates
// are found anew, and longer, up to recoverMost, until it has gone: what the path had not
// delivered, and all that came meanwhile, has to go over the others first.
const (
	recoverLeast = 200 * time.Millisecond
	recoverMost  = time.Second
)

// tooLong tells whether to drop or mark the packet at the queue's head, which has waited for a
// time. The lock is held.
func (o *outbound) tooLong(now, waited time.Duration) bool {
	if since := o.t.lost; since > 0 {
		if past := now - since; past < recoverLeast || past < recoverMost && waited > o.codel.Target {
			o.codel.Forgive()
			return false
		}
		o.t.lost = 0
	}
	if now < o.spared && waited > o.codel.Target {
		o.codel.Forgive()
		return false
	}
	return o.codel.Drop(now, waited, o.bytes) || waited > o.overdue() && o.bytes > o.most()
}

// overdue is how long packets wait at least that are dropped without CoDel: what they may, and
// time enough for a sender to see what CoDel drops, and to heed it.
func (o *outbound) overdue() time.Duration {
	return o.codel.Target + 2*(o.codel.Interval+o.spread) + 100*time.Millisecond
}

// renewed begins to count from 0 again. The lock is held.
func (o *outbound) renewed() {
	o.renew, o.seq, o.live = false, 0, 0
	clear(o.flows[:])
	for _, pc := range o.copies.pieces { // they have numbers of the old life
		o.t.arena.release(pc.e)
	}
	o.copies = copies{pieces: o.copies.pieces[:0]}
}

// mark tells the sender of congestion without dropping, where it knows of ECN (RFC 3168).
// All segments that are left of a super-packet are marked: they are one round trip's.
func (o *outbound) mark(e *entry) bool {
	if e.tos&3 == 0 || !markCE(e.pkt) {
		return false
	}
	e.tos |= ecnCE
	o.t.stats.queueMarks.Add(1)
	return true
}

// patience is how long packets wait for a peer that is not there: the first of a connection
// often makes the tunnel's end begin.
const patience = time.Second

// discard drops what has waited for too long, or is too much, while there is nobody to send to.
func (o *outbound) discard(now time.Duration) {
	for o.waiting() && (now-o.queue[o.head].came > patience || o.bytes > o.most()) {
		o.drop(o.queue[o.head])
	}
}

func (o *outbound) drop(e *entry) {
	for o.waiting() && o.queue[o.head] == e {
		o.t.stats.queueDrops.Add(1)
		o.skip(e)
	}
}

// skip passes over the entry's next packet.
func (o *outbound) skip(e *entry) {
	o.bytes -= e.split.Bytes(e.next)
	if e.next++; e.next == e.count {
		o.pop(e)
	}
}

func (o *outbound) pop(e *entry) {
	o.queue[o.head] = nil
	if o.head++; o.head == len(o.queue) {
		o.queue, o.head, o.bytes = o.queue[:0], 0, 0
	}
	o.t.arena.release(e)
}

// gather takes packets of up to room bytes off the queue for a path. The lock is
// held.
func (o *outbound) gather(now time.Duration, sp *sched.Path, room int) {
	p := o.t.paths[sp.ID]
	o.run.begin(o.t, p)
	for o.waiting() && room > 0 {
		e := o.queue[o.head]
		if o.run.compat && !e.whole() {
			break
		}
		n := o.run.take(e, o, &room)
		if n == 0 {
			break
		}
		if e.next == e.count {
			o.pop(e)
		}
	}
	o.load.add(now, o.run.count)
	o.run.commit(o.t, sp, now)
	p.data, p.last, o.sent = true, now, now
}

// number gives the entry's next n packets their numbers.
func (o *outbound) number(e *entry, n int) (seq uint32, before uint16) {
	last := &o.flows[e.flow%uint32(len(o.flows))]
	if *last != 0 && o.seq-*last < 1<<16-1 {
		before = uint16(o.seq - *last + 1)
	}
	seq = o.seq
	o.seq += uint32(n)
	*last = o.seq
	return seq, before
}

// refill prepares packets that are to be sent again. The lock is held.
func (o *outbound) refill(now time.Duration) bool {
	t := o.t
	pc := t.again.first()
	sp, room := t.send.PickAgain(now, pc.e.flow, pc.e.split.Bytes(pc.first)+wire.HeaderBytes)
	if sp == nil {
		return false
	}
	if sp.Full { // the flow's only path
		t.stats.queueDrops.Add(uint64(pc.n))
		t.arena.release(pc.e)
		t.again.drop()
		return t.again.len() > 0 && o.refill(now)
	}
	o.run.begin(t, t.paths[sp.ID])
	o.run.again = true
	for t.again.len() > 0 && room > 0 && o.run.retake(t, t.again.first(), &room) {
		if pc := t.again.first(); pc.n == 0 {
			t.arena.release(pc.e)
			t.again.drop()
		}
	}
	t.stats.resent.Add(uint64(o.run.count))
	o.run.commit(t, sp, now)
	return true
}

// cold tells whether a path is being measured. The lock is held.
func (o *outbound) cold(now time.Duration) bool {
	for _, sp := range o.t.send.Paths() {
		if sp.Measuring(now) {
			return o.t.sess.up && !o.t.sess.compat
		}
	}
	return false
}

// wait sleeps until there is something to do, and returns for how long at most.
func (o *outbound) wait() time.Duration {
	limit, pending := o.rest()
	o.polls = append(o.polls[:0], unix.PollFd{Fd: int32(o.t.wakeOut), Events: unix.POLLIN})
	for _, b := range o.stalled {
		o.polls = append(o.polls, unix.PollFd{Fd: int32(b.fd), Events: unix.POLLOUT})
	}
	// With packets in the queue what else comes can wait, too. With too many nothing is
	// read: that there is something must not end the wait.
	if !pending && o.bytes < queueMost {
		o.polls = append(o.polls, unix.PollFd{Fd: int32(o.t.cfg.Device), Events: unix.POLLIN})
	}
	ts := unix.NsecToTimespec(int64(limit))
	if _, err := unix.Ppoll(o.polls, &ts, nil); err == nil && o.polls[0].Revents != 0 {
		var buf [8]byte
		_, _ = sys.ReadNow(o.t.wakeOut, buf[:])
	}
	return limit
}

// rest returns for how long the thread may sleep, and whether packets wait for a path.
func (o *outbound) rest() (limit time.Duration, pending bool) {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	switch pending = t.sess.up && (o.waiting() || t.again.len() > 0); {
	case pending:
		return max(min(t.send.RoomAt(now)-now, napTime), 50*time.Microsecond), true
	case o.cold(now):
		return napTime, false
	case o.idle(now):
		return 100 * time.Millisecond, false
	}
	return tickEvery, false
}
