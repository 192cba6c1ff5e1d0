package tunnel

import (
	"cmp"
	"encoding/binary"
	"math"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// receivedPath is what is known about one of the peer's paths.
type receivedPath struct {
	known             bool
	localPath         int           // ID of our path that its packets arrive by
	viaLocalAt        time.Duration // when a packet last arrived by localPath
	arrivedAt         time.Duration // when a packet last arrived
	report            sched.Report
	highestSeq        uint32 // highest path sequence number that has arrived
	gaps              gaps
	unreported        bool   // there is something to report
	unreportedPackets int    // since the last report
	lastSeq           uint32 // connection sequence number of the newest packet that the path has carried for the first time
	missing           []wire.Missing
	reportedAt        time.Duration  // when the path was last in a report
	reportedMissing   []wire.Missing // in the last report; each is reported twice in case a report is lost
	minDelay          float64        // recent minimum of the one-way delay in µs, clock offset included
	minDelayAt        time.Duration  // when minDelay was last replaced by nextMinDelay
	nextMinDelay      int32          // minimum since then, µs
	largestBytes      int
	excessDelay       float64 // recent maximum of how much longer large packets took than minDelay, µs: they take longer to transmit and wait in the path's queue
}

type reporter struct {
	due    time.Duration // 0: nothing to report
	last   time.Duration
	buf    []byte
	urgent bool // as soon as minReportInterval allows

	notBefore time.Duration // the paths' shares do not allow a report earlier; 0: they do
	every     time.Duration // average interval while the shares limit it, otherwise reportEvery

	heardAt   time.Duration // when a packet last arrived, by any path
	resumedAt time.Duration // when packets began to arrive again after resumeAfter without any
}

const (
	reportEvery       = 10 * time.Millisecond
	minReportInterval = time.Millisecond // between two reports
	reportPackets     = 64
	maxMissing        = 64
	maxExcessDelay    = 100e3                  // µs: no longer than order.Buffer remembers
	reportedFor       = 2 * time.Second        // after the last packet of a path it is in each report
	reportSilentEvery = 100 * time.Millisecond // and later so often
	delayEvery        = 500 * time.Millisecond
)

func (in *inbound) recordArrival(now time.Duration, via int, s *wire.Shim, at uint32, size int) {
	r := &in.paths[s.Path]
	delay := int32(at - s.Time)
	if !r.known {
		*r = receivedPath{known: true, localPath: via, missing: r.missing[:0], reportedMissing: r.reportedMissing[:0], minDelay: math.Inf(1), nextMinDelay: delay, minDelayAt: now}
		r.report = sched.Report{MinDelay: math.MaxInt32}
		if r.highestSeq = s.PathSeq - 1; s.PathSeq < 1<<16 { // the path is new, so packets before this one are missing
			r.highestSeq = ^uint32(0)
		}
		in.knownPaths = append(in.knownPaths, int(s.Path))
	}
	in.reporter.noteArrival(now)
	r.arrivedAt = now
	r.noteLocalPath(now, via)
	r.report.Packets++
	r.report.Bytes += uint32(size)
	ahead := int32(s.PathSeq - r.highestSeq)
	if ahead > 1 {
		in.recordGap(now, r, s, int(ahead-1))
	}
	if ahead < 0 {
		r.gaps.noteLate(now, s.PathSeq)
	}
	if ahead > 0 {
		r.highestSeq, r.report.Arrived = s.PathSeq, at
		switch s.Kind {
		case wire.Data:
			r.lastSeq = s.Seq
		case wire.Probe:
			r.lastSeq = s.Seq - 1
		}
	}
	r.report.HighestSeq = r.gaps.reportable(r.highestSeq)
	r.report.MinDelay = min(r.report.MinDelay, delay)
	r.nextMinDelay = min(r.nextMinDelay, delay)
	if now-r.minDelayAt > delayEvery {
		r.minDelay, r.nextMinDelay, r.minDelayAt = float64(r.nextMinDelay), math.MaxInt32, now
	} else {
		r.minDelay = min(r.minDelay, float64(delay))
	}
	r.noteExcess(float64(delay)-r.minDelay, size)
	r.unreported = true
	if r.unreportedPackets++; r.unreportedPackets >= reportPackets {
		in.reporter.urgent = true
	}
	in.reporter.schedule(now)
}

// localPathTimeout is how long nothing must have arrived by a path's localPath before
// another one replaces it. An attacker who captures packets may send them to another of
// our sockets, and that must have no effect.
const localPathTimeout = 2 * time.Second

func (r *receivedPath) noteLocalPath(now time.Duration, via int) {
	if via != r.localPath && now-r.viaLocalAt < localPathTimeout {
		return
	}
	r.localPath, r.viaLocalAt = via, now
}

// handleLeave takes our path out of use whose counterpart the peer has taken out of use:
// the one by which its packets arrive. If packets of other paths arrive by it too, it is
// ambiguous which path the peer means, and the path is left to die. It is called with mu
// held.
func (in *inbound) handleLeave(peerPath int, now time.Duration) {
	r := &in.paths[peerPath]
	if !r.known {
		return
	}
	if p := in.t.paths[r.localPath]; p != nil && p.learns {
		if q := in.learning.matched[peerPath]; q != nil {
			in.t.withdraw(q.id)
		}
		return
	}
	for _, id := range in.knownPaths {
		if other := &in.paths[id]; id != peerPath && other.localPath == r.localPath && now-other.viaLocalAt < localPathTimeout {
			return
		}
	}
	in.t.withdraw(r.localPath)
}

// noteExcess records by how much longer than the minimum a packet of size bytes took, in
// µs. Small packets, which are all that an idle path carries, say nothing about large
// ones.
func (r *receivedPath) noteExcess(excess float64, size int) {
	if r.largestBytes = max(r.largestBytes, size); size < r.largestBytes/2 {
		return
	}
	if excess = min(excess, maxExcessDelay); excess > r.excessDelay {
		r.excessDelay = excess
	} else {
		r.excessDelay += (excess - r.excessDelay) / 64
	}
}

// After the peer was unreachable, its paths need not all be heard at once: only after
// resumeTime it is reported that one has stayed silent.
const (
	resumeAfter = time.Second
	resumeTime  = 500 * time.Millisecond // dead and silent paths are probed each 100 ms
)

func (rp *reporter) noteArrival(now time.Duration) {
	if now-rp.heardAt > resumeAfter {
		rp.resumedAt = now
	}
	rp.heardAt = now
}

func (rp *reporter) schedule(now time.Duration) {
	due := rp.last + reportEvery
	if rp.urgent {
		due = rp.last + minReportInterval
	}
	if rp.due == 0 || max(due, rp.notBefore) < rp.due {
		rp.due = max(due, rp.notBefore, now)
	}
}

// repairTime returns how long the peer may take to send a lost packet again: a report, the
// packet, and reports that are lost.
func (in *inbound) repairTime() time.Duration {
	rtt := time.Duration(in.t.maxRTT.Load())
	return min(2*rtt+4*max(in.reporter.every, reportEvery), cmp.Or(time.Duration(in.t.hold.Load()), order.DefaultHold)+rtt)
}

// postpone reports whether a report that is due has to wait until a time. If not, it counts as
// sent now.
func (rp *reporter) postpone(now, until time.Duration) bool {
	if until > now {
		rp.due, rp.notBefore = until, until
		return true
	}
	interval := reportEvery
	if rp.notBefore > 0 {
		interval = max(interval, now-rp.last)
	}
	rp.every = max(rp.every, reportEvery)
	rp.every += (interval - rp.every) / 8
	rp.due, rp.last, rp.urgent, rp.notBefore = 0, now, false, 0
	return false
}

func (in *inbound) sendDueReports(now time.Duration) {
	rp := &in.reporter
	if rp.due == 0 || now < rp.due {
		return
	}
	if rp.postpone(now, in.t.reportAt(now, rp.last)) {
		return
	}
	in.t.reportEvery.Store(int64(rp.every))
	in.updateDelays()
	in.t.stats.reports.Add(1)
	in.buildReports(now, in.sendReport)
}

// maxReportBytes is the size after which a report is sent: it must fit every path.
const maxReportBytes = 1100

// reportOuter is about the size of the headers in front of a report, in bytes.
const reportOuter = 60

// buildReports writes all that is to be reported into as many packets as needed, each
// behind room for its headers, and passes them to send. Missing packets come first,
// because the sender forgets what a report acknowledges.
func (in *inbound) buildReports(now time.Duration, send func(time.Duration, []byte)) {
	b := in.beginReport()
	for _, id := range in.knownPaths {
		r := &in.paths[id]
		r.gaps.expire(now, func(x gap) { in.reportMissing(r, id, x) })
		if highest := r.gaps.reportable(r.highestSeq); highest != r.report.HighestSeq {
			r.report.HighestSeq, r.unreported = highest, true
		}
		if len(r.gaps.open) > 0 {
			in.reporter.schedule(now)
		}
		for _, list := range [...][]wire.Missing{r.reportedMissing, r.missing} {
			for _, m := range list {
				b = wire.AppendMissing(in.flushReport(now, b, send), m)
			}
		}
		r.missing, r.reportedMissing = r.reportedMissing[:0], r.missing
		if len(r.reportedMissing) > 0 {
			in.reporter.schedule(now) // to report them a second time
		}
	}
	for _, id := range in.knownPaths {
		r := &in.paths[id]
		// Silent paths are reported too: the sender needs to know until when the receiver
		// has looked to tell that a path is dead.
		if r.unreported || now-r.arrivedAt < reportedFor || now-r.reportedAt > reportSilentEvery && now-in.reporter.resumedAt > resumeTime {
			checkedUntil := now // of a path without a socket
			if in.hasSocket[r.localPath] {
				checkedUntil = in.checkedUntil[r.localPath]
			}
			r.reportedAt = now
			if len(r.gaps.open) > 0 { // later packets may have arrived, and are not reported yet
				checkedUntil = min(checkedUntil, r.gaps.open[0].at)
			}
			r.report.CheckedUntil = uint32(checkedUntil / time.Microsecond)
			b = wire.AppendReport(in.flushReport(now, b, send), &wire.Report{Path: uint8(id), Report: r.report})
			r.unreported, r.unreportedPackets, r.report.MinDelay = false, 0, math.MaxInt32
		}
	}
	in.reporter.buf = b
	send(now, b)
}

func (in *inbound) beginReport() []byte {
	var room [4]byte
	binary.BigEndian.PutUint32(room[:], uint32(in.t.socketCapacity.Load()))
	return wire.Append(append(in.reporter.buf[:0], make([]byte, wire.HeaderBytes)...), wire.TypeCapacity, room[:])
}

// flushReport sends the report and starts another if it is full.
func (in *inbound) flushReport(now time.Duration, b []byte, send func(time.Duration, []byte)) []byte {
	if len(b) < maxReportBytes {
		return b
	}
	send(now, b)
	in.reporter.buf = b
	return in.beginReport()
}

// updateDelays sets how much the paths differ in the reordering buffer.
func (in *inbound) updateDelays() {
	fastest := math.Inf(1)
	for _, id := range in.knownPaths {
		fastest = min(fastest, in.paths[id].minDelay)
	}
	for _, id := range in.knownPaths {
		if d := in.paths[id].minDelay + in.paths[id].excessDelay - fastest; d >= 0 && d < 1e7 {
			in.buf.Delay(id, time.Duration(d)*time.Microsecond)
		}
	}
}

// sendReport sends a report on the paths that sched chooses. If none of those in use is
// answered, all paths carry it: a dead path that works again needs the reports.
func (in *inbound) sendReport(now time.Duration, b []byte) {
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.session.up {
		return
	}
	set := t.sender.ReportPaths(now, len(b)+reportOuter)
	if t.usedAreSilent() {
		set = allPaths
	}
	for _, p := range t.sender.Paths() {
		if set&(1<<p.ID) != 0 {
			t.sendControl(now, t.paths[p.ID], b)
		}
	}
}

// sendControl sends a control packet, whose messages follow room for the headers. It does
// not change the messages. Without a session it sends nothing, because the peer might
// take the packet for a sign of the last session. It is called with mu held.
func (t *Tunnel) sendControl(now time.Duration, p *path, b []byte) {
	if p.fd >= 0 {
		t.sendPacket(p, t.controlPacket(now, p, b))
	}
}

// controlPacket returns a sealed control packet, or nil without a session. It is called
// with mu held.
func (t *Tunnel) controlPacket(now time.Duration, p *path, b []byte) []byte {
	if !t.session.up {
		return nil
	}
	t.controlSeqs[p.id]++
	n := t.controlSeqs[p.id]
	shim := wire.Shim{Kind: wire.Control, Path: uint8(p.id), Tag: t.session.tag, PathSeq: uint32(n), Time: uint32(now / time.Microsecond)}
	if t.session.keys != nil {
		b = append(make([]byte, 0, len(b)+secure.Overhead), b...)
	}
	return t.seal(p, &shim, b, n)
}

// maxControlMessages is the maximum number of messages in a packet: more than fit into maxReportBytes.
// A hostile peer's larger packet would take long to process.
const maxControlMessages = 128

func (in *inbound) handleControl(now time.Duration, p *path, s *wire.Shim, b []byte) {
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	c := controlPacket{now: now, path: p, shim: *s, repairLookups: maxRepairLookups}
	for n := 0; len(b) > 0; n++ {
		kind, value, rest, err := wire.Next(b)
		if err != nil || n == maxControlMessages {
			t.stats.invalid.Add(1)
			break
		}
		b = rest
		in.handleControlMessage(&c, kind, value)
	}
	if c.hasReport {
		t.session.heardAt = now
		t.checkPaths(now)
	}
	if t.resends.len() > 0 {
		wake(t.wakeOut)
	}
}

type controlPacket struct {
	now           time.Duration
	path          *path // that the packet arrived by
	shim          wire.Shim
	repairLookups int  // pieces that repair may still look up without queueing anything
	hasReport     bool // a report was processed
	marked        bool // a mark was processed
	echoed        bool // an echo was answered
}

// handleControlMessage processes one message. It is called with mu held.
func (in *inbound) handleControlMessage(c *controlPacket, kind wire.Type, value []byte) {
	t := in.t
	switch kind {
	case wire.TypeMark:
		var m wire.Mark
		if wire.ParseMark(value, &m) == nil && c.shim.Kind == wire.Probe && !c.marked {
			c.marked = true
			in.handleMark(int(c.shim.Path), m)
		}
	case wire.TypeMissing:
		var m wire.Missing
		if wire.ParseMissing(value, &m) == nil {
			t.repair(m, &c.repairLookups)
		}
	case wire.TypeReport:
		var r wire.Report
		if wire.ParseReport(value, &r) == nil {
			c.hasReport = true
			t.handleReport(c.now, &r)
		}
	case wire.TypeLeave:
		in.handleLeave(int(c.shim.Path), c.now)
	case wire.TypeCapacity:
		if len(value) == 4 {
			n := int(binary.BigEndian.Uint32(value))
			t.sender.MaxInFlightBytes = min(max(n, minSocketCapacity), maxPeerCapacity)
		}
	case wire.TypeEcho:
		// One answer per packet: more would be more bytes than the packet has.
		if len(value) == wire.EchoBytes && !c.echoed {
			c.echoed = true
			t.sendControl(c.now, c.path, wire.Append(make([]byte, wire.HeaderBytes, 64), wire.TypeReply, value))
		}
	case wire.TypeReceiver:
		var r wire.Receiver
		if wire.ParseReceiver(value, &r) == nil && c.shim.Kind == wire.Probe {
			t.setPeer(r)
		}
	case wire.TypeDirect:
		t.direct.peerTakes = t.direct.peerTakes || c.shim.Kind == wire.Probe
	case wire.TypeArrived:
		var a wire.Arrived
		if wire.ParseArrived(value, &a) == nil {
			t.handleArrived(a)
		}
	case wire.TypeName:
		if c.shim.Kind == wire.Probe && c.path.learns {
			in.handleName(c.now, c.path, int(c.shim.Path), value)
		}
	case wire.TypeReply:
		if len(value) == wire.EchoBytes && !in.proveAddress(c.now, c.path, [wire.EchoBytes]byte(value)) {
			t.handleEchoReply(c.now, parseEcho(value))
		}
	}
}

// handleMark processes what the sender says about its paths.
func (in *inbound) handleMark(via int, m wire.Mark) {
	in.buf.Mark(via, m.NextSeq, m.Idle)
	for _, id := range in.knownPaths {
		if m.LivePaths&(1<<id) != 0 {
			in.buf.Alive(id)
		} else {
			in.buf.Dead(id, via)
		}
	}
}

// maxPeerCapacity bounds what a peer can make this end keep in flight to one socket: what
// one of our sockets holds.
const maxPeerCapacity = socketBytes

// echo is what this end asks to have echoed: when it was sent, and on which path. The
// reply may come by another path, because an attacker on the way can redirect it.
type echo struct {
	path int
	sent time.Duration
}

// echoShift is the number of bits of the path ID in the echo's value.
const echoShift = 6

func (e echo) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(e.sent)<<echoShift|uint64(e.path))
}

