package traffic_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"cleat/traffic"
)

// TestGate checks that each work connects, asks when to begin, and does not begin
// earlier.
func TestGate(t *testing.T) {
	for _, work := range []traffic.Work{traffic.TCP, traffic.UDP, traffic.RR, traffic.UDPRR, traffic.CRR} {
		t.Run(string(work), func(t *testing.T) {
			var at time.Time
			asked := 0
			r := run(t, traffic.Config{
				Work: work, Address: serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"}), BitsPerSecond: udpOnly(work, 1e6),
				Gate: func(context.Context) (time.Time, error) {
					asked++
					at = time.Now().Add(50 * time.Millisecond)
					return at, nil
				},
			})
			if asked != 1 {
				t.Errorf("asked %d times when to begin", asked)
			}
			if r.StartedLate > 0 && time.Since(at) < 0 {
				t.Errorf("started %v late before it was time", r.StartedLate)
			}
			if ended := time.Since(at); ended < 0 {
				t.Errorf("ended %v before it was to begin", -ended)
			}
		})
	}
}

func udpOnly(w traffic.Work, rate float64) float64 {
	if w == traffic.UDP {
		return rate
	}
	return 0
}

func TestGateInThePast(t *testing.T) {
	r := run(t, traffic.Config{
		Work: traffic.TCP, Address: serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"}),
		Gate: func(context.Context) (time.Time, error) { return time.Now().Add(-time.Second), nil },
	})
	if r.StartedLate < time.Second {
		t.Errorf("started %v late, want at least 1s", r.StartedLate)
	}
}

func TestGateRefuses(t *testing.T) {
	never := errors.New("not today")
	_, err := traffic.Run(context.Background(), traffic.Config{
		Work: traffic.TCP, Address: serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"}), Duration: time.Millisecond,
		Gate: func(context.Context) (time.Time, error) { return time.Time{}, never },
	})
	if !errors.Is(err, never) {
		t.Errorf("got %v, want %v", err, never)
	}
}
