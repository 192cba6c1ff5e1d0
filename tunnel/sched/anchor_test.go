package sched

import (
	"fmt"
	"testing"
	"time"
)

// anchorPaths returns a Sender with paths of these delays and rates in bytes/s. Their round
// trips are twice their delays.
func anchorPaths(delays []time.Duration, rates ...float64) *Sender {
	s := newSender(len(delays))
	for i, delay := range delays {
		p := s.Path(i)
		deliverTwo(p, delay)
		p.AddRTT(2 * delay)
		p.control.saturated, p.control.capacity, p.pacer.rate = true, rates[i], rates[i]
	}
	return s
}

// pathName describes a path that may be nil.
func pathName(p *Path) string {
	if p == nil {
		return "no path"
	}
	return fmt.Sprintf("path %d", p.ID)
}

// TestAnchored checks which paths bulk flows fill first.
func TestAnchored(t *testing.T) {
	tests := []struct {
		name   string
		delays []time.Duration
		rates  []float64
		want   uint64
	}{
		{"the fourth adds 2 %", []time.Duration{ms, 20 * ms, 50 * ms, 200 * ms}, []float64{10e6, 40e6, 48e6, 2e6}, 0b0111},
		{"the fourth is hardly longer and adds 2 %", []time.Duration{ms, 20 * ms, 50 * ms, 52 * ms}, []float64{10e6, 40e6, 48e6, 2e6}, 0b0111},
		{"the long one doubles the rate", []time.Duration{ms, 100 * ms}, []float64{10e6, 10e6}, 0b11},
		{"the long one takes too long to fill", []time.Duration{ms, 800 * ms}, []float64{50e6, 50e6}, 0b01},
		{"few bytes fill a slow one", []time.Duration{ms, 800 * ms}, []float64{50e3, 50e3}, 0b11},
		{"each of twelve adds little", make([]time.Duration, 12), []float64{1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6}, 1<<12 - 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := anchorPaths(tt.delays, tt.rates...).Anchored(); got != tt.want {
				t.Errorf("bulk flows fill %012b, want %012b", got, tt.want)
			}
		})
	}
	t.Run("a rate is a guess", func(t *testing.T) {
		s := anchorPaths([]time.Duration{ms, 50 * ms}, 50e6, 50e6)
		s.Path(1).control.saturated, s.Path(1).control.topRate = false, 0.2e6
		if got := s.Anchored(); got != 0b01 {
			t.Errorf("bulk flows fill %02b, want the first: the other has never delivered more than 0.2 MB/s", got)
		}
	})
}

// TestAnchoredOrder checks that a bulk flow's first packet takes the anchor, and those right
// behind it the shortest paths, as a sparse flow's packets do.
func TestAnchoredOrder(t *testing.T) {
	s := anchorPaths([]time.Duration{ms, 20 * ms, 50 * ms, 200 * ms}, 10e6, 40e6, 48e6, 2e6)
	s.FlowPaths = s.Anchored()
	pick := func() int {
		p, room := s.Pick(time.Second, 1, 1000)
		if p == nil {
			return -1
		}
		p.Sent(time.Second, 1, max(room, int(p.pacer.rate)))
		return p.ID
	}
	for i, want := range []int{2, 0, 1, -1} {
		if got := pick(); got != want {
			t.Errorf("choice %d is path %d, want %d", i, got, want)
		}
	}
	s.FlowPaths = 0
	for i := range 4 {
		s.Path(i).pacer.backlogBytes, s.Path(i).control.saturated = 0, false
	}
	if got := pick(); got != 0 {
		t.Errorf("a sparse flow takes path %d, want the shortest", got)
	}
}

// TestNoPacketEarly checks that a bulk flow's packet arrives no earlier than by the anchor,
// unless another one does right before it.
func TestNoPacketEarly(t *testing.T) {
	s := anchorPaths([]time.Duration{ms, 50 * ms}, 10e6, 10e6)
	s.FlowPaths = 0b11
	anchor := s.Path(1)
	pick := func(now time.Duration, flow uint32) *Path {
		p, _ := s.Pick(now, flow, 1000)
		return p
	}
	now := time.Second
	anchor.pacer.pausedUntil = 2 * time.Second
	if p := pick(now, 1); p != nil {
		t.Fatalf("a packet that has not waited takes path %d, want none", p.ID)
	}
	if at := s.RoomAt(now, 1); at != now+10*ms {
		t.Errorf("there is room in %v, want in 10 ms, when it is tried again", at-now)
	}
	s.HeadWait = 44 * ms
	if at := s.RoomAt(now, 1); at <= now+3*ms || at > now+5*ms {
		t.Errorf("after 44 ms of 49 there is room in %v, want in 4 ms, one less than the difference of the delays", at-now)
	}
	s.HeadWait = 49 * ms
	if p := pick(now, 1); p == nil || p.ID != 0 {
		t.Errorf("a packet that has waited for the difference of the delays takes %s, want path 0", pathName(p))
	}

	s.HeadWait, anchor.pacer.pausedUntil = 0, 0
	if p := pick(now, 2); p != anchor {
		t.Fatalf("a packet takes %s, want the anchor", pathName(p))
	}
	anchor.pacer.pausedUntil = 2 * time.Second
	if p := pick(now+ms/2, 3); p != nil {
		t.Errorf("a packet of another flow takes path %d, want none", p.ID)
	}
	if p := pick(now+ms/2, 2); p == nil || p.ID != 0 {
		t.Errorf("a packet right behind the one on the anchor takes %s, want path 0", pathName(p))
	}
	if p := pick(now+5*ms, 2); p != nil {
		t.Errorf("a packet 5 ms behind takes path %d, want none", p.ID)
	}
	s.Reset(now, 1)
	if got := s.lastArrivals; got != [len(got)]time.Duration{} {
		t.Error("a peer that has restarted has another clock, but arrivals on the old one are kept")
	}
}

// TestSlowAnchor checks that a path that has turned out to be slow is no anchor.
func TestSlowAnchor(t *testing.T) {
	s := anchorPaths([]time.Duration{ms, 50 * ms}, 10e6, 10e6)
	s.FlowPaths = 0b11
	if got := s.anchor(); got != s.Path(1) {
		t.Errorf("the anchor is %s, want the longer one", pathName(got))
	}
	s.Path(1).pacer.rate = 0.1e6
	if got := s.anchor(); got != s.Path(0) {
		t.Errorf("the anchor is %s, want the one that carries 99 %%", pathName(got))
	}
}

// A path with more jitter than HyStart tolerates is no anchor.
func TestUnsteadyAnchor(t *testing.T) {
	s := anchorPaths([]time.Duration{time.Millisecond, 50 * time.Millisecond}, 50e6, 500e6)
	if got := s.Anchored(); got != 0b11 {
		t.Fatalf("anchors %b, want both", got)
	}
	for i := range 20 {
		s.byID[1].delay.noise.add(float64(50000 + i%2*3000))
	}
	if got := s.Anchored(); got != 0b01 {
		t.Errorf("anchors %b, want the steady path", got)
	}
}
