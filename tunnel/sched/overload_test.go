package sched

import (
	"testing"
	"time"
)

// TestOverload checks that losses lower the rate of a policed path and not that of a lossy
// one.
func TestOverload(t *testing.T) {
	tests := []struct {
		name    string
		policed bool
		loss    float64
		least   float64 // share of the link's rate
		most    float64 // share of packets lost
	}{
		{"policed", true, 0, 0.9, 0.05},
		{"policed and lossy", true, 0.02, 0.85, 0.08},
		{"lossy", false, 0.03, 0.93, 0.04},
		{"very lossy", false, 0.15, 0.8, 0.16},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const rate = 50e6 / 8
			l := newLink(rate, 10*ms)
			l.loss, l.policed = tt.loss, tt.policed
			l.run(5*time.Second, 2*rate)
			sent, lost := l.p.ledger.nextSeq, l.lost
			l.run(5*time.Second, 2*rate)
			share, loss := float64(l.bytes)/5/rate, float64(l.lost-lost)/float64(l.p.ledger.nextSeq-sent)
			t.Logf("%.1f %% of the link used, %.1f %% lost", share*100, loss*100)
			if share < tt.least || loss > tt.most {
				t.Errorf("%.1f %% of the link used, want %.0f; %.1f %% lost, want at most %.0f", share*100, tt.least*100, loss*100, tt.most*100)
			}
		})
	}
}
