package tunnel

import (
	"cmp"
	"time"

	"cleat/tunnel/order"
)

// A packet that is sent again is of no use once the receiver has stopped waiting for it: the
// packets behind it have been delivered, and its sender has noticed the loss. It would only
// delay those packets that are still waited for. That happens when a path dies and the
// others need long for what it had not delivered.
//
// A loss is queued for resending half a round trip after the receiver has noticed it. The
// receiver waits for the packet for at most its hold time and a round trip from then
// (repairTime), and the packet needs half a round trip to arrive. So it must be sent within
// the hold time. A round trip more is allowed, because the paths' delays differ and the
// receiver gives gaps some time on a path that does not keep the order.

// resendBy returns when it is too late to send a packet again that is found to be lost now.
func resendBy(now, hold, rtt time.Duration) time.Duration { return now + hold + rtt }

// resendBy returns when it is too late to send a packet again that is found to be lost now.
// It is called with mu held.
func (t *Tunnel) resendBy() time.Duration {
	return resendBy(t.now(), t.peerHold(), time.Duration(t.maxRTT.Load()))
}

// peerHold returns how long packets wait at the peer for those before them. An older peer
// does not announce that: it is taken to be configured as this end, and not to wait for
// less than by default. It is called with mu held.
func (t *Tunnel) peerHold() time.Duration {
	return cmp.Or(t.session.peer.Hold, max(time.Duration(t.hold.Load()), order.DefaultHold))
}

// dropLateResends drops packets from the head of the queue that it is too late to send again.
// It is called with mu held.
func (t *Tunnel) dropLateResends(now time.Duration) {
	for t.resends.len() > 0 && now > t.resends.first().resendBy {
		pc := t.resends.first()
		t.stats.lateResends.Add(uint64(pc.n))
		t.arena.release(pc.e)
		t.resends.drop()
	}
}
