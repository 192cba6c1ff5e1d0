package sched

import (
	"math"
	"time"
)

// cubic is the congestion window of one CUBIC connection (RFC 9438) that has no other end: what
// a path may have in flight beside others.
type cubic struct {
	bytes     float64
	threshold float64       // slow start ends here, bytes; +Inf before the first loss
	most      float64       // before the last decrease, bytes
	reno      float64       // Reno's window after the same losses, bytes
	epoch     time.Duration // time of the last decrease, and later by times without growth
	updatedAt time.Duration
	recoverTo uint32 // packets before this one were sent before the last decrease
	decreased bool   // there has been one

	// Of slow start, by round trips.
	roundEnd                 time.Duration
	shortest, shortestBefore time.Duration // round trip of this one and of the last
}

const (
	cubicC    = 0.4 // packets/s³, RFC 9438 section 5.1
	cubicBeta = 0.7 // section 4.6
)

func newCubic(now time.Duration, bytes float64) cubic {
	return cubic{bytes: max(bytes, firstWindowBytes), threshold: math.Inf(1), epoch: now, updatedAt: now}
}

// lose responds to the loss of packets up to path sequence number highest, once for all that
// were sent before the last response. next is the number of the next packet.
func (w *cubic) lose(now time.Duration, highest, next uint32) {
	if w.decreased && int32(highest-w.recoverTo) < 0 {
		return
	}
	most := w.bytes
	if most < w.most { // there is less for each, and leaving some is fair (section 4.7)
		most *= (1 + cubicBeta) / 2
	}
	w.most, w.bytes = most, max(w.bytes*cubicBeta, 2*fullPacketBytes)
	w.threshold, w.reno, w.epoch, w.updatedAt = w.bytes, w.bytes, now, now
	w.decreased, w.recoverTo = true, next
}

// acknowledge grows the window by what the arrival of bytes allows. A window that was not used
// does not grow (section 5.8).
func (w *cubic) acknowledge(now time.Duration, bytes float64, rtt time.Duration, used bool) {
	elapsed := now - w.updatedAt
	w.updatedAt = now
	switch {
	case !used:
		w.epoch += elapsed
	case w.bytes < w.threshold:
		w.bytes += bytes
		w.endSlowStart(now, rtt)
	default:
		t := (now - w.epoch + rtt).Seconds()
		t -= math.Cbrt(max(w.most-w.threshold, 0) / fullPacketBytes / cubicC)
		target := min(max(w.most+cubicC*t*t*t*fullPacketBytes, w.bytes), 1.5*w.bytes)
		rounds := bytes / w.bytes
		w.reno += 3 * (1 - cubicBeta) / (1 + cubicBeta) * fullPacketBytes * rounds
		w.bytes = max(w.bytes+(target-w.bytes)*rounds, w.reno)
	}
}

// endSlowStart ends slow start when the round trip grows (HyStart, RFC 9406 section 4.2).
func (w *cubic) endSlowStart(now, rtt time.Duration) {
	if now < w.roundEnd {
		w.shortest = min(w.shortest, rtt)
		return
	}
	if w.shortestBefore > 0 && w.shortest >= w.shortestBefore+hystartLimit(w.shortestBefore) {
		w.threshold, w.most, w.reno, w.epoch = w.bytes, w.bytes, w.bytes, now
		return
	}
	w.roundEnd, w.shortestBefore, w.shortest = now+rtt, w.shortest, rtt
}

// hystartLimit returns by how much longer than the shortest round trip one must be for HyStart to
// take it for a queue.
func hystartLimit(shortest time.Duration) time.Duration {
	return min(max(shortest/8, 4*time.Millisecond), 16*time.Millisecond)
}
