package tunnel

import (
	"testing"
	"time"
)

// TestSimulatedBreaker has paths lose much, whatever they are sent, and later nothing.
func TestSimulatedBreaker(t *testing.T) {
	link := func(rate, loss float64) *simLink {
		return &simLink{rate: mbit(rate), delay: 10 * time.Millisecond, loss: loss}
	}
	flapping := link(20, 0)
	flapping.flapTime = 200 * time.Millisecond
	policer := link(20, 0)
	policer.queue = time.Microsecond
	for _, tt := range []struct {
		name  string
		links []*simLink
		loss  float64 // of all links, for 10 s
		trips bool
	}{
		{"one path", []*simLink{link(20, 0)}, 0.6, true},
		{"two paths", []*simLink{link(20, 0), link(50, 0)}, 0.6, true},
		{"less", []*simLink{link(20, 0)}, 0.25, false},
		{"a policer", []*simLink{policer}, 0, false},
		{"interrupted again and again", []*simLink{flapping}, 0, false},
		{"one of two, which is sidelined", []*simLink{link(5, 0.6), link(50, 0)}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSim(1, tt.links...)
			s.run(3 * time.Second)
			before := s.rate(2 * time.Second)
			set := func(loss float64) {
				for _, l := range tt.links {
					l.loss += loss
				}
			}
			set(tt.loss)
			s.run(8 * time.Second)
			resent, sent := s.resent, s.sentBytes
			s.run(2 * time.Second)
			during, again := float64(s.sentBytes-sent)/2, s.resent-resent
			trips, tripped := uint64(0), 0
			for id := range tt.links {
				st := s.sender.Status(s.now, id)
				trips += st.Trips
				if st.Tripped {
					tripped++
				}
			}
			set(-tt.loss)
			took := time.Duration(0)
			for ; took < 30*time.Second && s.rate(500*time.Millisecond) < 0.8*before; took += 500 * time.Millisecond {
			}
			t.Logf("%d trips; %.1f Mbit/s before; %.2f Mbit/s are sent, and %d packets again in 2 s; %v later 80 %% is carried again", trips, before*8/1e6, during*8/1e6, again, took)
			switch {
			case !tt.trips && trips > 0:
				t.Errorf("%d trips", trips)
			case tt.trips && tripped < len(tt.links):
				t.Errorf("%d of %d paths have tripped", tripped, len(tt.links))
			case tt.trips && (during > float64(len(tt.links))*1.2*mbit(0.064) || again > 0):
				t.Errorf("%.0f bytes/s are sent, %d packets again", during, again)
			case tt.trips && took > 15*time.Second:
				t.Errorf("the rate has not returned after %v", took)
			}
		})
	}
}
