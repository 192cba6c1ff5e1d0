package tunnel

import (
	"math/bits"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
)

// A metered path costs money for every byte: it gets no padding, its rate and loss are
// measured by data, and reports about other paths avoid it while it carries no data. Probes,
// and hellos and handshakes that nobody has asked for, are limited by a quota. Besides, a
// metered path carries a probe after each burst of data, and a few when another path dies or
// returns, because the receiver waits for packets otherwise; and answers to the other end,
// which has its own settings.

const (
	// meteredProbe is how often an idle metered path is probed. It is less than the 30 s after
	// which many NATs forget a flow (RFC 4787 demands two minutes).
	meteredProbe = 10 * time.Second
	// meteredRetry is how often it is probed while something is not answered, or while it is
	// dead, as far as the quota allows.
	meteredRetry = 500 * time.Millisecond
	// meteredBurst packets may be sent by the quota at once, and one more each meteredRefill:
	// 1.6 to 1.8 MB a day, if nothing is answered.
	meteredBurst  = 20
	meteredRefill = 5 * time.Second

	meteredSizeRetry = 10 * time.Second // between probes of a metered path's size that losses cause
	spareAfter       = time.Second      // without data
)

// metering counts and limits what a path carries besides data. It is guarded by Tunnel.mu.
type metering struct {
	bytes       uint64        // of padding and probes, with the outer headers
	quota       tokenBucket   // of a metered path
	dataHeardAt time.Duration // when data last arrived by the path
}

func newMetering() metering {
	return metering{quota: tokenBucket{burst: meteredBurst, every: meteredRefill}}
}

// countProbe counts a probe of n bytes, without the seal and the outer headers. It is
// called with mu held.
func (t *Tunnel) countProbe(p *path, n int) {
	p.metering.bytes += uint64(n + t.sealBytes() + p.outerBytes())
}

// mayAsk reports whether a hello or a first message of a handshake may be sent on a path
// now. It is called with mu held.
func (p *path) mayAsk(now time.Duration) bool {
	return !p.Metered || p.metering.quota.take(now)
}

// isSpare reports whether the path has carried no data for a while, in either direction.
func (m *metering) isSpare(now, lastSentAt time.Duration) bool {
	return now-max(m.dataHeardAt, lastSentAt) > spareAfter
}

// meteredInterval returns how long after its last probe a metered path is probed again. It
// takes a probe that is due from the quota. It is called with mu held.
func (o *outbound) meteredInterval(now time.Duration, p *path, sp *sched.Path) time.Duration {
	interval := meteredProbe
	switch {
	case !sp.Live() && p.answers.unanswered == 0: // it returns after a few more
		interval = probeDead
	case !sp.Live(), o.t.peerMissed(now):
		interval = meteredRetry
	}
	if now-p.probedAt >= interval && !p.metering.quota.take(now) {
		return meteredProbe + meteredRefill // later
	}
	return interval
}

// mayProbeSize reports whether the size of a metered path may be probed now. A size that is
// in doubt is probed without delay.
func (m *metering) mayProbeSize(now time.Duration, z *sizeSearch) bool {
	return z.probeID == 0 || z.searching || z.misses > 0 || now-z.probeID >= meteredSizeRetry
}

// noteDataArrivals records by which paths data has arrived. It is called with mu held.
func (t *Tunnel) noteDataArrivals(now time.Duration, paths uint64) {
	for ; paths != 0; paths &= paths - 1 {
		if p := t.paths[bits.TrailingZeros64(paths)]; p != nil {
			p.metering.dataHeardAt = now
		}
	}
}

// askPaths returns the set of paths on which a message that nobody has asked for may be
// sent now.
func (t *Tunnel) askPaths(now time.Duration) (set uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 && p.mayAsk(now) {
			set |= 1 << p.id
		}
	}
	return set
}

// sealBytes returns how many bytes a seal adds to a packet. It is called with mu held.
func (t *Tunnel) sealBytes() int {
	if t.session.keys == nil {
		return 0
	}
	return secure.Overhead
}
