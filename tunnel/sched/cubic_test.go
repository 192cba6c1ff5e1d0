package sched

import (
	"math"
	"testing"
	"time"
)

// grow acknowledges whole windows, one each round trip, for a time.
func grow(w *cubic, from, d, rtt time.Duration, used bool) {
	for now := from + rtt; now <= from+d; now += rtt {
		w.acknowledge(now, w.bytes, rtt, used)
	}
}

// After a decrease from 100 packets, the window follows RFC 9438, section 4.2: it is back after
// K = ∛(30/0.4) s, and grows as slowly just before as just after.
func TestCubic(t *testing.T) {
	const packets, rtt = 100, 100 * time.Millisecond
	w := newCubic(0, packets*fullPacketBytes)
	w.lose(0, 10, 11)
	if got := w.bytes / fullPacketBytes; math.Abs(got-70) > 0.01 {
		t.Fatalf("%.2f packets after a loss, want 70", got)
	}
	now := time.Duration(0)
	for _, at := range []time.Duration{2 * time.Second, 4217 * time.Millisecond, 6 * time.Second} {
		grow(&w, now, at-now, rtt, true)
		now = at
		t0 := at.Seconds() - math.Cbrt(30/cubicC)
		want := packets + cubicC*t0*t0*t0
		if got := w.bytes / fullPacketBytes; math.Abs(got-want) > 0.03*want {
			t.Errorf("%.1f packets after %v, want %.1f", got, at, want)
		}
	}
}

// Packets that were sent before a decrease cause no other one.
func TestCubicLosesOncePerRoundTrip(t *testing.T) {
	w := newCubic(0, 100*fullPacketBytes)
	w.lose(0, 10, 110)
	after := w.bytes
	if w.lose(time.Millisecond, 109, 120); w.bytes != after {
		t.Error("two decreases for one window")
	}
	if w.lose(time.Millisecond, 110, 120); w.bytes >= after {
		t.Error("no decrease for the next window")
	}
	if w.most >= after {
		t.Errorf("a second decrease aims at %.0f bytes, want less than the %.0f that were reached", w.most, after)
	}
}

// A window that is not used doesn't grow, nor make up for it.
func TestCubicUnused(t *testing.T) {
	const rtt = 50 * time.Millisecond
	w := newCubic(0, 100*fullPacketBytes)
	w.lose(0, 10, 11)
	before := w.bytes
	if grow(&w, 0, time.Minute, rtt, false); w.bytes != before {
		t.Errorf("grew from %.0f to %.0f bytes", before, w.bytes)
	}
	if grow(&w, time.Minute, 2*rtt, rtt, true); w.bytes > 1.1*before {
		t.Errorf("grew from %.0f to %.0f bytes in two round trips", before, w.bytes)
	}
}

// Slow start doubles the window each round trip until round trips grow.
func TestCubicSlowStart(t *testing.T) {
	const rtt = 80 * time.Millisecond
	w := newCubic(0, 0)
	first := w.bytes
	if grow(&w, 0, 3*rtt, rtt, true); w.bytes != 8*first {
		t.Errorf("%.0f bytes after three round trips, want %.0f", w.bytes, 8*first)
	}
	longer := rtt + hystartLimit(rtt)
	grow(&w, 3*rtt, 2*longer, longer, true)
	if math.IsInf(w.threshold, 1) {
		t.Error("slow start goes on although round trips are longer")
	}
}
