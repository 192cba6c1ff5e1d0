package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// TestReceiverIsAnnounced checks that probes carry what the peer needs.
func TestReceiverIsAnnounced(t *testing.T) {
	for hold, want := range map[time.Duration]time.Duration{0: order.DefaultHold, 70 * time.Millisecond: 70 * time.Millisecond} {
		e := newEnds(t, Config{Hold: hold}, false, 1)
		e.a.reportEvery.Store(int64(25 * time.Millisecond))
		e.a.mu.Lock()
		e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.sender.Path(0), true)
		e.a.mu.Unlock()
		e.b.in.drain(e.b.paths[0], e.b.paths[0].fd)
		if got, want := e.b.session.peer, (wire.Receiver{Hold: want, ReportEvery: 25 * time.Millisecond}); got != want || e.b.peerHold() != want.Hold {
			t.Errorf("hold %v: the peer takes it for %+v", hold, got)
		}
	}
}

// TestReceiverIsBounded has the peer announce extremes.
func TestReceiverIsBounded(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for _, tt := range []struct{ announced, want wire.Receiver }{
		{wire.Receiver{}, wire.Receiver{Hold: minPeerHold}},
		{wire.Receiver{Hold: time.Hour, ReportEvery: time.Hour}, wire.Receiver{Hold: maxKeepTime, ReportEvery: sched.MaxReportInterval}},
	} {
		e.a.in.handleControl(e.a.now(), e.a.paths[0], &wire.Shim{Kind: wire.Probe}, wire.AppendReceiver(nil, tt.announced))
		if got := e.a.session.peer; got != tt.want {
			t.Errorf("%+v is taken for %+v, want %+v", tt.announced, got, tt.want)
		}
	}
	if e.a.resetSession(); e.a.session.peer != (wire.Receiver{}) {
		t.Errorf("in a new session, the peer is still taken for %+v", e.a.session.peer)
	}
}

// TestReportsWaitForTheirShare checks that reports wait only if the peer knows that they may.
func TestReportsWaitForTheirShare(t *testing.T) {
	for _, old := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 1)
		if !old {
			e.a.in.handleControl(e.a.now(), e.a.paths[0], &wire.Shim{Kind: wire.Probe}, wire.AppendReceiver(nil, wire.Receiver{Hold: time.Second}))
		}
		in := e.a.in
		report := func() bool {
			before := e.a.stats.reports.Load()
			in.reporter.due = e.a.now()
			in.sendDueReports(e.a.now())
			return e.a.stats.reports.Load() > before
		}
		if !report() {
			t.Fatal("the first report waits")
		}
		e.a.sender.ReportPaths(e.a.now(), 10_000) // 160 ms of 10 Mbit/s
		if sent := report(); sent != old {
			t.Errorf("older peer %v: the report is sent %v", old, sent)
		}
		if old {
			continue
		}
		in.reporter.urgent = true
		if in.reporter.schedule(e.a.now()); in.reporter.due != in.reporter.notBefore {
			t.Errorf("an urgent report is due %v before the path's share allows it", in.reporter.notBefore-in.reporter.due)
		}
		if pass(e.a, sched.MaxReportInterval); !report() {
			t.Errorf("no report after %v", sched.MaxReportInterval)
		}
		if every := time.Duration(e.a.reportEvery.Load()); every < 15*time.Millisecond || every > 50*time.Millisecond {
			t.Errorf("an interval of %v makes the average %v, want between", sched.MaxReportInterval, every)
		}
		for range 50 { // the shares do not limit these
			pass(e.a, time.Second)
			report()
		}
		if every := time.Duration(e.a.reportEvery.Load()); every > 11*time.Millisecond {
			t.Errorf("%v is announced although no report has waited", every)
		}
	}
}
