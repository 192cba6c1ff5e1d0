package endpoint

import (
	"testing"
	"time"

	"cleat/tunnel"
)

// TestQuota reports 10,000 events a second for ten seconds.
func TestQuota(t *testing.T) {
	var q quota
	now := time.Unix(1e9, 0)
	told, left := 0, 0
	const seconds = 10
	for range seconds * 10_000 {
		now = now.Add(time.Second / 10_000)
		ok, out := q.take(now)
		if ok {
			told++
		}
		left += out
	}
	if most := quotaMost + int(seconds*time.Second/quotaEvery); told > most || told < most-2 {
		t.Errorf("%d events were told, want %d", told, most)
	}
	if left+q.dropped+told != seconds*10_000 {
		t.Errorf("%d told, %d and %d left out", told, left, q.dropped)
	}
	if ok, out := q.take(now.Add(time.Hour)); !ok || out == 0 {
		t.Error("after an hour of silence nothing is told")
	}
}

// TestManyEvents has the engine report more events than people can read.
func TestManyEvents(t *testing.T) {
	told := 0
	e := &Endpoint{changed: func(tunnel.Event) { told++ }}
	began := time.Now()
	const events = 100_000
	for range events {
		e.tell(tunnel.Event{Path: "p0", What: tunnel.PathDead})
	}
	// Each event after a gap comes with a second one that counts the gap.
	if most := quotaMost + 2*int(time.Since(began)/quotaEvery+1); told > most {
		t.Errorf("%d of %d events were told, want %d at most", told, events, most)
	}
}
