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
		sp.Report(time.Second, sched.Report{Highest: uint32(sp.Seq() - 1), Packets: uint32(sp.Seq()), Arrived: uint32(sp.Seq())})
	}
	check := func(what string, doubt, busy bool, want time.Duration) {
		t.Helper()
		if got := probeEvery(sp, doubt, busy); got != want {
			t.Errorf("%s: every %v, want %v", what, got, want)
		}
	}
	check("nothing has come by it", false, true, probeIdle)
	report(1)
	check("of which is not known what it loses", false, false, probeNew)
	check("in doubt", true, true, probeDoubt)
	report(300)
	check("that is known", false, true, probeIdle)
	s.Remove(0)
	sp = s.Add(0, 0, 1, 64e3)
	report(1)
	check("that is slow", false, true, 125*time.Millisecond)
	report(1)
	s.Add(0, 2, 1, 0)
	sp = s.Path(2)
	s.Check(time.Second)
	check("that is left alone", false, true, probeSpoil)
	check("that is left alone, without traffic", false, false, probeIdle)
	s.SetUp(2, false)
	check("that is not used", true, true, probeDead)
	s.SetUp(2, true)
	check("that is taken into use", false, true, probeNew)
	sp.Sent(0, 200, 100)
	check("that is taken into use and carries nothing", false, true, probeDead)
}

// TestProbesAtOnce probes a fast path of which is not known what it loses more than once a tick.
func TestProbesAtOnce(t *testing.T) {
	for _, tt := range []struct {
		unknown bool
		mbit    float64
		want    int
	}{{true, 1, 1}, {true, 20, 1}, {true, 50, 2}, {true, 101, 5}, {true, 10000, 5}, {false, 10000, 1}} {
		takes := time.Duration(probeShare / mbit(tt.mbit) * 1e9)
		if n := probesAtOnce(tt.unknown, takes); n != tt.want {
			t.Errorf("%v Mbit/s, unknown %v: %d at once, want %d", tt.mbit, tt.unknown, n, tt.want)
		}
	}
}

// TestLose has packets be spared for a path's sake only where it had some of them.
func TestLose(t *testing.T) {
	o := &Tunnel{begun: time.Now().Add(-time.Second)}
	o.paths[0] = &path{}
	if o.lose(1); o.lost != 0 || o.again.len() > 0 {
		t.Errorf("a path without packets died: spared since %v, %d are sent again", o.lost, o.again.len())
	}
	o.paths[0].kept.add(piece{e: &entry{refs: 1}, n: 1})
	if o.lose(1); o.lost == 0 || o.again.len() != 1 {
		t.Errorf("a path with a packet died: spared since %v, %d are sent again", o.lost, o.again.len())
	}
}
