package tunnel

import (
	"encoding/binary"
	"math"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// received is what the peer's path has brought.
type received struct {
	known    bool
	via      int           // our path that it comes by
	straight time.Duration // when something last came by that
	came     time.Duration // when it last brought something
	report   sched.Report
	fresh    bool   // there is something to report
	packets  int    // since the last report
	last     uint32 // number of the connection behind which what the path brings next for the first time is
	missing  []wire.Missing
	told     []wire.Missing // in the last report: each is told twice, in case that is lost
	delay    float64        // least one-way delay lately, µs, offset included
	delayed  time.Duration
	lessened int32 // the same since then
	largest  int
	over     float64 // how much longer large packets took lately, at most, µs: they are longer on the way, and wait in its queue
}

// reporter knows when reports are due.
type reporter struct {
	due   time.Duration // 0: nothing to report
	last  time.Duration
	buf   []byte
	ready bool // at once
}

const (
	reportEvery   = 10 * time.Millisecond
	reportLeast   = time.Millisecond // between two
	reportPackets = 64
	maxMissing    = 64
	mostOver      = 100e3           // µs: no longer than order.Buffer remembers
	reportedFor   = 2 * time.Second // after a path has brought something
	delayEvery    = 500 * time.Millisecond
)

// arrived enters a packet into its path's books.
func (in *inbound) arrived(now time.Duration, via int, s *wire.Shim, at uint32, size int) {
	r := &in.paths[s.Path]
	delay := int32(at - s.Time)
	if !r.known {
		*r = received{known: true, via: via, missing: r.missing[:0], told: r.told[:0], delay: math.Inf(1), lessened: delay, delayed: now}
		r.report = sched.Report{Highest: s.PathSeq - 1, Delay: math.MaxInt32}
		if s.PathSeq < 1<<16 { // the path is new: what is before counts
			r.report.Highest = ^uint32(0)
		}
		in.heard = append(in.heard, int(s.Path))
	}
	r.came = now
	r.follow(now, via)
	r.report.Packets++
	r.report.Bytes += uint32(size)
	ahead := int32(s.PathSeq - r.report.Highest)
	if ahead > 1 {
		in.hole(now, r, s, int(ahead-1))
	}
	if ahead > 0 {
		r.report.Highest, r.report.Arrived = s.PathSeq, at
		switch s.Kind {
		case wire.Data:
			r.last = s.Seq
		case wire.Probe:
			r.last = s.Seq - 1
		}
	}
	r.report.Delay = min(r.report.Delay, delay)
	r.lessened = min(r.lessened, delay)
	if now-r.delayed > delayEvery {
		r.delay, r.lessened, r.delayed = float64(r.lessened), math.MaxInt32, now
	} else {
		r.delay = min(r.delay, float64(delay))
	}
	r.exceed(float64(delay)-r.delay, size)
	r.fresh = true
	if r.packets++; r.packets >= reportPackets {
		in.report.ready = true
	}
	in.report.schedule(now)
}

// strayTime is for how long nothing has to come by the path of ours that a path of the
// peer's has come by for another to be believed. Whoever captures packets may hand them
// over at another socket, and what follows from them must not change because of that.
const strayTime = 2 * time.Second

// follow notes by which path of ours something has come.
func (r *received) follow(now time.Duration, via int) {
	if via != r.via && now-r.straight < strayTime {
		return
	}
	r.via, r.straight = via, now
}

// leave takes the path of ours out of use that the peer has taken out of use on its side:
// the one by which that comes. Where others come by that, too, nobody can say which the
// peer means, and the path's death will show. The lock is held.
func (in *inbound) leave(theirs int, now time.Duration) {
	r := &in.paths[theirs]
	if !r.known {
		return
	}
	for _, id := range in.heard {
		if o := &in.paths[id]; id != theirs && o.via == r.via && now-o.straight < strayTime {
			return
		}
	}
	in.t.leave(r.via)
}

// exceed notes by how much longer than the least a packet of size bytes took, µs. Small ones
// say nothing of those that are not, and are all that a path without traffic brings.
func (r *received) exceed(over float64, size int) {
	if r.largest = max(r.largest, size); size < r.largest/2 {
		return
	}
	if over = min(over, mostOver); over > r.over {
		r.over = over
	} else {
		r.over += (over - r.over) / 64
	}
}

// schedule sets when the next report is due.
func (rp *reporter) schedule(now time.Duration) {
	due := rp.last + reportEvery
	if rp.ready {
		due = rp.last + reportLeast
	}
	if rp.due == 0 || due < rp.due {
		rp.due = max(due, now)
	}
}

// hole notes packets that a path has passed over.
func (in *inbound) hole(now time.Duration, r *received, s *wire.Shim, n int) {
	in.t.stats.missing.Add(uint64(n))
	if len(r.missing) < maxMissing {
		r.missing = append(r.missing, wire.Missing{Path: s.Path, First: s.PathSeq - uint32(n), Count: uint16(min(n, math.MaxUint16))})
	}
	in.report.ready = true
	to := s.Seq
	if s.Kind == wire.Again { // an old number: the lost ones' may be any that are higher than the path's last
		to = r.last + 1<<15
	}
	in.buf.Hole(int(s.Path), r.last+1, to, now+in.t.repairTime())
}

// repairTime is how long the peer may take to send again what a path lost.
func (t *Tunnel) repairTime() time.Duration {
	return min(2*time.Duration(t.slowest.Load())+4*reportEvery, 150*time.Millisecond)
}

// reports sends reports that are due.
func (in *inbound) reports(now time.Duration) {
	rp := &in.report
	if rp.due == 0 || now < rp.due {
		return
	}
	rp.due, rp.last, rp.ready = 0, now, false
	in.compare()
	in.t.stats.reports.Add(1)
	in.collect(now, in.sendReport)
}

// mostReport is how long a report gets, bytes: it must fit every path.
const mostReport = 1100

// reportOuter is about the size of the headers in front of a report.
const reportOuter = 60

// collect puts all that is to be reported behind room for a packet's headers, and gives it
// to send, in as many packets as it takes. What is missing comes first: what a report
// acknowledges is not kept any longer.
func (in *inbound) collect(now time.Duration, send func(time.Duration, []byte)) {
	b := in.beginReport()
	for _, id := range in.heard {
		r := &in.paths[id]
		for _, list := range [...][]wire.Missing{r.told, r.missing} {
			for _, m := range list {
				b = wire.AppendMissing(in.passOn(now, b, send), m)
			}
		}
		r.missing, r.told = r.told[:0], r.missing
		if len(r.told) > 0 {
			in.report.schedule(now) // for the second time
		}
	}
	for _, id := range in.heard {
		r := &in.paths[id]
		// A path that brings nothing is reported, too: that somebody has looked is what its
		// death is told by.
		if r.fresh || now-r.came < reportedFor {
			r.report.AsOf = uint32(in.lookedAt(r.via, now) / time.Microsecond)
			b = wire.AppendReport(in.passOn(now, b, send), &wire.Report{Path: uint8(id), Report: r.report})
			r.fresh, r.packets, r.report.Delay = false, 0, math.MaxInt32
		}
	}
	in.report.buf = b
	send(now, b)
}

// lookedAt is until when a path of ours has been looked at. One without a socket brings
// nothing, ever.
func (in *inbound) lookedAt(id int, now time.Duration) time.Duration {
	if !in.open[id] {
		return now
	}
	return in.looked[id]
}

// beginReport is a report without paths.
func (in *inbound) beginReport() []byte {
	var room [4]byte
	binary.BigEndian.PutUint32(room[:], uint32(in.t.socketRoom.Load()))
	return wire.Append(append(in.report.buf[:0], make([]byte, wire.HeaderBytes)...), wire.TypeRoom, room[:])
}

// passOn sends a report that is full, and begins another.
func (in *inbound) passOn(now time.Duration, b []byte, send func(time.Duration, []byte)) []byte {
	if len(b) < mostReport {
		return b
	}
	send(now, b)
	in.report.buf = b
	return in.beginReport()
}

// compare tells the buffer by how much paths differ.
func (in *inbound) compare() {
	fastest := math.Inf(1)
	for _, id := range in.heard {
		fastest = min(fastest, in.paths[id].delay)
	}
	for _, id := range in.heard {
		if d := in.paths[id].delay + in.paths[id].over - fastest; d >= 0 && d < 1e7 {
			in.buf.Delay(id, time.Duration(d)*time.Microsecond)
		}
	}
}

// sendReport sends a report on the paths that are to tell it.
func (in *inbound) sendReport(now time.Duration, b []byte) {
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sess.up {
		return
	}
	set := t.send.Tell(now, len(b)+reportOuter)
	for _, p := range t.send.Paths() {
		if set&(1<<p.ID) != 0 {
			t.sendControl(now, t.paths[p.ID], b)
		}
	}
}

// sendControl sends a control packet, whose messages are behind room for the headers.
// They are left as they are. An end that is not up says nothing but its name: the peer may
// take anything else for signs of the life before. The lock is held.
func (t *Tunnel) sendControl(now time.Duration, p *path, b []byte) {
	if !t.sess.up {
		return
	}
	t.control[p.id]++
	n := t.control[p.id]
	shim := wire.Shim{Kind: wire.Control, Path: uint8(p.id), Tag: t.sess.tag, PathSeq: uint32(n), Time: uint32(now / time.Microsecond)}
	if t.sess.keys != nil {
		b = append(make([]byte, 0, len(b)+secure.Overhead), b...)
	}
	t.sendSealed(p, &shim, b, space(p.id, true), n)
}

// mostMessages is how many messages a packet may have: more than fit behind mostReport
// bytes. A larger packet of a hostile peer's would have this end work for long.
const mostMessages = 128

// controls takes the messages of a control packet. It belongs to the receiving thread.
func (in *inbound) controls(now time.Duration, p *path, s *wire.Shim, b []byte) {
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	c := messages{now: now, p: p, shim: s, look: lookMost}
	for n := 0; len(b) > 0; n++ {
		kind, value, rest, err := wire.Next(b)
		if err != nil || n == mostMessages {
			t.stats.strange.Add(1)
			break
		}
		b = rest
		in.control(&c, kind, value)
	}
	if c.reports {
		t.sess.heard = now
		t.check(now)
	}
	t.nudge()
}

// messages is what has been seen of a control packet.
type messages struct {
	now     time.Duration
	p       *path // that brought it
	shim    *wire.Shim
	look    int  // for repair
	reports bool // there was one
	marked  bool // there was a mark
	echoed  bool // an echo was asked for
}

// control takes one message. The lock is held.
func (in *inbound) control(c *messages, kind wire.Type, value []byte) {
	t := in.t
	switch kind {
	case wire.TypeMark:
		var m wire.Mark
		if wire.ParseMark(value, &m) == nil && c.shim.Kind == wire.Probe && !c.marked {
			c.marked = true
			in.mark(int(c.shim.Path), m)
		}
	case wire.TypeMissing:
		var m wire.Missing
		if wire.ParseMissing(value, &m) == nil {
			t.repair(m, &c.look)
		}
	case wire.TypeReport:
		var r wire.Report
		if wire.ParseReport(value, &r) == nil {
			c.reports = true
			t.reported(c.now, &r)
		}
	case wire.TypeLeave:
		in.leave(int(c.shim.Path), c.now)
	case wire.TypeRoom:
		if len(value) == 4 {
			t.setRoom(int(binary.BigEndian.Uint32(value)))
		}
	case wire.TypeEcho:
		// One answer to a packet: many would be more bytes than it has.
		if len(value) == wire.EchoBytes && !c.echoed {
			c.echoed = true
			t.reply(c.now, c.p, value)
		}
	case wire.TypeReply:
		if len(value) == wire.EchoBytes {
			t.echoed(c.now, parseEcho(value))
		}
	}
}

// mark takes what the sender says of its paths.
func (in *inbound) mark(via int, m wire.Mark) {
	in.buf.Mark(via, m.Next, m.Idle)
	for _, id := range in.heard {
		if m.Live&(1<<id) != 0 {
			in.buf.Alive(id)
		} else {
			in.buf.Dead(id, via)
		}
	}
}

// roomMost bounds what the peer may have us keep on its way to a socket of its, bytes: as
// much as a socket of ours takes.
const roomMost = socketBytes

// setRoom notes how much the peer's sockets hold. The lock is held.
func (t *Tunnel) setRoom(n int) { t.send.Inflight = min(max(n, leastRoom), roomMost) }

// reply sends an echo back. The lock is held.
func (t *Tunnel) reply(now time.Duration, p *path, value []byte) {
	b := wire.Append(make([]byte, wire.HeaderBytes, 64), wire.TypeReply, value)
	t.sendControl(now, p, b)
}

// echo is what this end asks to have echoed: when it was sent, and on which path. The
// answer may come by another: who is on the way may hand it over there.
type echo struct {
	path int
	sent time.Duration
}

// echoShift is how many bits the path takes in the echo's value.
const echoShift = 6

func (e echo) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(e.sent)<<echoShift|uint64(e.path))
}

