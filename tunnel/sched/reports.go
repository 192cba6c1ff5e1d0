package sched

import "time"

// reportShare is the part of a slow path's rate, one in reportShare, that reports may take. A
// path is slow if reports each reportPeriod would take more. At 1 Mbit/s a report of one path,
// 117 bytes long, is sent each 19 ms. Reports each 10 ms took 12 % of such a path, and 24 % of it
// with 2 % loss in the other direction (simulated). On faster paths reports of losses may come
// more often: there, waiting costs more than it saves. With the share on all paths, the random
// links of kinds lossy and everything carried up to half less.
const (
	reportShare  = 20
	reportPeriod = 10 * time.Millisecond
)

// copyShare is the part of a path's rate, one in copyShare, that second copies of reports may
// take.
const copyShare = 8

// MaxReportInterval is how long a report waits at most for a path's share. With fewer than ten
// reports a second a path that died would be used for too long, and a controller's window, of
// at most maxWindow, would have only one of them. On paths of less than 190 kbit/s reports take
// more than their share for that.
const MaxReportInterval = 100 * time.Millisecond

// reportPath returns the path that delivers a report first, counting the time until its share
// allows one more, or nil if no path is in use. Spare paths are left out if others are in use,
// except while acknowledgements are overdue: the others may be dead.
func (s *Sender) reportPath(now time.Duration, overdue bool) *Path {
	var best, spare *Path
	for _, p := range s.paths {
		of := &best
		if p.Spare && !overdue {
			of = &spare
		}
		if p.Live() && (*of == nil || p.reportCost(now) < (*of).reportCost(now)) {
			*of = p
		}
	}
	if best == nil {
		return spare
	}
	return best
}

// reportCost is transitCost, and the time until the path's share allows a report, in µs.
func (p *Path) reportCost(now time.Duration) float64 {
	return p.transitCost() + float64(max(p.reportsPausedUntil-now, 0).Microseconds())
}

// ReportAt returns when a report may be sent, if the last one was sent at a given time: when
// the share of the path that delivers it first allows it, but not more than MaxReportInterval
// after the last one.
func (s *Sender) ReportAt(now, last time.Duration) time.Duration {
	p := s.reportPath(now, s.AckOverdue(now))
	if p == nil {
		return now
	}
	return max(now, min(p.reportsPausedUntil, last+MaxReportInterval))
}

// ReportPaths returns the paths that carry a report of size bytes: the one that delivers it
// first, and one of the others in turn, because the first may be dead and nobody knows yet.
// Second copies leave a slow path half of its share. If no path is in use, all of them carry the
// report: they come back only by reports.
func (s *Sender) ReportPaths(now time.Duration, size int) (set uint64) {
	overdue := s.AckOverdue(now)
	first := s.reportPath(now, overdue)
	if first == nil {
		for _, p := range s.paths {
			set |= 1 << p.ID
		}
		return set
	}
	first.takeReport(now, size)
	set = 1 << first.ID
	for range s.paths {
		s.reportTurn++
		p := s.paths[s.reportTurn%len(s.paths)]
		if p != first && p.Live() && (overdue || !p.Spare) && now >= p.copiesPausedUntil && now >= p.reportsPausedUntil+p.reportPause(size) {
			p.copiesPausedUntil = now + p.TransmitTime(copyShare*size)
			p.takeReport(now, size)
			return set | 1<<p.ID
		}
	}
	return set
}

// reportPause returns how long a report of size bytes takes up the share of a slow path, or 0
// if the path is not slow.
func (p *Path) reportPause(size int) time.Duration {
	if d := p.TransmitTime(reportShare * size); d > reportPeriod {
		return d
	}
	return 0
}

// takeReport counts a report of size bytes as part of a slow path's share, and of its rate.
func (p *Path) takeReport(now time.Duration, size int) {
	pause := p.reportPause(size)
	if pause == 0 {
		return
	}
	p.reportsPausedUntil = min(max(p.reportsPausedUntil, now)+pause, now+2*MaxReportInterval)
	p.pacer.advance(now)
	p.pacer.backlogBytes += float64(size)
}

// slowedByReports reports whether reports take their share of a slow path.
func (p *Path) slowedByReports(now time.Duration) bool {
	return p.reportsPausedUntil > 0 && now-p.reportsPausedUntil <= 2*MaxReportInterval
}

// SetReportInterval sets how often the peer reports at least while packets arrive.
func (s *Sender) SetReportInterval(d time.Duration) {
	for _, p := range s.paths {
		p.reportInterval = d
	}
	s.reportInterval = d
}
