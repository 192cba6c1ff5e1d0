package tunnel

import (
	"math"
	"time"

	"cleat/tunnel/wire"
)

// gap is what a path has skipped: path sequence numbers in [from, to).
type gap struct {
	from, to uint32
	at       time.Duration // when it was skipped
}

func (g *gap) contains(seq uint32) bool { return seq-g.from < g.to-g.from }

// gaps are what a path has skipped lately. On a path that keeps the order, a packet that is
// skipped is lost. On one that does not, it may only be late, so a gap is reported as missing
// after the time in which most late packets have come (tolerance).
type gaps struct {
	open      []gap   // not reported yet, oldest first
	closed    [16]gap // reported, in a ring
	nClosed   int
	tolerance time.Duration // 0: the path keeps the order
	latest    time.Duration // greatest lateness since reviewedAt
	reviewed  time.Duration // when tolerance was last lowered
}

const (
	maxTolerance    = 100 * time.Millisecond
	maxOpenGaps     = 256
	toleranceReview = 2 * time.Second
)

// add adds a gap. It reports whether the gap must be reported at once.
func (g *gaps) add(x gap) bool {
	if g.tolerance == 0 {
		g.close(x)
		return true
	}
	g.open = append(g.open, x)
	return false
}

func (g *gaps) close(x gap) {
	g.closed[g.nClosed%len(g.closed)] = x
	g.nClosed++
}

// noteLate records that a packet has come that was skipped.
func (g *gaps) noteLate(now time.Duration, seq uint32) {
	for i := range g.open {
		x := g.open[i]
		if !x.contains(seq) {
			continue
		}
		g.noteLateness(now - x.at)
		rest := [2]gap{{x.from, seq, x.at}, {seq + 1, x.to, x.at}}
		switch first, second := rest[0].from != rest[0].to, rest[1].from != rest[1].to; {
		case first && second:
			g.open[i] = rest[0]
			g.open = append(g.open[:i+1], append([]gap{rest[1]}, g.open[i+1:]...)...)
		case first:
			g.open[i] = rest[0]
		case second:
			g.open[i] = rest[1]
		default:
			g.open = append(g.open[:i], g.open[i+1:]...)
		}
		return
	}
	for i := range min(g.nClosed, len(g.closed)) {
		if x := &g.closed[i]; x.contains(seq) {
			g.noteLateness(now - x.at)
			return
		}
	}
}

func (g *gaps) noteLateness(late time.Duration) {
	g.latest = max(g.latest, late)
	g.tolerance = max(g.tolerance, min(late+late/4, maxTolerance))
}

// expire passes the gaps that have been open for too long to report.
func (g *gaps) expire(now time.Duration, report func(gap)) {
	if now-g.reviewed > toleranceReview {
		g.tolerance = min(g.latest+g.latest/4, maxTolerance)
		g.latest, g.reviewed = 0, now
	}
	n := 0
	for n < len(g.open) && (now-g.open[n].at >= g.tolerance || len(g.open)-n > maxOpenGaps) {
		report(g.open[n])
		g.close(g.open[n])
		n++
	}
	g.open = append(g.open[:0], g.open[n:]...)
}

// reportable returns the highest path sequence number up to which it is known what has
// arrived.
func (g *gaps) reportable(highest uint32) uint32 {
	if len(g.open) > 0 {
		return g.open[0].from - 1
	}
	return highest
}

// recordGap records that a path has skipped n packets before one.
func (in *inbound) recordGap(now time.Duration, r *receivedPath, s *wire.Shim, n int) {
	x := gap{from: s.PathSeq - uint32(n), to: s.PathSeq, at: now}
	if r.gaps.add(x) {
		in.reportMissing(r, int(s.Path), x)
		in.reporter.urgent = true
	}
	to := s.Seq
	if s.Kind == wire.Resend { // a resent packet has an old number: the lost ones may have any number above the path's last
		to = r.lastSeq + 1<<15
	}
	in.buf.Hole(int(s.Path), r.lastSeq+1, to, now+r.gaps.tolerance+in.repairTime())
}

// reportMissing adds a gap to the next report.
func (in *inbound) reportMissing(r *receivedPath, path int, x gap) {
	n := x.to - x.from
	in.t.stats.missing.Add(uint64(n))
	if len(r.missing) < maxMissing {
		r.missing = append(r.missing, wire.Missing{Path: uint8(path), First: x.from, Count: uint16(min(n, math.MaxUint16))})
	}
}
