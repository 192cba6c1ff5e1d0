package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/wire"
)

// nowhere takes what is delivered.
type nowhere struct{}

func (nowhere) Deliver(order.Packet) {}

// books is what has come by paths of one connection, all of it of one flow.
type books struct {
	*inbound
	next [2]uint32 // path sequence numbers
}

func newBooks() *books {
	t := &Tunnel{}
	t.slowest.Store(int64(100 * time.Millisecond))
	return &books{inbound: &inbound{t: t, buf: order.New(order.Config{}, nowhere{})}}
}

// bring has a path bring a packet that was sent at a time and took so long.
func (b *books) bring(path uint8, kind wire.Kind, seq uint32, sent, took time.Duration, size int) {
	at := sent + took
	shim := &wire.Shim{Kind: kind, Path: path, PathSeq: b.next[path], Seq: seq, Before: 1, Time: uint32(sent / time.Microsecond)}
	b.next[path]++
	b.arrived(at, int(path), shim, uint32(at/time.Microsecond), size)
	if kind == wire.Probe {
		b.buf.Mark(int(path), seq, true)
		return
	}
	if seq == 0 {
		shim.Before = 0
	}
	b.buf.Data(at, &order.Arrival{Path: int(path), Seq: seq, Before: shim.Before, Resent: kind == wire.Again, Packet: order.Packet{Data: []byte{0}}})
}

// TestHoles waits for what a path has lost to be sent again, whatever came before and behind.
func TestHoles(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name  string
		bring func(b *books)
	}{
		{"behind a probe", func(b *books) {
			b.bring(1, wire.Probe, 3, 3*ms, ms, 100)
			b.next[1]++ // 3
			b.bring(1, wire.Data, 4, 4*ms, ms, 1500)
		}},
		{"before what is sent again", func(b *books) {
			b.bring(1, wire.Probe, 3, 3*ms, ms, 100)
			b.next[1]++ // 3
			b.bring(1, wire.Again, 1, 4*ms, ms, 1500)
			b.bring(1, wire.Data, 4, 4*ms, ms, 1500)
		}},
		{"behind a packet", func(b *books) {
			b.bring(1, wire.Data, 3, 3*ms, ms, 1500)
			b.next[1]++ // 4
			b.bring(1, wire.Probe, 5, 4*ms, ms, 100)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBooks()
			for seq := range uint32(3) {
				b.bring(0, wire.Data, seq, ms, ms, 1500)
			}
			tt.bring(b)
			b.bring(0, wire.Data, 5, 5*ms, ms, 1500)
			b.buf.Settle(10 * ms)
			if n := b.buf.Stats().Lost; n > 0 {
				t.Errorf("%d packets were given up that are on their way again", n)
			}
			b.buf.Settle(time.Second)
			if b.buf.Stats().Lost != 1 {
				t.Errorf("%d packets were given up in the end, want 1", b.buf.Stats().Lost)
			}
		})
	}
}

// TestLongPackets does not give up a packet on a path that was idle, of which only probes are
// fast; but it does so before the longest wait.
func TestLongPackets(t *testing.T) {
	const ms = time.Millisecond
	for _, took := range []time.Duration{26 * ms, 400 * ms} {
		b := newBooks()
		b.bring(0, wire.Data, 0, 0, 18*ms, 1500)
		b.bring(1, wire.Probe, 1, 0, 3*ms, 100)
		b.bring(1, wire.Data, 1, 0, took, 1500)
		seq, now := uint32(2), took
		for range 200 {
			now += 10 * ms
			b.bring(1, wire.Probe, seq, now, 3*ms, 100)
			b.bring(0, wire.Data, seq, now, 18*ms, 1500)
			seq++
		}
		b.compare()
		// One goes by the idle path, those behind it by the other.
		follow := func(from, to uint32) order.Stats {
			for i := from; i < to; i++ {
				at := now + time.Duration(i)*ms
				b.bring(0, wire.Data, seq+i, at, 18*ms, 1500)
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
