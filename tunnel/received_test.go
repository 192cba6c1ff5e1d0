package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/wire"
)

// discard is an order.Receiver that drops everything.
type discard struct{}

func (discard) Deliver(order.Packet) {}

// arrivalTest delivers packets of one flow by several paths.
type arrivalTest struct {
	*inbound
	next [2]uint32 // next path sequence numbers
}

func newArrivalTest() *arrivalTest {
	t := &Tunnel{}
	t.maxRTT.Store(int64(100 * time.Millisecond))
	return &arrivalTest{inbound: &inbound{t: t, buf: order.New(order.Config{}, discard{})}}
}

// deliver delivers a packet that was sent at a time and took so long.
func (b *arrivalTest) deliver(path uint8, kind wire.Kind, seq uint32, sent, took time.Duration, size int) {
	at := sent + took
	shim := &wire.Shim{Kind: kind, Path: path, PathSeq: b.next[path], Seq: seq, FlowDistance: 1, Time: uint32(sent / time.Microsecond)}
	b.next[path]++
	b.recordArrival(at, int(path), shim, uint32(at/time.Microsecond), size)
	if kind == wire.Probe {
		b.buf.Mark(int(path), seq, true)
		return
	}
	if seq == 0 {
		shim.FlowDistance = 0
	}
	b.buf.Data(at, &order.Arrival{Path: int(path), Seq: seq, FlowDistance: shim.FlowDistance, Resent: kind == wire.Resend, Packet: order.Packet{Data: []byte{0}}})
}

// TestHoles checks that resent packets are waited for, whatever was received before and
// after the hole.
func TestHoles(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name  string
		bring func(b *arrivalTest)
	}{
		{"after a probe", func(b *arrivalTest) {
			b.deliver(1, wire.Probe, 3, 3*ms, ms, 100)
			b.next[1]++ // 3
			b.deliver(1, wire.Data, 4, 4*ms, ms, 1500)
		}},
		{"before a resent packet", func(b *arrivalTest) {
			b.deliver(1, wire.Probe, 3, 3*ms, ms, 100)
			b.next[1]++ // 3
			b.deliver(1, wire.Resend, 1, 4*ms, ms, 1500)
			b.deliver(1, wire.Data, 4, 4*ms, ms, 1500)
		}},
		{"after a packet", func(b *arrivalTest) {
			b.deliver(1, wire.Data, 3, 3*ms, ms, 1500)
			b.next[1]++ // 4
			b.deliver(1, wire.Probe, 5, 4*ms, ms, 100)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newArrivalTest()
			for seq := range uint32(3) {
				b.deliver(0, wire.Data, seq, ms, ms, 1500)
			}
			tt.bring(b)
			b.deliver(0, wire.Data, 5, 5*ms, ms, 1500)
			b.buf.Settle(10 * ms)
			if n := b.buf.Stats().Lost; n > 0 {
				t.Errorf("%d packets were given up that are being resent", n)
			}
			b.buf.Settle(time.Second)
			if b.buf.Stats().Lost != 1 {
				t.Errorf("%d packets were given up in the end, want 1", b.buf.Stats().Lost)
			}
		})
	}
}

// TestLongPackets checks that a packet on an idle path, of which only small probes have
// been seen, is not given up too early, but before the longest wait.
func TestLongPackets(t *testing.T) {
	const ms = time.Millisecond
	for _, took := range []time.Duration{26 * ms, 400 * ms} {
		b := newArrivalTest()
		b.deliver(0, wire.Data, 0, 0, 18*ms, 1500)
		b.deliver(1, wire.Probe, 1, 0, 3*ms, 100)
		b.deliver(1, wire.Data, 1, 0, took, 1500)
		seq, now := uint32(2), took
		for range 200 {
			now += 10 * ms
			b.deliver(1, wire.Probe, seq, now, 3*ms, 100)
			b.deliver(0, wire.Data, seq, now, 18*ms, 1500)
			seq++
		}
		b.updateDelays()
		// One packet takes the idle path, those after it the other.
		follow := func(from, to uint32) order.Stats {
			for i := from; i < to; i++ {
				at := now + time.Duration(i)*ms
				b.deliver(0, wire.Data, seq+i, at, 18*ms, 1500)
				b.buf.Settle(at + 18*ms)
			}
			return b.buf.Stats()
		}
		if n := follow(1, 8).Lost; n > 0 {
			t.Errorf("%d packets were given up after 26 ms, on a path that takes %v", n, took)
		}
		if st := follow(8, 190); st.Lost != 1 || st.Forced > 0 {
			t.Errorf("%d packets were given up in the end, %d of them only after the longest wait", st.Lost, st.Forced)
		}
	}
}
