package tunnel

import (
	"testing"
	"time"
)

// TestDiscard has packets come for a peer that is not there: they wait for it, but not for
// long, and not as many as a sender likes.
func TestDiscard(t *testing.T) {
	o := newOutbound(&Tunnel{begun: time.Now()})
	come := func(at time.Duration, n int) {
		for range n {
			o.stock()
			b := o.buffer()
			clear(b[:1500])
			b[10] = 4<<4 | 5 // behind the virtio header: IPv4
			o.take(at, 1500)
		}
	}
	for _, tt := range []struct {
		name        string
		at          time.Duration
		come        int
		least, most int // packets that wait then
	}{
		{"a few", 0, 10, 10, 10},
		{"soon after", patience / 2, 0, 10, 10},
		{"too many", patience / 2, 1000, queueLeast/1500 - 10, queueLeast/1400 + 10},
		{"late", 2 * patience, 0, 0, 0},
	} {
		come(tt.at, tt.come)
		if o.fill(tt.at) {
			t.Fatalf("%s: something is to be sent", tt.name)
		}
		if n := len(o.queue) - o.head; n < tt.least || n > tt.most {
			t.Errorf("%s: %d packets wait, want %d to %d", tt.name, n, tt.least, tt.most)
		}
	}
}
