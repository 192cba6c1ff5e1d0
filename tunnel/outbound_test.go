package tunnel

import (
	"testing"
	"time"
)

// TestDropUnsendable checks that packets without a peer wait, but not too long and not
// too many.
func TestDropUnsendable(t *testing.T) {
	o := newOutbound(&Tunnel{startedAt: time.Now()})
	receive := func(at time.Duration, n int) {
		for range n {
			o.stock()
			b := o.readBuffer()
			clear(b[:1500])
			b[10] = 4<<4 | 5 // after the virtio header: IPv4
			o.enqueueRead(at, 1500)
		}
	}
	for _, tt := range []struct {
		name        string
		at          time.Duration
		packets     int
		least, most int // packets that still wait
	}{
		{"a few", 0, 10, 10, 10},
		{"soon after", noPeerPatience / 2, 0, 10, 10},
		{"too many", noPeerPatience / 2, 1000, minQueueBytes/1500 - 10, minQueueBytes/1400 + 10},
		{"late", 2 * noPeerPatience, 0, 0, 0},
	} {
		receive(tt.at, tt.packets)
		if o.prepareRun(tt.at) {
			t.Fatalf("%s: there is a run to send", tt.name)
		}
		if n := o.queue.sparse.len() + o.queue.bulk.len(); n < tt.least || n > tt.most {
			t.Errorf("%s: %d packets wait, want %d to %d", tt.name, n, tt.least, tt.most)
		}
	}
}

// TestQueueTarget checks how long packets may wait: as the round trip asks, and no longer on fast
// paths than what waits stays in the cache.
func TestQueueTarget(t *testing.T) {
	for _, tt := range []struct {
		mbit float64 // of all paths
		rtt  time.Duration
		want time.Duration
	}{
		{0, 0, minQueueTarget},
		{1200, time.Millisecond, minQueueTarget},
		{4194.304, time.Millisecond, time.Millisecond},
		{100_000, 100 * time.Microsecond, minFastTarget},
		{4000, 40 * time.Millisecond, 10 * time.Millisecond},
		{1, time.Second, maxQueueTarget},
	} {
		o := newOutbound(&Tunnel{})
		o.rate = tt.mbit * 1e6 / 8
		o.t.maxRTT.Store(int64(tt.rtt))
		if o.setCoDel(); o.queueTarget != tt.want {
			t.Errorf("%v Mbit/s, round trip %v: packets may wait for %v, want %v", tt.mbit, tt.rtt, o.queueTarget, tt.want)
		}
	}
}
