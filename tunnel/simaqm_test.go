package tunnel

import (
	"math"
	"time"

	"cleat/packet"
)

// simAQM is an active queue management that marks packets instead of dropping them. It is
// asked about each packet that leaves the queue, how long the packet has waited, and how many
// bytes wait behind it.
type simAQM interface {
	marks(now, waited time.Duration, backlog int) bool
}

// simStepMarker marks each packet that has waited for longer than a threshold, as the low-latency
// queue of RFC 9332 does, and switches in data centres for DCTCP (RFC 8257).
type simStepMarker struct{ threshold time.Duration }

func (a simStepMarker) marks(_, waited time.Duration, backlog int) bool {
	return waited > a.threshold && backlog > simSize
}

// simCoDel is CoDel as in RFC 8289.
type simCoDel struct {
	target, interval time.Duration

	firstAbove, next time.Duration
	count, lastCount int
	dropping         bool
}

func (a *simCoDel) marks(now, waited time.Duration, backlog int) bool {
	ok := false
	switch {
	case waited < a.target || backlog <= simSize:
		a.firstAbove = 0
	case a.firstAbove == 0:
		a.firstAbove = now + a.interval
	default:
		ok = now >= a.firstAbove
	}
	switch {
	case !ok:
		a.dropping = false
		return false
	case a.dropping:
		if now < a.next {
			return false
		}
		a.count++
		a.next += a.spacing()
		return true
	}
	a.dropping = true
	delta := a.count - a.lastCount
	a.count = 1
	if delta > 1 && now-a.next < 16*a.interval {
		a.count = delta
	}
	a.lastCount, a.next = a.count, now+a.spacing()
	return true
}

func (a *simCoDel) spacing() time.Duration {
	return time.Duration(float64(a.interval) / math.Sqrt(float64(a.count)))
}

// simECT is the header of an inner packet whose sender supports ECN.
var simECT = [packet.IPv4Bytes]byte{0x45, 2}

// leave passes a packet that leaves the queue on. It is marked if the AQM wants that and its
// sender supports ECN.
func (s *simShaper) leave(now time.Duration, w simWaiting) {
	if s.aqm != nil {
		s.waits = append(s.waits, now-w.at)
		s.marks = s.aqm.marks(now, now-w.at, s.bytes) && w.ect
		if s.marks {
			s.marked++
		}
	}
	w.pass()
	s.marks = false
}
