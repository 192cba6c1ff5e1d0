package tunnel

import (
	"fmt"
	"math"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// A path may silently drop big packets: a router on it has a smaller MTU, and its ICMP
// errors are filtered. Such packets are lost each time they are sent. So from time to
// time a packet of the path's full size asks for an echo, followed by a small one that
// does too (RFC 8899, datagram packetization layer path MTU discovery). If only the small
// ones come back, several times, the size that arrives is searched for, and becomes the
// path's MTU. These packets have no path sequence numbers: their loss says nothing about
// the path's rate.
//
// A path that loses packets of any size, or whose queue has room for small packets only,
// must not lose its MTU. So the more small packets are lost, the more big ones have to be
// missed; a size that was doubted is probed once more when the search has found another
// one; and delivered data of that size ends the search.

const (
	minSizeIPv4    = 576  // bytes: every IPv4 host accepts them (RFC 791)
	minSizeIPv6    = 1280 // bytes: every IPv6 link carries them (RFC 8200 section 5)
	sizeResolution = 8    // bytes: a search ends when it is this close

	sizeErrorChance = 1e-4 // chance that a path that loses packets of any size causes that many misses in a row
	maxMisses       = 20   // upper limit for missesNeeded
	smallLossMemory = 16   // probes over which the loss of small packets is averaged

	sizeProbeEvery     = time.Second            // on a path with data
	sizeProbeIdle      = 30 * time.Second       // on a path without data
	sizeProbeMetered   = 10 * time.Minute       // on a metered path
	sizeProbeAfterLoss = 100 * time.Millisecond // minimum time between two probes caused by losses
	sizeRaiseEvery     = time.Minute            // until a size that did not arrive is tried again
	sizeReplyMargin    = 20 * time.Millisecond  // how much later the big echo may arrive than the small one
	sizeProbeTimeout   = time.Second            // when neither comes back
)

// sizeSearch finds the largest packet that a path carries, in bytes with all headers.
type sizeSearch struct {
	deviceMTU   int // of the device: it is never exceeded
	low, high   int // during a search: largest size known to arrive, and largest that may
	searching   bool
	doubtedSize int           // size that worked before the search, until it has been probed once more; 0: none
	confirming  bool          // doubtedSize is being probed once more
	smallLoss   float64       // share of small probes lost
	probeSize   int           // size of the probe in flight; 0: none
	probeID     time.Duration // its time of sending, by which its echo is recognized
	smallID     time.Duration // the same of the small probe behind it; 0: it came back
	smallBackAt time.Duration // when the small probe came back
	misses      int           // of this size, in a row
	nextAt      time.Duration // when to send the next probe
	raiseAt     time.Duration // when to try a larger size again
}

// start starts with an MTU that is assumed to work.
func (z *sizeSearch) start(mtu int) { *z = sizeSearch{deviceMTU: mtu, low: mtu, high: mtu} }

// next returns the size to probe now, or 0 if no probe is due.
func (z *sizeSearch) next(now time.Duration) int {
	if z.probeSize > 0 || now < z.nextAt {
		return 0
	}
	if !z.searching && z.low < z.deviceMTU && now >= z.raiseAt {
		z.high, z.searching = z.deviceMTU, true
	}
	switch {
	case z.confirming:
		return z.doubtedSize
	case z.searching:
		return (z.low + z.high + 1) / 2
	}
	return z.low
}

// missesNeeded returns how many misses in a row show that a size does not arrive. The
// true loss of small packets may be higher than the loss seen so far.
func (z *sizeSearch) missesNeeded() int {
	n := math.Log(sizeErrorChance) / math.Log(min(z.smallLoss+1./smallLossMemory, 0.99))
	return min(int(math.Ceil(n)), maxMisses)
}

// sent records that a probe and the small packet behind it were sent.
func (z *sizeSearch) sent(size int, big, small time.Duration) {
	z.probeSize, z.probeID, z.smallID, z.smallBackAt = size, big, small, 0
}

// doubt makes the next probe due because something was lost.
func (z *sizeSearch) doubt(now time.Duration) {
	if z.probeSize == 0 && !z.searching && now-z.probeID > sizeProbeAfterLoss {
		z.nextAt = now
	}
}

// matchEcho processes an echo. It reports whether the echo is that of the big probe, and
// whether it is that of either one.
func (z *sizeSearch) matchEcho(now, sent time.Duration) (big, isProbe bool) {
	switch {
	case z.probeSize == 0:
	case sent == z.probeID:
		return true, true
	case sent == z.smallID:
		z.smallID, z.smallBackAt = 0, now
		return false, true
	}
	return false, false
}

// isMissed reports whether the probe in flight counts as lost, because the small one
// behind it came back long ago. If neither has come back, nothing is known.
func (z *sizeSearch) isMissed(now, rtt time.Duration) bool {
	if z.probeSize > 0 && z.smallID != 0 && now-z.probeID > sizeProbeTimeout+rtt {
		z.probeSize, z.nextAt = 0, now
		z.smallLoss += (1 - z.smallLoss) / smallLossMemory
	}
	return z.probeSize > 0 && z.smallID == 0 && now-z.smallBackAt > sizeReplyMargin+rtt/2
}

// arrived and lost end a probe. They return the new MTU if it changes, otherwise 0.
func (z *sizeSearch) arrived(now, interval time.Duration) int {
	z.low = z.probeSize
	z.probeSize, z.misses, z.nextAt = 0, 0, now
	return z.conclude(now, interval)
}

func (z *sizeSearch) lost(now, interval time.Duration, minSize int) int {
	size := z.probeSize
	z.probeSize, z.nextAt = 0, now
	z.misses++
	z.smallLoss -= z.smallLoss / smallLossMemory
	switch {
	case z.misses < z.missesNeeded():
		return 0
	case z.confirming:
		z.confirming, z.doubtedSize = false, 0
	case z.searching:
		z.high = max(size-1, z.low)
	default:
		z.low, z.high, z.searching, z.doubtedSize = min(minSize, size), max(size-1, minSize), true, size
	}
	z.misses = 0
	return z.conclude(now, interval)
}

// noteDelivered records that a data packet of at least the given size has arrived.
func (z *sizeSearch) noteDelivered(now, interval time.Duration, size int) int {
	switch {
	case z.doubtedSize > 0 && size >= z.doubtedSize:
		z.low, z.confirming, z.probeSize = z.doubtedSize, true, 0
	case z.searching || size < z.low:
		return 0
	}
	z.misses = 0
	return z.conclude(now, interval)
}

func (z *sizeSearch) conclude(now, interval time.Duration) int {
	if z.searching && z.low < z.doubtedSize && z.high-z.low < sizeResolution {
		z.confirming = true
		return 0
	}
	if z.searching && !z.confirming && z.high-z.low >= sizeResolution {
		return 0
	}
	found := 0
	if z.searching {
		found, z.raiseAt = z.low, now+sizeRaiseEvery
	}
	z.searching, z.high, z.nextAt = false, z.low, now+interval
	z.confirming, z.doubtedSize = false, 0
	return found
}

// sizeProbeInterval returns how often a path's size is probed. It is called with mu held.
func (p *path) sizeProbeInterval(now time.Duration) time.Duration {
	if p.Metered {
		return sizeProbeMetered
	}
	if p.carriedData || now-p.lastDataAt < sizeProbeEvery {
		return sizeProbeEvery
	}
	return sizeProbeIdle
}

func (p *path) minSize() int {
	if p.v6 {
		return min(minSizeIPv6, p.sizeSearch.deviceMTU)
	}
	return min(minSizeIPv4, p.sizeSearch.deviceMTU)
}

// probeSize probes a path's size if a probe is due. It is called with mu held.
func (o *outbound) probeSize(now time.Duration, p *path, sp *sched.Path) {
	z := &p.sizeSearch
	if !sp.Live() {
		z.probeSize, z.misses = 0, 0
		return
	}
	if p.carriedData && !p.Metered && z.nextAt > now+sizeProbeEvery {
		z.nextAt = now // the path had no data so far
	}
	if z.isMissed(now, sp.SmoothedRTT()) {
		o.t.resize(p, z.lost(now, p.sizeProbeInterval(now), p.minSize()))
	}
	size := z.next(now)
	if size == 0 || p.Metered && !p.metering.mayProbeSize(now, z) {
		return
	}
	big, small := now+1, now+2 // unique, because an echo about the round trip may carry now
	z.sent(size, big, small)
	o.t.sendEcho(now, p, big, size)
	o.t.sendEcho(now, p, small, 0)
}

// sendEcho asks for an echo with a packet of a size, 0: the smallest. It is called with
// mu held.
func (t *Tunnel) sendEcho(now time.Duration, p *path, value time.Duration, size int) {
	b := make([]byte, wire.HeaderBytes, max(size, 64)+secure.Overhead)
	b = wire.Append(b, wire.TypeEcho, echo{p.id, value}.append(nil))
	if n := size - Overhead(p.v6, t.session.keys != nil) + wire.HeaderBytes - len(b); n > 0 {
		b = wire.AppendPad(b, n)
	}
	t.countProbe(p, len(b))
	t.sendControl(now, p, b)
}

// resize sets a path's MTU; 0 keeps the current one. It drops packets that wait to be sent
// again and were segmented for a larger MTU, because they would never arrive. It is called
// with mu held.
func (t *Tunnel) resize(p *path, mtu int) {
	if mtu == 0 || mtu == p.mtu {
		return
	}
	if mtu < p.mtu {
		t.sender.Path(p.id).PacketsShrunk()
	}
	p.mtu = mtu
	t.emit(Event{Path: p.Name, Kind: Resized, Err: fmt.Errorf("packets of up to %d bytes arrive", mtu)})
	limit := t.innerMTU()
	var fitting resendQueue
	for ; t.resends.len() > 0; t.resends.drop() {
		if pc := t.resends.first(); pc.e.split.MaxBytes() <= limit {
			fitting.add(*pc)
		} else {
			t.arena.release(pc.e)
		}
	}
	t.resends = fitting
}

// refuseTooBig removes packets from the queue that were accepted when the paths carried
// bigger ones. It is called with mu held.
func (o *outbound) refuseTooBig() {
	for _, l := range o.queue.lanes() {
		for !l.empty() && l.first().split.MaxBytes() > o.innerMTU {
			o.sendTooBig(l.first().pkt, o.innerMTU)
			o.dropEntry(l)
		}
	}
}
