package tunnel

import (
	"cmp"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// receiver returns what this end announces about how it receives. It is called with mu held.
func (t *Tunnel) receiver() wire.Receiver {
	return wire.Receiver{
		Hold:        cmp.Or(time.Duration(t.hold.Load()), order.DefaultHold),
		ReportEvery: max(time.Duration(t.reportEvery.Load()), reportEvery),
	}
}

// minPeerHold bounds what the peer announces. Nothing is kept for longer than maxKeepTime.
const minPeerHold = 10 * time.Millisecond // spec.MinHold

// setPeer accepts what the peer announces about how it receives, within bounds. It is called
// with mu held.
func (t *Tunnel) setPeer(r wire.Receiver) {
	r.Hold = min(max(r.Hold, minPeerHold), maxKeepTime)
	r.ReportEvery = min(r.ReportEvery, sched.MaxReportInterval)
	t.session.peer = r
	t.sender.SetReportInterval(r.ReportEvery)
}

// reportAt returns when a report may be sent. A peer that does not announce how it receives is
// an older one, which takes acknowledgements for overdue, and probes all paths each 5 ms, if
// reports come less often than each reportEvery.
func (t *Tunnel) reportAt(now, last time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session.peer == (wire.Receiver{}) || !t.session.up {
		return now
	}
	return t.sender.ReportAt(now, last)
}
