package tunnel

import (
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// A path that has not carried anything yet is measured with padding before data needs it:
// 12 unmeasured paths carry 42–63 % of their capacity in a connection's first second,
// measured ones 98–100 %. sched.MaxPaddingBytes bounds what that costs.

// Data that is sent in the meantime measures the paths itself. Padding would delay the
// data or its acknowledgements, and slow start ends when round trips grow: over four
// links of 50 Mbit/s and 40 ms a connection carried 3 to 7 % of them in its first 4 s,
// and carries 62 to 72 % now (simulated). So padding pauses while data is sent, and
// starts again if the data has not filled the paths. On paths with round trips below
// longRTT padding goes on: there, a connection soon recovers from a slow start that ended
// early, and four links of 0.3 ms and unequal rates carried 94 % in a connection's first
// 2 s without padding and 98 % with it.
const (
	longRTT          = 10 * time.Millisecond
	slowStartPackets = 4 // sent within loadWindow: as many packets as acknowledge a connection's first window (RFC 6928)
	loadWindow       = 100 * time.Millisecond
	padRest          = 200 * time.Millisecond // how long padding pauses
	maxPadRest       = time.Second            // after the first pause: slow starts are over
)

// load decides whether padding has to pause because data is sent.
type load struct {
	windowStart time.Duration // when counting began
	packets     int
	restUntil   time.Duration // padding pauses until then
	restedSince time.Duration // when padding first paused; 0: never
}

// add records that packets of data are sent.
func (l *load) add(now time.Duration, packets int) {
	if now-l.windowStart > loadWindow {
		l.windowStart, l.packets = now, 0
	}
	if l.packets += packets; l.packets < slowStartPackets {
		return
	}
	if l.restedSince == 0 {
		l.restedSince = now
	}
	l.restUntil = min(now+padRest, l.restedSince+maxPadRest)
}

// paddingRoom returns how many bytes of padding may be sent on a path now. Padding does
// not pause on a path with short round trips or on a path that data does not use.
func (l *load) paddingRoom(now time.Duration, sp *sched.Path) (room int, ok bool) {
	if rtt := sp.MinRTT(); now < l.restUntil && !sp.Sidelined() && (rtt == 0 || rtt >= longRTT) {
		sp.PostponeMeasuring(now)
		return 0, false
	}
	return sp.PaddingRoom(now)
}

const padRunPackets = 16

// preparePadding prepares one run of padding. It reports whether there is one.
func (o *outbound) preparePadding(now time.Duration) bool {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.session.up || t.session.compat {
		return false
	}
	if o.sessionChanged {
		o.startSession()
	}
	for _, sp := range t.sender.Paths() {
		p := t.paths[sp.ID]
		room, ok := o.load.paddingRoom(now, sp)
		if !ok || p.fd < 0 || sp.SocketFull {
			continue
		}
		size := p.mtu - Overhead(p.v6, t.session.keys != nil)
		o.batch.begin(t, p)
		o.batch.addPadding(o.nextSeq, size, max(1, min(padRunPackets, room/(size+wire.HeaderBytes))))
		o.batch.commit(t, sp, now)
		p.metering.bytes += uint64(o.batch.bytes + p.outerBytes()*o.batch.packets)
		return true
	}
	return false
}

func (b *batch) addPadding(seq uint32, size, n int) {
	if len(b.padBuf) != size {
		b.padBuf = wire.AppendPad(b.padBuf[:0], size)
	}
	b.shim.Kind, b.shim.Seq, b.shim.Flags, b.shim.FlowDistance = wire.Probe, seq, 0, 0
	for range n {
		h := b.headers[b.used:]
		b.shim.Put(h)
		b.put(h, wire.HeaderBytes, b.padBuf, 0)
		b.shim.PathSeq++
	}
}
