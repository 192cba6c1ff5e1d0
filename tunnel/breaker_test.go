package tunnel

import (
	"slices"
	"testing"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// loseFor has a path report a share of losses for a time.
func loseFor(end *Tunnel, p *path, d time.Duration, share float64) {
	sp := end.sender.Path(p.id)
	r := sched.Report{HighestSeq: uint32(sp.NextSeq()) - 1, Packets: uint32(sp.NextSeq())}
	for began := end.now(); end.now()-began < d; {
		pass(end, 100*time.Millisecond)
		sp.Sent(end.now(), 50, 5000)
		at := uint32(end.now() / time.Microsecond)
		r.HighestSeq, r.Packets, r.Arrived, r.CheckedUntil = r.HighestSeq+50, r.Packets+uint32(50*(1-share)), at, at
		r.Bytes = 100 * r.Packets
		sp.Report(end.now(), r)
	}
	end.checkPaths(end.now())
}

// TestBreakerStopsRepair checks that nothing that a path loses is sent again while its circuit
// breaker has tripped, and what users see of that.
func TestBreakerStopsRepair(t *testing.T) {
	var events []EventKind
	e := newEnds(t, Config{Mode: "flow", OnEvent: func(v Event) { events = append(events, v.Kind) }}, false, 1)
	p := e.a.paths[0]
	missing := func() int {
		before := uint32(e.a.sender.Path(0).NextSeq())
		e.sendMany(t, 30)
		receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{First: before, Count: 20}))
		n := e.a.resends.packets
		e.a.resetSession() // forgets them
		e.a.session.up = true
		return n
	}
	if n := missing(); n != 20 {
		t.Fatalf("%d packets are sent again, want 20", n)
	}
	loseFor(e.a, p, 8*time.Second, 0.6)
	st := e.a.Status().Paths[0]
	if !st.Tripped || st.Trips != 1 || !slices.Contains(events, PathTripped) || slices.Contains(events, PathClosed) {
		t.Fatalf("tripped %v, %d times, events %q", st.Tripped, st.Trips, events)
	}
	if every := probeInterval(e.a.sender.Path(0), false, true); every > 200*time.Millisecond {
		t.Errorf("the path is probed each %v", every)
	}
	if n := missing(); n > 0 {
		t.Errorf("%d packets are sent again", n)
	}
	e.sendMany(t, 30)
	if e.a.resendUnacked(1); e.a.resends.packets > 0 || p.unacked.len() > 0 {
		t.Errorf("after a death %d packets are sent again, %d pieces are kept", e.a.resends.packets, p.unacked.len())
	}
	loseFor(e.a, p, 8*time.Second, 0)
	if st := e.a.Status().Paths[0]; st.Tripped || st.Trips != 1 || !slices.Contains(events, PathClosed) {
		t.Errorf("later: tripped %v, %d times, events %q", st.Tripped, st.Trips, events)
	}
	if n := missing(); n != 20 {
		t.Errorf("%d packets are sent again later, want 20", n)
	}
}
