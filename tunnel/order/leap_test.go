package order

import (
	"testing"
	"time"
)

// TestLeaps sends packets that each leap a window ahead: their cost must be bounded, and
// packets sent in order afterwards must be delivered.
func TestLeaps(t *testing.T) {
	const window = 1 << 16
	for _, back := range []bool{false, true} {
		to := &counter{}
		b := New(Config{Window: window}, to)
		now, seq := time.Second, uint32(0)
		const second = 10_000 // packets
		leap := func() {
			now += time.Second / second
			if seq += window; back && seq%3 == 0 { // the window must be found again each time
				seq -= 1 << 30
			}
			b.Data(now, &Arrival{Seq: seq, Packet: Packet{Data: []byte{1}}})
			b.Settle(now)
			b.Recycle()
		}
		for range second {
			leap()
		}
		most := int(time.Second+maxLeapDebt)/int(window*leapStepTime) + 1
		if to.n > most {
			t.Errorf("%d leaps were accepted in a second, want at most %d", to.n, most)
		}
		if to.n < 10 {
			t.Errorf("%d leaps were accepted, want enough for outages", to.n)
		}
		now, to.n = now+time.Second, 0
		for range 1000 {
			seq++
			b.Data(now, &Arrival{Seq: seq, FlowDistance: 1, Packet: Packet{Data: []byte{1}}})
			now += time.Millisecond
			b.Settle(now)
		}
		if to.n < 1000-resyncAfter {
			t.Errorf("%d of 1000 packets in order were delivered afterwards", to.n)
		}
	}
}

// TestSmallLeaps has paths run ahead of each other as far and as often as fast paths do.
func TestSmallLeaps(t *testing.T) {
	to := &counter{}
	b := New(Config{}, to)
	const run, packets = 256, 1 << 20
	for from := uint32(0); from < packets; from += 2 * run {
		now := time.Duration(from) * time.Microsecond
		for _, first := range []uint32{from + run, from} {
			for i := range uint32(run) {
				b.Data(now, &Arrival{Seq: first + i, FlowDistance: 1, Packet: Packet{Data: []byte{1}}})
			}
		}
		b.Settle(now)
		b.Recycle()
	}
	if to.n != packets || b.Stats().TooOld > 0 {
		t.Errorf("%d of %d packets were delivered, %d dropped", to.n, packets, b.Stats().TooOld)
	}
}

type counter struct{ n int }

func (c *counter) Deliver(Packet) { c.n++ }

// TestFirstHeld checks that the first waiting packet is found wherever the window begins.
func TestFirstHeld(t *testing.T) {
	const window = 256
	for start := range uint32(2 * window) {
		for _, ahead := range []uint32{1, 2, 63, 64, 65, 200, 254} {
			b := New(Config{Window: window}, discard{})
			b.Start(start)
			b.Data(0, &Arrival{Seq: start + ahead, FlowDistance: 1, Packet: Packet{Data: []byte{1}}})
			if got := b.firstHeld(); got != int64(start+ahead) {
				t.Fatalf("from %d on, the first waiting packet is %d, want %d", start, got, start+ahead)
			}
		}
	}
}
