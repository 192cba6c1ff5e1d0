package sched

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestOverload checks that losses lower the rate of a policed path and not that of a lossy
// one.
func TestOverload(t *testing.T) {
	tests := []struct {
		name   string
		bucket time.Duration // of a policer
		loss   float64
		least  float64 // share of the link's rate
		most   float64 // share of packets lost
	}{
		{"policed", 5 * ms, 0, 0.95, 0.0125},
		{"policed, bucket of four packets", ms, 0, 0.95, 0.0125},
		{"policed and lossy", 5 * ms, 0.02, 0.95, 0.035},
		{"lossy", 0, 0.03, 0.95, 0.04},
		{"very lossy", 0, 0.15, 0.78, 0.16},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const rate, times = 50e6 / 8, 5
			share, loss := 0.0, 0.0 // mean
			for seed := range uint64(times) {
				l := newLink(rate, 10*ms)
				l.rng = rand.New(rand.NewPCG(seed, 2))
				l.loss, l.bucket = tt.loss, tt.bucket
				l.run(5*time.Second, 2*rate)
				sent, lost := l.p.ledger.nextSeq, l.lost
				l.run(5*time.Second, 2*rate)
				share += float64(l.bytes) / 5 / rate / times
				loss += float64(l.lost-lost) / float64(l.p.ledger.nextSeq-sent) / times
			}
			t.Logf("%.1f %% of the link used, %.1f %% lost", share*100, loss*100)
			if share < tt.least || loss > tt.most {
				t.Errorf("%.1f %% of the link used, want %.0f; %.1f %% lost, want at most %.0f", share*100, tt.least*100, loss*100, tt.most*100)
			}
		})
	}
}

// TestPolicedBursts checks that a policed path whose packets come in bursts loses little and is
// used well: neither the first bursts nor what a rate that is too high loses may pass for usual.
func TestPolicedBursts(t *testing.T) {
	const rate = 100e6 / 8
	for _, pause := range []time.Duration{3 * ms, 30 * ms, 300 * ms} {
		t.Run(pause.String(), func(t *testing.T) {
			l := newLink(rate, 10*ms)
			l.bucket = 1500 * time.Microsecond // a dozen packets
			run := func(d time.Duration) (share, loss float64) {
				sent, lost, bytes, busy := l.p.ledger.nextSeq, l.lost, 0, time.Duration(0)
				for end := l.now + d; l.now < end; {
					l.run(2*pause, 2*rate)
					bytes, busy = bytes+l.bytes, busy+2*pause
					l.run(pause, 0)
				}
				return float64(bytes) / busy.Seconds() / rate, float64(l.lost-lost) / float64(l.p.ledger.nextSeq-sent)
			}
			run(5 * time.Second)
			share, loss := run(5 * time.Second)
			t.Logf("%.1f %% of the link used, %.1f %% lost", share*100, loss*100)
			if share < 0.8 || loss > 0.02 {
				t.Errorf("%.1f %% of the link used, want 80; %.1f %% lost, want at most 2", share*100, loss*100)
			}
		})
	}
}

// TestPolicerChanges checks that a policer's rate is found again when it has changed.
func TestPolicerChanges(t *testing.T) {
	const rate = 20e6 / 8
	for _, delay := range []time.Duration{ms, 10 * ms, 100 * ms} {
		t.Run(delay.String(), func(t *testing.T) {
			l := newLink(rate, delay)
			l.bucket = 5 * ms
			for _, factor := range []float64{1, 10, 1} {
				l.rate = factor * rate
				start := l.now
				for found := false; !found; {
					l.run(200*ms, 30*rate)
					if found = l.p.pacer.rate > 0.9*l.rate && l.p.pacer.rate < 1.1*l.rate; !found && l.now-start > 20*time.Second {
						t.Fatalf("%.0f × the rate not found, but %.2f", factor, l.p.pacer.rate/rate)
					}
				}
				t.Logf("%.0f × found after %v", factor, l.now-start)
				l.run(5*time.Second, 30*rate)
			}
		})
	}
}

// TestPolicedWithReports raises the rate of slow policed paths that carry reports too, as often
// as their share allows. Reports take what such a path is sent beyond its capacity, but it must
// find out that its rate has risen.
func TestPolicedWithReports(t *testing.T) {
	for _, mbit := range []float64{0.1, 0.5, 1} {
		const fast = 20e6 / 8
		l := newLink(mbit*1e6/8, 10*ms)
		l.bucket = time.Duration(20/mbit) * ms
		reportAt := time.Duration(0)
		run := func(d time.Duration) (bytes int) {
			for end := l.now + d; l.now < end; bytes += l.bytes {
				if l.now >= reportAt {
					l.p.takeReport(l.now, 120)
					reportAt = min(l.p.reportsPausedUntil, l.now+MaxReportInterval)
				}
				l.run(10*ms, 2*fast)
			}
			return bytes
		}
		run(20 * time.Second)
		if l.p.control.overload.policed == 0 {
			t.Fatalf("%v Mbit/s: the path has not found its policer", mbit)
		}
		l.rate = fast
		run(20 * time.Second)
		if share := float64(run(time.Second)) / fast; share < 0.9 {
			t.Errorf("%v Mbit/s: %.0f %% of the link used 20 s after its rate rose", mbit, share*100)
		}
	}
}

// TestPacketsShrunk checks that what a path lost because its packets were too big does not
// limit it when they are smaller, and that what is reported of them later does not either.
func TestPacketsShrunk(t *testing.T) {
	const rate = 100e6 / 8
	l := newLink(rate, 10*ms)
	for l.p.control.overload.confirmed == 0 {
		l.loss = 0.1
		if l.run(20*ms, 2*rate); l.p.control.overload.comparing {
			l.loss = 0
			l.run(200*ms, 2*rate)
		}
	}
	l.loss = 0.8
	l.run(20*ms, 2*rate)
	l.p.pacer.rate = minRate
	l.p.PacketsShrunk()
	l.loss = 0
	l.run(time.Second, 2*rate)
	l.run(100*ms, 2*rate)
	if share := float64(l.bytes) / 0.1 / rate; share < 0.9 {
		t.Errorf("%.0f %% of the link used a second after the packets shrank", share*100)
	}
	if l.p.loss.ratio > 0.01 {
		t.Errorf("the path is thought to lose %.2f of its packets", l.p.loss.ratio)
	}
}
