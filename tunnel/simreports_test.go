package tunnel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSimulatedReports measures what share of a slow way back reports take, and what is
// carried meanwhile.
func TestSimulatedReports(t *testing.T) {
	type link struct{ rate, back, loss float64 } // Mbit/s
	for _, tt := range []struct {
		name  string
		links []link
		tcp   bool
		share float64 // of each way back, at most, 0…1
		least float64 // of the sum that must be carried
	}{
		{"one path", []link{{100, 1, 0}}, false, 0.055, 0.97},
		{"one path, lossy", []link{{100, 1, 0.02}}, false, 0.055, 0.93},
		{"one path, TCP", []link{{20, 1, 0}}, true, 0.055, 0.9},
		{"two paths", []link{{20, 1, 0}, {20, 1, 0}}, false, 0.055, 0.97},
		{"beside a fast one", []link{{20, 1, 0}, {100, 100, 0}}, false, 0.055, 0.97},
		{"very slow", []link{{20, 0.3, 0}}, false, 0.055, 0.97},
		{"fast", []link{{100, 100, 0}}, false, 0.01, 0.97},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			clock, rng := &simClock{now: time.Second}, rand.New(rand.NewPCG(1, 7))
			var there, back []*simLink
			for i, l := range tt.links {
				delay := time.Duration(10+i) * time.Millisecond
				there = append(there, &simLink{rate: mbit(l.rate), delay: delay, loss: l.loss})
				back = append(back, &simLink{rate: mbit(l.back), delay: delay, queue: 200 * time.Millisecond})
			}
			s := newDirections(clock, rng, there, back)
			if tt.tcp {
				newSimTCP(s.simClock, 0, s.offer, s.reverse.offer)
			} else {
				s.endless = true
			}
			s.run(4 * time.Second)
			before, beforeReports := slices.Clone(s.reverse.reportBytes), s.in.t.stats.reports.Load()
			const d = 4 * time.Second
			carried := s.rate(d) / s.sum()
			share := 0.0
			for i, l := range back {
				share = max(share, float64(s.reverse.reportBytes[i]-before[i])/d.Seconds()/l.rate)
			}
			t.Logf("reports take %.1f %% of a way back, one each %v; %.1f %% of the sum is carried", 100*share, d/time.Duration(s.in.t.stats.reports.Load()-beforeReports), 100*carried)
			if share > tt.share || carried < tt.least {
				t.Errorf("reports take %.1f %% of a way back, want at most %.1f; %.1f %% of the sum is carried, want %.0f", 100*share, 100*tt.share, 100*carried, 100*tt.least)
			}
		})
	}
}
