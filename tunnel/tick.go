package tunnel

import (
	"sync/atomic"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// How often a path is probed.
const (
	probeWhenOverdue = 5 * time.Millisecond   // any path, while acknowledgements of one are overdue
	probeNew         = 5 * time.Millisecond   // its loss is unknown
	probeDirect      = 20 * time.Millisecond  // data passes it without this process
	probeSidelined   = 25 * time.Millisecond  // it is sidelined, and others carry data
	probeDead        = 100 * time.Millisecond // it is dead or silent
	probeIdle        = 500 * time.Millisecond // it has no traffic
	idleAfter        = 2 * time.Millisecond   // without data

	minBytesBetweenProbes = 1000  // a slow path could carry that many between two probes
	burstProbeBytes       = 12500 // likewise on a fast path: probes take 1 % of its rate
	maxProbeBurst         = 5     // packets

	// announceTimes is how many times each path announces which paths are in use, because
	// a packet may be lost.
	announceTimes = 4
)

func (o *outbound) tick(now time.Duration) {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireKeys(now)
	if o.sessionChanged {
		o.startSession()
	}
	o.anchored = t.sender.Anchored()
	o.rate, o.spread, o.innerMTU = t.sender.Rate(), t.sender.Spread(), t.innerMTU()
	t.sendHellos(now)
	t.fallBack(now)
	t.closeReleased(true)
	if t.session.compat {
		t.checkCompatPaths(now)
		return
	}
	if !t.session.up {
		return
	}
	t.checkPaths(now)
	o.probe(now)
	o.tickDirect(now)
}

// checkPaths finds paths that died or returned. It is called with mu held.
func (t *Tunnel) checkPaths(now time.Duration) {
	died, returned := t.sender.Check(now)
	t.resendUnacked(died)
	for _, id := range sched.PathIDs(died) {
		t.emit(Event{Path: t.paths[id].Name, Kind: PathDead})
	}
	for _, id := range sched.PathIDs(returned) {
		t.emit(Event{Path: t.paths[id].Name, Kind: PathLive})
	}
	tripped, closed := t.sender.BreakerChanges()
	for _, id := range sched.PathIDs(tripped) {
		t.emit(Event{Path: t.paths[id].Name, Kind: PathTripped})
	}
	for _, id := range sched.PathIDs(closed) {
		t.emit(Event{Path: t.paths[id].Name, Kind: PathClosed})
	}
	for _, p := range t.paths {
		for p != nil && p.unacked.len() > 0 && now-p.unacked.oldest().sentAt > maxKeepTime {
			t.dropOldest(p)
		}
	}
}

// maxKeepTime is how long unacknowledged packets are kept. The receiver has given them up
// long before.
const maxKeepTime = 2 * time.Second

// probe sends probes on paths that need one. It is called with mu held.
func (o *outbound) probe(now time.Duration) {
	t := o.t
	overdue := t.sender.AckOverdue(now)
	live := t.sender.LiveSet()
	if live != o.announcedLive && t.resends.len() == 0 {
		o.announcedLive, o.announcements = live, announceTimes
	}
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		sp := t.sender.Path(p.id)
		o.probeSize(now, p, sp)
		interval := probeInterval(sp, overdue, now-o.sentAt < probeIdle)
		if t.direct.on && sp.Live() { // data says nothing about the paths
			interval = min(interval, probeDirect)
		}
		switch {
		case p.Metered:
			sp.Spare = p.metering.isSpare(now, p.lastDataAt)
			interval = o.meteredInterval(now, p, sp)
		case p.answers.silent && !sp.Returning():
			interval = probeDead
		}
		becameIdle := p.carriedData && now-p.lastDataAt >= idleAfter
		if now-p.probedAt < interval && !becameIdle && o.announcements == 0 {
			continue
		}
		if becameIdle {
			p.carriedData = false
		}
		for range probeBurst(sp.LossUnknown(), sp.TransmitTime(burstProbeBytes)) {
			o.sendProbe(now, p, sp, sp.Live() && !p.carriedData)
		}
	}
	o.announcements = max(o.announcements-1, 0)
}

func probeInterval(sp *sched.Path, overdue, busy bool) time.Duration {
	switch {
	case sp.Returning():
		return probeNew
	case !sp.Live():
		return probeDead
	case overdue:
		return probeWhenOverdue
	case sp.LossUnknown():
		return max(probeNew, sp.TransmitTime(minBytesBetweenProbes))
	case sp.Tripped():
		return max(probeNew, sp.TransmitTime(minBytesBetweenProbes))
	case sp.Sidelined() && busy:
		return probeSidelined
	}
	return probeIdle
}

// probeBurst returns how many probes a path gets at once: several if it is fast and its
// loss is unknown.
func probeBurst(lossUnknown bool, transmitTime time.Duration) int {
	if !lossUnknown {
		return 1
	}
	return int(min(max(tickEvery/max(transmitTime, 1), 1), maxProbeBurst))
}

