package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/sched"
)

func TestProbeEvery(t *testing.T) {
	s := &sched.Sender{}
	sp := s.Add(0, 0, 1, 0)
	s.Add(0, 1, 1, 0)
	report := func(n uint32) {
		sp.Sent(0, int(n), 100)
		sp.Report(time.Second, sched.Report{HighestSeq: uint32(sp.NextSeq() - 1), Packets: uint32(sp.NextSeq()), Arrived: uint32(sp.NextSeq())})
	}
	check := func(what string, doubt, busy bool, want time.Duration) {
		t.Helper()
		if got := probeInterval(sp, doubt, busy); got != want {
			t.Errorf("%s: every %v, want %v", what, got, want)
		}
	}
	check("nothing delivered yet", false, true, probeIdle)
	report(1)
	check("loss unknown", false, false, probeNew)
	check("acknowledgements overdue", true, true, probeWhenOverdue)
	report(300)
	check("loss known", false, true, probeIdle)
	s.Remove(0)
	sp = s.Add(0, 0, 1, 64e3)
	report(1)
	check("slow", false, true, 125*time.Millisecond)
	report(1)
	s.Add(0, 2, 1, 0)
	sp = s.Path(2)
	s.Check(time.Second)
	check("sidelined", false, true, probeSidelined)
	check("sidelined, without traffic", false, false, probeIdle)
	s.SetUp(2, false)
	check("dead", true, true, probeDead)
	s.SetUp(2, true)
	check("returning", false, true, probeNew)
	sp.Sent(0, 200, 100)
	check("returning for long", false, true, probeDead)
}

// TestProbeBurst checks that a fast path whose loss is unknown gets several probes per
// tick.
func TestProbeBurst(t *testing.T) {
	for _, tt := range []struct {
		unknown bool
		mbit    float64
		want    int
	}{{true, 1, 1}, {true, 20, 1}, {true, 50, 2}, {true, 101, 5}, {true, 10000, 5}, {false, 10000, 1}} {
		takes := time.Duration(burstProbeBytes / mbit(tt.mbit) * 1e9)
		if n := probeBurst(tt.unknown, takes); n != tt.want {
			t.Errorf("%v Mbit/s, unknown %v: burst of %d, want %d", tt.mbit, tt.unknown, n, tt.want)
		}
	}
}

// TestResendUnacked checks that CoDel spares the queue only after the death of a path
// that had unacknowledged packets.
func TestResendUnacked(t *testing.T) {
	o := &Tunnel{startedAt: time.Now().Add(-time.Second)}
	o.paths[0] = &path{}
	if o.resendUnacked(1); o.pathLostAt != 0 || o.resends.len() > 0 {
		t.Errorf("a path without packets died: lost at %v, %d pieces are sent again", o.pathLostAt, o.resends.len())
	}
	o.paths[0].unacked.add(piece{e: &entry{refs: 1}, n: 1})
	if o.resendUnacked(1); o.pathLostAt == 0 || o.resends.len() != 1 {
		t.Errorf("a path with a packet died: lost at %v, %d pieces are sent again", o.pathLostAt, o.resends.len())
	}
}