func parseEcho(value []byte) echo {
	v := binary.BigEndian.Uint64(value)
	return echo{path: int(v & (MaxPaths - 1)), sent: time.Duration(v >> echoShift)}
}

// echoed notes a round trip. The lock is held.
func (t *Tunnel) echoed(now time.Duration, e echo) {
	p := t.paths[e.path]
	if p == nil || e.sent > now || now-e.sent > 10*time.Second {
		return
	}
	if !t.sized(now, p, e.sent) {
		t.send.Path(p.id).RTT(now - e.sent)
		t.slowest.Store(int64(t.send.SlowestRTT()))
	}
}

// reported takes a report of one of our paths. The lock is held.
func (t *Tunnel) reported(now time.Duration, r *wire.Report) {
	if int(r.Path) >= MaxPaths || t.paths[r.Path] == nil {
		return
	}
	p := t.paths[r.Path]
	if sp := t.send.Path(p.id); sp.Report(now, r.Report) > 0 {
		t.resize(p, p.sizes.carried(now, p.sizesEvery(now), sp.Average()-ethernetBytes))
	}
	for p.kept.len() > 0 && int32(p.kept.at(p.kept.from).end()-1-r.Highest) <= 0 {
		t.arena.release(p.kept.at(p.kept.from).e)
		p.kept.from++
	}
}
