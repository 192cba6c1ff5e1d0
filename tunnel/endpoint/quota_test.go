package endpoint

import (
	"testing"
	"time"

	"cleat/tunnel"
)

// TestQuota reports 10,000 events a second for ten seconds.
func TestQuota(t *testing.T) {
	var q eventQuota
	now := time.Unix(1e9, 0)
	reported, dropped := 0, 0
	const seconds = 10
	for range seconds * 10_000 {
		now = now.Add(time.Second / 10_000)
		ok, out := q.take(now)
		if ok {
			reported++
		}
		dropped += out
	}
	if most := maxEvents + int(seconds*time.Second/eventRefill); reported > most || reported < most-2 {
		t.Errorf("%d events were reported, want %d", reported, most)
	}
	if dropped+q.dropped+reported != seconds*10_000 {
		t.Errorf("%d reported, %d and %d dropped", reported, dropped, q.dropped)
	}
	if ok, out := q.take(now.Add(time.Hour)); !ok || out == 0 {
		t.Error("nothing is reported after an hour of silence")
	}
}

// TestManyEvents has the engine report more events than the quota.
func TestManyEvents(t *testing.T) {
	reported := 0
	e := &Endpoint{onEvent: func(tunnel.Event) { reported++ }}
	began := time.Now()
	const events = 100_000
	for range events {
		e.report(tunnel.Event{Path: "p0", Kind: tunnel.PathDead})
	}
	// Each event after a gap is preceded by one that reports the gap.
	if most := maxEvents + 2*int(time.Since(began)/eventRefill+1); reported > most {
		t.Errorf("%d of %d events were reported, want at most %d", reported, events, most)
	}
}
