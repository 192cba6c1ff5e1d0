package sched

import (
	"testing"
	"time"
)

// TestSavings checks the account of what a token bucket may hold.
func TestSavings(t *testing.T) {
	const capacity = 1e6 // bytes/s
	var s savings
	now := time.Duration(0)
	send := func(d time.Duration, rate float64) {
		for end := now + d; now < end; now += ms {
			s.spend(now, capacity, maxSavingsTime, int(rate/1000))
		}
	}
	if send(time.Second, 0); s.bytes != capacity*maxSavingsTime.Seconds() {
		t.Errorf("%.0f bytes saved in a second, want %.0f", s.bytes, capacity*maxSavingsTime.Seconds())
	}
	if send(100*ms, 2*capacity); s.bytes < 149e3 || s.bytes > 151e3 || now-s.since > ms {
		t.Errorf("%.0f bytes are left after 100 ms at twice the capacity; last savings at %v of %v", s.bytes, s.since, now)
	}
	spent := now + 150*ms
	send(time.Second, 2*capacity)
	if s.bytes > 0 || s.since < spent-10*ms || s.since > spent+10*ms {
		t.Errorf("%.0f bytes are left; the last savings were at %v, want %v", s.bytes, s.since, spent)
	}
}
