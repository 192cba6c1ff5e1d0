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
			s.spend(now, capacity, int(rate/1000))
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

// TestAnchored checks which paths bulk flows fill first, and in which order.
func TestAnchored(t *testing.T) {
	s := newSender(4)
	for i, delay := range []time.Duration{ms, 20 * ms, 50 * ms, 200 * ms} {
		deliverTwo(s.Path(i), delay)
		s.Path(i).pacer.rate = []float64{10e6, 40e6, 48e6, 2e6}[i]
	}
	if got := s.Anchored(); got != 0b0111 {
		t.Fatalf("bulk flows fill %04b, want 0111: the fourth adds 2 %%", got)
	}
	s.FlowPaths = s.Anchored()
	pick := func() int {
		p, room := s.Pick(time.Second, 1, 1000)
		if p == nil {
			return -1
		}
		p.Sent(time.Second, 1, max(room, int(p.pacer.rate)))
		return p.ID
	}
	for i, want := range []int{2, 1, 0, -1} {
		if got := pick(); got != want {
			t.Errorf("choice %d is path %d, want %d", i, got, want)
		}
	}
	s.FlowPaths = 0
	for i := range 4 {
		s.Path(i).pacer.backlogBytes = 0
	}
	if got := pick(); got != 0 {
		t.Errorf("a sparse flow takes path %d, want the shortest", got)
	}
}
