package tunnel

import (
	"fmt"
	"math"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// A path may drop big packets without telling anybody: a router in between has a smaller
// MTU, and its ICMP errors are filtered. What is lost then is lost each time it is sent.
// So packets of the path's full size ask for an echo every now and then (RFC 8899,
// datagram packetization layer path MTU discovery), each followed by a small one. When
// only the small one comes back, several times, the size that arrives is searched for,
// and the path's MTU follows. Such packets are in no path's books: their loss says
// nothing of the path's rate.
//
// A path that loses packets of any size is none of that, nor is one with a queue that has room
// for small ones only: it takes the more questions the more of the small ones are lost, the size
// that was doubted is asked for once more when another has been found, and data of that size
// that has arrived answers, too.

const (
	sizeLeast4 = 576  // bytes: what every IPv4 host takes (RFC 791)
	sizeLeast6 = 1280 // bytes: what every IPv6 link carries (RFC 8200 section 5)
	sizeStep   = 8    // bytes: a search is over when it is that close

	sizeChance = 1e-4 // that misses in a row are those of a path that loses packets of any size
	mostMisses = 20   // for which that is seen to
	sizeMemory = 16   // questions by which the share of the small ones that are lost is told

	sizeEvery   = time.Second            // on a path with data
	sizeIdle    = 30 * time.Second       // on one without
	sizeDoubted = 100 * time.Millisecond // at least between two because of losses
	sizeRaise   = time.Minute            // between two tries of what has not worked
	sizeLate    = 20 * time.Millisecond  // by how much the big one may come after the small one
	sizeGiveUp  = time.Second            // when neither comes back
)

// sizes finds what size a path's packets may have, in bytes with all headers.
type sizes struct {
	top       int // that the device carries: it is not exceeded
	low, high int // in a search: the largest that arrives; the largest that may
	searching bool
	doubted   int           // the size that has worked, until it has been asked for once more; 0: none
	last      bool          // it is asked for
	share     float64       // of the small ones that is lost
	asked     int           // the size of the packet on its way; 0: none is
	at        time.Duration // when it was sent: its echo is told by that
	small     time.Duration // the same of the small one behind it; 0: it came back
	answered  time.Duration // when that was
	misses    int           // of this size, in a row
	due       time.Duration // when to ask next
	raise     time.Duration // when to try more again
}

// begin begins with an MTU that is as likely as not.
func (z *sizes) begin(mtu int) { *z = sizes{top: mtu, low: mtu, high: mtu} }

// next is the size to ask for now; 0: nothing is due.
func (z *sizes) next(now time.Duration) int {
	if z.asked > 0 || now < z.due {
		return 0
	}
	if !z.searching && z.low < z.top && now >= z.raise {
		z.high, z.searching = z.top, true
	}
	switch {
	case z.last:
		return z.doubted
	case z.searching:
		return (z.low + z.high + 1) / 2
	}
	return z.low
}

// tries is how many misses in a row tell that a size does not arrive. The share that is lost
// may be more than what has been seen.
func (z *sizes) tries() int {
	n := math.Log(sizeChance) / math.Log(min(z.share+1./sizeMemory, 0.99))
	return min(int(math.Ceil(n)), mostMisses)
}

// sent notes that the packets have been sent.
func (z *sizes) sent(size int, big, small time.Duration) {
	z.asked, z.at, z.small, z.answered = size, big, small, 0
}

// doubt has the size be tried soon: something was lost.
func (z *sizes) doubt(now time.Duration) {
	if z.asked == 0 && !z.searching && now-z.at > sizeDoubted {
		z.due = now
	}
}

// echo takes what came back. It tells whether that was the big packet, and whether either.
func (z *sizes) echo(now, sent time.Duration) (big, ours bool) {
	switch {
	case z.asked == 0:
	case sent == z.at:
		return true, true
	case sent == z.small:
		z.small, z.answered = 0, now
		return false, true
	}
	return false, false
}

// missed tells whether the packet on its way is to be taken for lost, because what was
// sent behind it is long back. Without that nothing is known.
func (z *sizes) missed(now, rtt time.Duration) bool {
	if z.asked > 0 && z.small != 0 && now-z.at > sizeGiveUp+rtt {
		z.asked, z.due = 0, now
		z.share += (1 - z.share) / sizeMemory
	}
	return z.asked > 0 && z.small == 0 && now-z.answered > sizeLate+rtt/2
}

// arrived and lost end the question. They return the MTU if it is another now, else 0.
func (z *sizes) arrived(now, every time.Duration) int {
	z.low = z.asked
	z.asked, z.misses, z.due = 0, 0, now
	return z.narrow(now, every)
}

func (z *sizes) lost(now, every time.Duration, least int) int {
	size := z.asked
	z.asked, z.due = 0, now
	z.misses++
	z.share -= z.share / sizeMemory
	switch {
	case z.misses < z.tries():
		return 0
	case z.last:
		z.last, z.doubted = false, 0
	case z.searching:
		z.high = max(size-1, z.low)
	default:
		z.low, z.high, z.searching, z.doubted = min(least, size), max(size-1, least), true, size
	}
	z.misses = 0
	return z.narrow(now, every)
}

// carried takes note that a packet of a size has arrived, or a longer one.
func (z *sizes) carried(now, every time.Duration, size int) int {
	switch {
	case z.doubted > 0 && size >= z.doubted:
		z.low, z.last, z.asked = z.doubted, true, 0
	case z.searching || size < z.low:
		return 0
	}
	z.misses = 0
	return z.narrow(now, every)
}

// narrow ends a search that is close enough.
func (z *sizes) narrow(now, every time.Duration) int {
	if z.searching && z.low < z.doubted && z.high-z.low < sizeStep {
		z.last = true
		return 0
	}
	if z.searching && !z.last && z.high-z.low >= sizeStep {
		return 0
	}
	found := 0
	if z.searching {
		found, z.raise = z.low, now+sizeRaise
	}
	z.searching, z.high, z.due = false, z.low, now+every
	z.last, z.doubted = false, 0
	return found
}

// sizesEvery is how often a path's size is asked for. The lock is held.
func (p *path) sizesEvery(now time.Duration) time.Duration {
	if p.data || now-p.last < sizeEvery {
		return sizeEvery
	}
	return sizeIdle
}

func (p *path) least() int {
	if p.v6 {
		return min(sizeLeast6, p.sizes.top)
	}
	return min(sizeLeast4, p.sizes.top)
}

// askSize asks whether packets of a path's size arrive. The lock is held.
func (o *outbound) askSize(now time.Duration, p *path, sp *sched.Path) {
	z := &p.sizes
	if !sp.Live() {
		z.asked, z.misses = 0, 0
		return
	}
	if p.data && z.due > now+sizeEvery {
		z.due = now // there was no data so far
	}
	if z.missed(now, sp.RoundTrip()) {
		o.t.resize(p, z.lost(now, p.sizesEvery(now), p.least()))
	}
	size := z.next(now)
	if size == 0 {
		return
	}
	big, small := now+1, now+2 // an echo that is about the round trip may carry now
	z.sent(size, big, small)
	o.t.sendEcho(now, p, big, size)
	o.t.sendEcho(now, p, small, 0)
}

// sendEcho asks for an echo by a packet of a size, 0: as small as may be. The lock is
// held.
func (t *Tunnel) sendEcho(now time.Duration, p *path, value time.Duration, size int) {
	b := make([]byte, wire.HeaderBytes, max(size, 64)+secure.Overhead)
	b = wire.Append(b, wire.TypeEcho, echo{p.id, value}.append(nil))
	if n := size - Overhead(p.v6, t.sess.keys != nil) + wire.HeaderBytes - len(b); n > 0 {
		b = wire.AppendPad(b, n)
	}
	t.sendControl(now, p, b)
}

// sized takes an echo that came back. It tells whether it was about a size. The lock is
// held.
func (t *Tunnel) sized(now time.Duration, p *path, sent time.Duration) bool {
	big, ours := p.sizes.echo(now, sent)
	if big {
		t.resize(p, p.sizes.arrived(now, p.sizesEvery(now)))
	}
	return ours
}

// resize gives a path another MTU; 0: it keeps the one it has. What was cut for the old
// one and still waits to be sent again would never arrive. The lock is held.
func (t *Tunnel) resize(p *path, mtu int) {
	if mtu == 0 || mtu == p.mtu {
		return
	}
	p.mtu = mtu
	t.tell(Event{Path: p.Name, What: Resized, Err: fmt.Errorf("packets of up to %d bytes arrive", mtu)})
	limit := t.limit()
	var fitting backlog
	for ; t.again.len() > 0; t.again.drop() {
		if pc := t.again.first(); pc.e.split.MaxBytes() <= limit {
			fitting.add(*pc)
		} else {
			t.arena.release(pc.e)
		}
	}
	t.again = fitting
}

// unfit takes packets off the queue that were let in when the paths carried bigger ones.
// The lock is held.
func (o *outbound) unfit() {
	for o.waiting() && o.queue[o.head].split.MaxBytes() > o.limit {
		e := o.queue[o.head]
		o.refuse(e.pkt, o.limit)
		o.drop(e)
	}
}
