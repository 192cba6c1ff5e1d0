package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/wire"
)

// pass lets time pass on an end's clock.
func pass(end *Tunnel, d time.Duration) { end.startedAt = end.startedAt.Add(-d) }

// TestLateResends has lost packets wait in the queue. They are sent again as long as the peer
// waits for them, and are dropped and counted later.
func TestLateResends(t *testing.T) {
	for _, tt := range []struct {
		name      string
		announced time.Duration // by the peer; 0: nothing
		own       time.Duration // Config.Hold
		wait      time.Duration
		late      bool
	}{
		{"in time", 50 * time.Millisecond, 0, 40 * time.Millisecond, false},
		{"within a round trip more", 50 * time.Millisecond, 0, 65 * time.Millisecond, false},
		{"too late", 50 * time.Millisecond, 0, 75 * time.Millisecond, true},
		{"the peer waits for longer than this end", time.Second, 10 * time.Millisecond, 900 * time.Millisecond, false},
		{"an older peer, in time", 0, 10 * time.Millisecond, 150 * time.Millisecond, false},
		{"an older peer, too late", 0, 10 * time.Millisecond, 250 * time.Millisecond, true},
		{"an older peer, configured alike", 0, time.Second, 900 * time.Millisecond, false},
		{"a peer that announces an hour", time.Hour, 0, maxKeepTime + 50*time.Millisecond, true},
		{"a peer that announces a microsecond", time.Microsecond, 0, 20 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{Mode: "flow", Hold: tt.own}, false, 2)
			e.a.maxRTT.Store(int64(20 * time.Millisecond))
			if tt.announced > 0 {
				e.a.in.handleControl(e.a.now(), e.a.paths[0], &wire.Shim{Kind: wire.Probe}, wire.AppendReceiver(nil, wire.Receiver{Hold: tt.announced}))
			}
			p := e.sendMany(t, 30)
			receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), First: 3, Count: 20}))
			pass(e.a, tt.wait)
			before := e.a.stats.sent.Load()
			e.sendMany(t, 10)
			resent, late, sent := e.a.stats.resent.Load(), e.a.stats.lateResends.Load(), e.a.stats.sent.Load()-before
			want := [3]uint64{20, 0, 30}
			if tt.late {
				want = [3]uint64{0, 20, 10}
			}
			if got := [3]uint64{resent, late, sent}; got != want {
				t.Errorf("%d packets were sent again, %d were too late, and %d were sent; want %d", resent, late, sent, want)
			}
			if e.a.resends.len() > 0 || e.a.resends.packets != 0 {
				t.Errorf("%d packets in %d pieces are still queued", e.a.resends.packets, e.a.resends.len())
			}
		})
	}
}

// TestResendDeadlineStays loses a packet twice: the receiver has waited since the first loss,
// so the second one allows no more time.
func TestResendDeadlineStays(t *testing.T) {
	e := newEnds(t, Config{Mode: "flow"}, false, 1)
	p := e.sendMany(t, 1)
	lose := func(seq uint32) time.Duration {
		receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), First: seq, Count: 1}))
		if e.a.resends.len() != 1 {
			t.Fatalf("%d packets are sent again, want 1", e.a.resends.len())
		}
		return e.a.resends.first().resendBy
	}
	first := lose(0)
	e.send(t)
	pass(e.a, 100*time.Millisecond)
	if second := lose(1); second != first {
		t.Errorf("a packet lost again may be sent %v later", second-first)
	}
}

// TestSimulatedLateResends has the faster of two paths die. What it had not delivered takes
// the other one 3 s, and the receiver waits for it for 0.2 s.
func TestSimulatedLateResends(t *testing.T) {
	t.Parallel()
	fast := &simLink{rate: mbit(200), delay: 20 * time.Millisecond, diesAt: 4 * time.Second}
	s := newSim(1, fast, &simLink{rate: mbit(3), delay: 5 * time.Millisecond})
	s.run(3 * time.Second)
	if s.lateResends > 0 {
		t.Errorf("%d packets were too late although both paths live", s.lateResends)
	}
	late := s.in.buf.Stats().Late
	s.run(2 * time.Second)
	late = s.in.buf.Stats().Late - late
	t.Logf("%d packets were dropped, %d arrived late", s.lateResends, late)
	if s.lateResends == 0 || late > 50 {
		t.Errorf("%d packets were not sent again because they would be late, %d were and arrived late, want at most 50", s.lateResends, late)
	}
}
