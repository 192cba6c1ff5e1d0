package sched

import (
	"testing"
	"time"
)

// TestReportPaths checks that reports take the best path and, without filling them, one of the
// others.
func TestReportPaths(t *testing.T) {
	s := newSender(4)
	for id, delay := range []time.Duration{9 * ms, 2 * ms, ms, 5 * ms} {
		deliverTwo(s.Path(id), delay)
		s.Path(id).pacer.rate = 1e6
	}
	s.Path(2).loss.ratio = 0.1
	s.Path(3).ledger.reported = false
	tests := []struct{ size, want int }{
		{100, 1000 / 3}, // the others take turns
		{500, 1000 / 3},
		{1000, 1000 / 4}, // 20 ms of a slow path's share, of which copies take half
	}
	now := time.Duration(0)
	for _, tt := range tests {
		var carried [4]int
		for range 999 {
			now += 10 * ms
			s.Path(1).reportsPausedUntil = 0
			set := s.ReportPaths(now, tt.size)
			if set&(1<<1) == 0 {
				t.Fatalf("report goes by paths %b, not by the best", set)
			}
			for _, id := range PathIDs(set) {
				carried[id]++
			}
		}
		for _, id := range []int{0, 2, 3} {
			if carried[id] < tt.want-1 || carried[id] > tt.want+1 {
				t.Errorf("reports of %d bytes per path: %v, want %d on each of the others", tt.size, carried, tt.want)
				break
			}
		}
	}
	for id := range 4 {
		s.SetUp(id, false)
	}
	if set := s.ReportPaths(time.Second, 500); set != 0b1111 {
		t.Errorf("with no path in use, reports go by paths %b, want all", set)
	}
	if at := s.ReportAt(time.Second, time.Second); at != time.Second {
		t.Errorf("with no path in use, a report waits for %v", at-time.Second)
	}
}

// TestReportShares has reports be due each 10 ms, and checks which share of each path they take
// and how often they are sent.
func TestReportShares(t *testing.T) {
	type path struct {
		mbit  float64
		delay time.Duration
	}
	const size, duration = 120, 20 * time.Second
	tests := []struct {
		name     string
		paths    []path
		interval time.Duration // on average
		capped   bool          // the interval is MaxReportInterval, whatever the share
	}{
		{"fast", []path{{100, 5 * ms}}, 10 * ms, false},
		{"slow", []path{{1, 5 * ms}}, 19200 * time.Microsecond, false},
		{"two slow ones", []path{{1, 5 * ms}, {1, 6 * ms}}, 10 * ms, false},
		{"very slow", []path{{0.1, 5 * ms}}, MaxReportInterval, true},
		{"slow, and a fast one that is a little longer", []path{{1, 5 * ms}, {100, 8 * ms}}, 10 * ms, false},
		{"slow, and a fast one that is much longer", []path{{1, 5 * ms}, {100, 100 * ms}}, 19200 * time.Microsecond, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSender(len(tt.paths))
			for id, p := range tt.paths {
				deliverTwo(s.Path(id), p.delay)
				s.Path(id).pacer.rate = p.mbit * 1e6 / 8
			}
			bytes := make([]int, len(tt.paths))
			reports, last, longest := 0, time.Duration(0), time.Duration(0)
			for now := 10 * ms; now < duration; now += ms / 10 {
				if now < last+10*ms || s.ReportAt(now, last) > now {
					continue
				}
				for _, id := range PathIDs(s.ReportPaths(now, size)) {
					bytes[id] += size
				}
				reports, last, longest = reports+1, now, max(longest, now-last)
			}
			if interval := duration / time.Duration(reports); interval > tt.interval*21/20 || interval < tt.interval*19/20 || longest > MaxReportInterval {
				t.Errorf("a report each %v, at most %v apart; want %v", interval, longest, tt.interval)
			}
			for id, p := range tt.paths {
				if share := float64(bytes[id]*8) / (p.mbit * 1e6 * duration.Seconds()); !tt.capped && share > 0.0502 {
					t.Errorf("reports take %.1f %% of path %d", 100*share, id)
				}
			}
		})
	}
}

// TestReportDebt checks that a path that was too slow for its reports does not pay for them
// when it becomes fast.
func TestReportDebt(t *testing.T) {
	s := newSender(1)
	p := s.Path(0)
	deliverTwo(p, ms)
	p.pacer.rate = minRate
	now := time.Duration(0)
	for range 1000 {
		now = s.ReportAt(now, now)
		s.ReportPaths(now, 1000)
	}
	if wait := s.ReportAt(now, now) - now; wait > MaxReportInterval {
		t.Errorf("a report waits for %v", wait)
	}
	p.pacer.rate = 1e9
	if wait := p.reportsPausedUntil - now; wait > 2*MaxReportInterval {
		t.Errorf("the share allows a report after %v", wait)
	}
}

// TestReportsTakeRoom checks that reports take part of a slow path's rate.
func TestReportsTakeRoom(t *testing.T) {
	for rate, want := range map[float64]int{1e6 / 8: 100, 100e6 / 8: 0} {
		s := newSender(1)
		p := s.Path(0)
		p.pacer.rate = rate
		now := time.Second
		before := p.room(now)
		s.ReportPaths(now, 100)
		if got := before - p.room(now); got != want || p.ledger.inFlightBytes != 0 || p.ledger.nextSeq != 0 {
			t.Errorf("%.0f bytes/s: %d bytes of the room are taken, %d are in flight; want %d and none", rate, got, p.ledger.inFlightBytes, want)
		}
	}
}

// TestOverdueFollowsReports checks that acknowledgements are not taken for overdue because the
// peer reports less often.
func TestOverdueFollowsReports(t *testing.T) {
	for _, tt := range []struct {
		interval, after time.Duration
		want            bool
	}{
		{0, 11 * ms, false}, {0, 13 * ms, true},
		{10 * ms, 13 * ms, true},
		{25 * ms, 30 * ms, false}, {25 * ms, 45 * ms, true},
	} {
		s := newSender(1)
		deliverTwo(s.Path(0), ms)
		s.SetReportInterval(tt.interval)
		s.Path(0).Sent(time.Second, 1, 1000)
		if got := s.AckOverdue(time.Second + tt.after); got != tt.want {
			t.Errorf("reports each %v, nothing for %v: overdue %v", tt.interval, tt.after, got)
		}
		s.Add(time.Second, 1, 1, 0)
		if got := s.Path(1).reportInterval; got != tt.interval {
			t.Errorf("a new path counts on reports each %v, want %v", got, tt.interval)
		}
	}
}
