package sched

import (
	"testing"
	"time"
)

// A queue is others' only if nothing of the path arrived while it drained.
func TestParticipation(t *testing.T) {
	tests := []struct {
		name    string
		reports []Report
		silence float64
	}{
		{"all arrived long before", []Report{{HighestSeq: 9, Arrived: 1000}, {HighestSeq: 20, Arrived: 51000}}, 50000},
		{"probes during the pause", []Report{{HighestSeq: 9, Arrived: 1000}, {HighestSeq: 15, Arrived: 30000}, {HighestSeq: 20, Arrived: 51000}}, 50000},
		{"right behind the path's own", []Report{{HighestSeq: 7, Arrived: 1000}, {HighestSeq: 21, Arrived: 51000}}, 0},
		{"the last one before is lost", []Report{{HighestSeq: 8, Arrived: 1000}, {HighestSeq: 12, Arrived: 41000}, {HighestSeq: 20, Arrived: 51000}}, 10000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := participation{on: true, over: true, pauseSeq: 10}
			for _, r := range tt.reports {
				j.note(r, 20)
			}
			if j.silence != tt.silence {
				t.Errorf("silence of %v µs, want %v", j.silence, tt.silence)
			}
		})
	}
}

// contended returns a Sender with contended paths of the given delays and queues, in µs.
func contended(delays, queues []float64) *Sender {
	s := &Sender{}
	for i, delay := range delays {
		p := s.Add(0, i, 1, 0)
		p.delay.minimum.set(0, delay)
		p.delay.minRTT = microseconds(2 * delay)
		p.contend(0, queues[i])
	}
	return s
}

// Paths with one queue share the window of the shortest, others don't.
func TestLeaders(t *testing.T) {
	s := contended([]float64{30000, 5000, 5100, 20000, 1000}, []float64{50000, 52000, 49000, 51000, 90000})
	s.checkContention(time.Millisecond)
	for id, want := range []int{1, 1, 1, 1, 4} {
		if got := s.byID[id].contention.leader; got.ID != want {
			t.Errorf("path %d follows %d, want %d", id, got.ID, want)
		}
	}
	if got, want := s.byID[0].pacer.rate, followerShare*s.byID[1].pacer.rate; got > max(want, minRate) {
		t.Errorf("a follower is sent %.0f bytes/s, want %.0f", got, want)
	}
	// Queues that differ for a moment only mean nothing.
	s.byID[0].contention.level = 10000
	s.checkContention(2 * time.Millisecond)
	if !s.byID[0].follows() {
		t.Error("a path left its leader at once")
	}
	s.checkContention(3*time.Millisecond + apartTime)
	if s.byID[0].follows() {
		t.Error("a path whose queue differs still follows")
	}
}

// A path goes on yielding if the others carry more than it ever did.
func TestContentionMatters(t *testing.T) {
	s := anchorPaths([]time.Duration{time.Millisecond, time.Millisecond}, 100e6, 20e6)
	for _, p := range s.Paths() {
		p.control.saturated, p.control.capacity = true, p.pacer.rate
	}
	s.checkContention(time.Second)
	if fast, slow := s.byID[0].contention.matters, s.byID[1].contention.matters; !fast || slow {
		t.Errorf("others' queue matters: fast path %v, slow path %v", fast, slow)
	}
}

// A path whose leader is removed takes over.
func TestLeaderRemoved(t *testing.T) {
	s := contended([]float64{5000, 30000}, []float64{50000, 90000})
	follower := s.byID[1]
	follower.contention.level = 50000
	s.checkContention(time.Millisecond)
	if !follower.follows() {
		t.Fatal("the longer path has no leader")
	}
	follower.contention.level = 90000 // not the queue of the path that is removed
	s.Remove(0)
	s.checkContention(2 * time.Millisecond)
	if follower.follows() {
		t.Error("it follows a path that does not exist any more")
	}
}