// sendProbe sends a mark and asks for an echo. It is called with mu held.
func (o *outbound) sendProbe(now time.Duration, p *path, sp *sched.Path, idle bool) {
	p.probedAt = now
	p.answers.sent(now, o.t.watch.time)
	b := make([]byte, wire.HeaderBytes, 160)
	b = wire.AppendMark(b, wire.Mark{NextSeq: o.nextSeq, Idle: idle, LivePaths: o.announcedLive})
	b = wire.Append(b, wire.TypeEcho, echo{p.id, now}.append(nil))
	b = wire.AppendReceiver(b, o.t.receiver())
	if d := &o.t.direct; d.tag != noTag && d.refused == nil {
		b = wire.Append(b, wire.TypeDirect, nil)
	}
	if o.t.cfg.Key != nil && !p.learns && (p.namedAt == 0 || now-p.namedAt >= nameEvery) {
		p.namedAt = now
		b = wire.Append(b, wire.TypeName, []byte(p.Name))
	}
	seq := sp.Sent(now, 1, len(b)+p.outerBytes())
	o.t.countProbe(p, len(b))
	shim := wire.Shim{Kind: wire.Probe, Path: uint8(p.id), Seq: o.nextSeq, Tag: o.t.session.tag, PathSeq: uint32(seq), Time: uint32(o.t.now() / time.Microsecond)}
	o.t.sendSealed(p, &shim, b, seq)
}

// sendSealed sends a packet whose messages follow room for the headers. It is called with
// mu held.
func (t *Tunnel) sendSealed(p *path, shim *wire.Shim, b []byte, counter uint64) {
	if p.fd >= 0 {
		t.sendPacket(p, t.seal(p, shim, b, counter))
	}
}

// seal writes the headers of a packet and seals it. It returns nil if there are no keys
// yet. It is called with mu held.
func (t *Tunnel) seal(p *path, shim *wire.Shim, b []byte, counter uint64) []byte {
	if t.cfg.Key != nil && t.session.keys == nil {
		return nil
	}
	shim.Put(b)
	if k := t.session.keys; k != nil {
		n := len(b)
		b = append(b, make([]byte, secure.Overhead)...)
		k.seal(b, n, nonceSpace(p.id, shim.Kind), counter)
	}
	return b
}

// sendPacket sends a packet on a path's socket, if there is one. It is called with mu
// held.
func (t *Tunnel) sendPacket(p *path, b []byte) {
	if b == nil {
		return
	}
	if errno := sendNow(p.fd, b); errno != 0 {
		t.noteRefusedLocked(p, errno)
		return
	}
	p.noteSent()
}

// isIdle reports whether there is nothing to do soon. It is called with mu held.
func (o *outbound) isIdle(now time.Duration) bool {
	if !o.t.session.up {
		return false
	}
	if !o.t.session.compat && o.t.sender.AckOverdue(now) {
		return false
	}
	for _, p := range o.t.paths {
		if p == nil {
			continue
		}
		sp := o.t.sender.Path(p.id)
		if p.fd >= 0 && sp.Returning() || p.sizeSearch.searching || p.carriedData || sp.LossUnknown() || p.unacked.len() > 0 || now-p.lastDataAt < 50*time.Millisecond {
			return false
		}
	}
	return true
}

// A kernel error kills a path if it persists: minSendFailures messages in a row are
// refused, for sendFailTime. Anybody can forge ICMP errors, as fast as the network
// carries them, but they are not believed while packets leave in between: whether packets
// arrive is for the other end to say.
const (
	sendFailTime    = 10 * time.Millisecond
	minSendFailures = 3
)

type sendFailure struct {
	since atomic.Int64 // ns: first refusal since a packet was last sent; 0: none
	count int          // guarded by Tunnel.mu
}

// noteSent records that the kernel has accepted a packet.
func (p *path) noteSent() {
	if p.sendFailure.since.Load() != 0 {
		p.sendFailure.since.Store(0)
	}
}

// noteRefused records the error for a packet that the kernel refused repeatedly.
func (t *Tunnel) noteRefused(p *path, errno unix.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteRefusedLocked(p, errno)
}

func (t *Tunnel) noteRefusedLocked(p *path, errno unix.Errno) {
	if !unreachable(errno) {
		return
	}
	now := t.now()
	if p.sendFailure.since.CompareAndSwap(0, int64(now)) {
		p.sendFailure.count = 0
	}
	p.sendFailure.count++
	if p.sendFailure.count < minSendFailures || now-time.Duration(p.sendFailure.since.Load()) < sendFailTime || !t.sender.Kill(p.id) {
		return
	}
	t.resendUnacked(1 << p.id)
	t.emit(Event{Path: p.Name, Kind: PathDead, Err: errno})
	wake(t.wakeOut)
}

// unreachable reports whether an error means that no packet leaves.
func unreachable(errno unix.Errno) bool {
	switch errno {
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV, unix.EPERM, unix.EADDRNOTAVAIL:
		return true
	}
	return false
}
