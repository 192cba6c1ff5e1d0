package traffic

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// ready is how many transactions end before the one under way at the end of a run.
const ready = 5

// endingRun runs a transactor that began 10 s ago. The transaction after the first ready ones is
// under way when the run ends; atEnd is what happens to it then.
func endingRun(rate float64, atEnd func(*transactor) error) *transactor {
	tr := &transactor{stop: new(atomic.Bool), plan: schedule{start: nanos() - int64(10*time.Second)}}
	if rate > 0 {
		tr.plan.interval = 1e9 / rate
	}
	tr.omit, tr.until = tr.plan.start, nanos()+int64(time.Hour)
	tr.giveUp = tr.until + int64(time.Hour)
	tr.do = func(seq uint64) error {
		if seq != ready {
			return nil
		}
		tr.until = nanos()
		for nanos() <= tr.until {
		}
		return atEnd(tr)
	}
	tr.run()
	return tr
}

// TestTransactorAtTheEnd checks what counts of the transaction under way at the end of a run,
// and of those that were due but had to wait for it: 100 at 10 a second for 10 s.
func TestTransactorAtTheEnd(t *testing.T) {
	errInterrupted := errors.New("interrupted")
	ends := func(*transactor) error { return nil }
	ends1 := func(tr *transactor) error { tr.giveUp = nanos(); return nil }
	never := func(tr *transactor) error { tr.giveUp = nanos(); return errInterrupted }
	fails := func(*transactor) error { return errInterrupted }
	times := func(*transactor) error { return errLost }
	type counts struct{ done, late, unfinished, lost uint64 }
	for _, tt := range []struct {
		name   string
		rate   float64
		atEnd  func(*transactor) error
		counts // at least, in a run on a schedule: it may take a while to here
		err    error
	}{
		{"closed loop: ends", 0, ends, counts{done: ready, late: 1}, nil},
		{"closed loop: never ends", 0, never, counts{done: ready, unfinished: 1}, nil},
		{"closed loop: fails", 0, fails, counts{done: ready}, errInterrupted},
		{"closed loop: times out", 0, times, counts{done: ready, lost: 1}, nil},
		{"schedule: ends", 10, ends, counts{done: ready, late: 95}, nil},
		{"schedule: ends too late for others", 10, ends1, counts{done: ready, late: 1, unfinished: 94}, nil},
		{"schedule: never ends", 10, never, counts{done: ready, unfinished: 95}, nil},
		{"schedule: fails", 10, fails, counts{done: ready}, errInterrupted},
		{"schedule: times out", 10, times, counts{done: ready, late: 94, lost: 1}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := endingRun(tt.rate, tt.atEnd)
			got := counts{tr.done, tr.late, tr.unfinished, tr.lost}
			if tt.rate > 0 && tt.err == nil { // a machine that stopped meanwhile has made more of them due
				more := tr.plan.before(tr.until) - (ready + 95)
				if got.unfinished > 0 {
					got.unfinished -= more
				} else {
					got.late -= more
				}
			}
			if got != tt.counts {
				t.Errorf("%+v, want %+v", got, tt.counts)
			}
			if n := tr.latency.TotalCount(); n != int64(tr.done+tr.late+tr.unfinished) {
				t.Errorf("%d latencies of %d transactions", n, tr.done+tr.late+tr.unfinished)
			}
			if !errors.Is(tr.err, tt.err) {
				t.Errorf("error %v, want %v", tr.err, tt.err)
			}
		})
	}
}

// TestTransactorBehind checks that a generator hours behind its schedule counts all that was
// due, at once, and only what was due after the ramp.
func TestTransactorBehind(t *testing.T) {
	now := nanos()
	tr := &transactor{stop: new(atomic.Bool), until: now - int64(time.Second), giveUp: now}
	tr.plan = schedule{start: tr.until - int64(2*time.Hour), interval: 100} // 10 million a second
	tr.omit = tr.until - int64(40*time.Second)
	tr.run()
	if tr.unfinished != 400e6 || tr.latency.TotalCount() != 400e6 {
		t.Errorf("%d unfinished, %d latencies, want 400 million", tr.unfinished, tr.latency.TotalCount())
	}
	// They waited for 1 s to 41 s, and longer on a machine that stopped meanwhile.
	if least := time.Duration(tr.latency.Min()); least < 990*time.Millisecond {
		t.Errorf("the last one waited for %s, want 1 s", least)
	}
	if p50 := time.Duration(tr.latency.ValueAtQuantile(50)); p50 < 20900*time.Millisecond {
		t.Errorf("p50 %s, want 21 s", p50)
	}
}

func TestScheduleBefore(t *testing.T) {
	for _, s := range []schedule{{start: 100, interval: 10}, {start: 100, interval: 10.0 / 3}, {start: -7, interval: 1e9 / 3}, {start: 0, interval: 0.7}} {
		for n := range uint64(50) {
			for _, at := range []int64{s.at(n) - 1, s.at(n), s.at(n) + 1} {
				want := uint64(0)
				for s.at(want) < at {
					want++
				}
				if got := s.before(at); got != want {
					t.Errorf("%+v: %d before %d, want %d", s, got, at, want)
				}
			}
		}
	}
}
