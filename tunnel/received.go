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
		*r = received{known: true, missing: r.missing[:0], told: r.told[:0], delay: math.Inf(1), lessened: delay, delayed: now}
		r.report = sched.Report{Highest: s.PathSeq - 1, Delay: math.MaxInt32}
		if s.PathSeq < 1<<16 { // the path is new: what is before counts
			r.report.Highest = ^uint32(0)
		}
		in.heard = append(in.heard, int(s.Path))
	}
	r.via, r.came = via, now
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

// controls takes the messages of a control packet.
func (in *inbound) controls(now time.Duration, p *path, s *wire.Shim, b []byte) {
	for len(b) > 0 {
		kind, value, rest, err := wire.Next(b)
		if err != nil {
			in.t.stats.strange.Add(1)
			return
		}
		b = rest
		switch kind {
		case wire.TypeMark:
			var m wire.Mark
			if wire.ParseMark(value, &m) == nil && s.Kind == wire.Probe {
				in.mark(int(s.Path), m)
			}
		case wire.TypeMissing:
			var m wire.Missing
			if wire.ParseMissing(value, &m) == nil {
				in.t.repair(m)
			}
		case wire.TypeReport:
			var r wire.Report
			if wire.ParseReport(value, &r) == nil {
				in.t.reported(now, &r)
			}
		case wire.TypeLeave:
			in.t.leave(p)
		case wire.TypeRoom:
			if len(value) == 4 {
				in.t.setRoom(int(binary.BigEndian.Uint32(value)))
			}
		case wire.TypeEcho:
			in.reply(now, p, value)
		case wire.TypeReply:
			if len(value) == wire.EchoBytes {
				in.t.echoed(now, p, time.Duration(binary.BigEndian.Uint64(value)))
			}
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

// setRoom notes how much the peer's sockets hold.
func (t *Tunnel) setRoom(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.send.Inflight = max(n, leastRoom)
}

func (in *inbound) reply(now time.Duration, p *path, value []byte) {
	if len(value) != wire.EchoBytes {
		return
	}
	b := wire.Append(make([]byte, wire.HeaderBytes, 64), wire.TypeReply, value)
	in.t.mu.Lock()
	defer in.t.mu.Unlock()
	in.t.sendControl(now, p, b)
}

// echoed notes a round trip.
func (t *Tunnel) echoed(now time.Duration, p *path, sent time.Duration) {
	if sent > now || now-sent > 10*time.Second {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if sp := t.send.Path(p.id); sp != nil && t.paths[p.id] == p && !t.sized(now, p, sent) {
		sp.RTT(now - sent)
		t.slowest.Store(int64(t.send.SlowestRTT()))
	}
}

// reported takes a report of one of our paths.
func (t *Tunnel) reported(now time.Duration, r *wire.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sess.heard = now
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
	t.check(now)
	t.nudge()
}

// nudge has the outbound thread look when there is something to be sent again. The
// lock is held.
func (t *Tunnel) nudge() {
	if t.again.len() > 0 {
		wake(t.wakeOut)
	}
}

// repair has packets sent again that a path has lost.
func (t *Tunnel) repair(m wire.Missing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(m.Path) >= MaxPaths || t.paths[m.Path] == nil {
		return
	}
	t.paths[m.Path].sizes.doubt(t.now())
	q := &t.paths[m.Path].kept
	for i := q.from; i != q.to; i++ {
		pc := q.at(i)
		from, to := max(int32(m.First-pc.path), 0), min(int32(m.First+uint32(m.Count)-pc.path), int32(pc.n))
		if from >= to {
			continue
		}
		part := *pc
		part.first, part.n, part.seq = pc.first+int(from), int(to-from), pc.seq+uint32(from)
		if from > 0 {
			part.before = 1
		}
		part.e.refs++
		t.again.add(part)
	}
	t.nudge()
}