func parseEcho(value []byte) echo {
	v := binary.BigEndian.Uint64(value)
	return echo{path: int(v & (MaxPaths - 1)), sent: time.Duration(v >> echoShift)}
}

// handleEchoReply records a round trip. It is called with mu held.
func (t *Tunnel) handleEchoReply(now time.Duration, e echo) {
	p := t.paths[e.path]
	if p == nil || e.sent > now || now-e.sent > 10*time.Second {
		return
	}
	t.noteAnswer(now, p)
	big, isSizeProbe := p.sizeSearch.matchEcho(now, e.sent)
	if big {
		t.resize(p, p.sizeSearch.arrived(now, p.sizeProbeInterval(now)))
	}
	if !isSizeProbe {
		t.sender.Path(p.id).AddRTT(now - e.sent)
		t.maxRTT.Store(int64(t.sender.MaxRTT()))
	}
}

// handleReport processes a report about one of our paths. It is called with mu held.
func (t *Tunnel) handleReport(now time.Duration, r *wire.Report) {
	if int(r.Path) >= MaxPaths || t.paths[r.Path] == nil {
		return
	}
	p := t.paths[r.Path]
	if sp := t.sender.Path(p.id); sp.Report(now, r.Report) > 0 {
		t.noteAnswer(now, p)
		t.resize(p, p.sizeSearch.noteDelivered(now, p.sizeProbeInterval(now), sp.AverageBytes()-ethernetBytes))
	}
	for p.unacked.len() > 0 && int32(p.unacked.oldest().endPathSeq()-1-r.HighestSeq) <= 0 {
		t.dropOldest(p)
	}
}
