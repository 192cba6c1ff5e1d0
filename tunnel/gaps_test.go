package tunnel

import (
	"slices"
	"testing"
	"time"
)

// TestGaps checks what is reported as missing on paths that keep the order, and on paths that
// don't.
func TestGaps(t *testing.T) {
	const ms = time.Millisecond
	var g gaps
	var reported []gap
	expire := func(now time.Duration) {
		reported = nil
		g.expire(now, func(x gap) { reported = append(reported, x) })
	}
	if !g.add(gap{10, 12, 0}) || g.reportable(20) != 20 {
		t.Fatal("on a path that keeps the order, a gap is not reported at once")
	}
	g.noteLate(8*ms, 11)
	if g.tolerance != 10*ms {
		t.Fatalf("tolerance is %v after a packet came 8 ms late, want 10ms", g.tolerance)
	}
	if g.add(gap{30, 35, 20 * ms}) || g.reportable(40) != 29 {
		t.Fatalf("a gap is reported at once, or %d is reportable", g.reportable(40))
	}
	g.noteLate(22*ms, 32)
	g.noteLate(22*ms, 30)
	if want := []gap{{31, 32, 20 * ms}, {33, 35, 20 * ms}}; !slices.Equal(g.open, want) || g.reportable(40) != 30 {
		t.Fatalf("open gaps are %v, want %v", g.open, want)
	}
	if expire(29 * ms); len(reported) > 0 {
		t.Fatalf("reported too early: %v", reported)
	}
	if expire(30 * ms); len(reported) != 2 || len(g.open) > 0 || g.reportable(40) != 40 {
		t.Fatalf("reported %v, open %v", reported, g.open)
	}
	g.noteLate(60*ms, 34)
	if g.tolerance != 50*ms {
		t.Errorf("tolerance is %v after a packet came 40 ms late, want 50ms", g.tolerance)
	}
	expire(3 * time.Second)
	if g.tolerance != 50*ms {
		t.Errorf("tolerance is %v in the period after that, want 50ms", g.tolerance)
	}
	if expire(6 * time.Second); g.tolerance != 0 {
		t.Errorf("tolerance is %v after 3 s in order, want 0", g.tolerance)
	}
}

// TestGapsAreBounded checks that a path that skips a packet each time does not fill memory.
func TestGapsAreBounded(t *testing.T) {
	g := gaps{tolerance: maxTolerance}
	for i := range uint32(10000) {
		g.add(gap{2 * i, 2*i + 1, time.Millisecond})
		g.expire(time.Millisecond, func(gap) {})
	}
	if len(g.open) > maxOpenGaps {
		t.Errorf("%d gaps are open, want at most %d", len(g.open), maxOpenGaps)
	}
}
