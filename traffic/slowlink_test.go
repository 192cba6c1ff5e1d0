package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slow joins two devices by a slow link.
func slow(t testing.TB, l SlowLink) (a, b int, stop func() relayEnd) {
	t.Helper()
	return relayingBy(t, func(ctx context.Context, ra, rb int) (e relayEnd) {
		l.A, l.B = ra, rb
		stats, err := RelaySlow(ctx, []SlowLink{l}, 1)
		if err == nil {
			e.ab, e.ba = stats[0].AB, stats[0].BA
		}
		e.err = err
		return e
	})
}

func TestSlowLinkBothWays(t *testing.T) {
	for name, l := range map[string]SlowLink{
		"at once": {}, "delayed": {Delay: time.Millisecond}, "jittered": {Delay: time.Millisecond, Jitter: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, stop := slow(t, l)
			crossBothWays(t, a, b)
			checkCrossed(t, stop())
		})
	}
}

// TestSlowLinkDelay sends a packet every 2 ms. They keep their order, and none is early.
// Half of them are on time; the others may have been delayed by a busy processor.
func TestSlowLinkDelay(t *testing.T) {
	const n = 100
	for name, l := range map[string]SlowLink{
		"delay": {Delay: 20 * time.Millisecond}, "short delay": {Delay: time.Millisecond},
		"jitter": {Delay: 5 * time.Millisecond, Jitter: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, stop := slow(t, l)
			go func() {
				for i := range uint64(n) {
					var p [16]byte
					binary.BigEndian.PutUint64(p[:], i)
					binary.BigEndian.PutUint64(p[8:], uint64(nanos()))
					unix.Write(a, p[:])
					time.Sleep(2 * time.Millisecond)
				}
			}()
			late := 0
			for i := range uint64(n) {
				p := read(t, b)
				took := time.Duration(nanos() - int64(binary.BigEndian.Uint64(p[8:])))
				if got := binary.BigEndian.Uint64(p); got != i {
					t.Fatalf("packet %d arrived as number %d", got, i)
				}
				if took < l.Delay {
					t.Errorf("packet %d took %s, less than %s", i, took, l.Delay)
				}
				if took > l.Delay+l.Jitter+time.Millisecond {
					late++
				}
			}
			if late > n/2 {
				t.Errorf("%d of %d packets were late by more than 1 ms", late, n)
			}
			if end := stop(); end.err != nil || end.ab.Packets != n || end.ab.Dropped+end.ab.Lost != 0 {
				t.Errorf("end %+v", end)
			}
		})
	}
}

// TestSlowLinkLoss checks that the loss is counted and within six standard deviations of
// its mean. The seed is fixed, but the test must hold for any.
func TestSlowLinkLoss(t *testing.T) {
	const n = 16_000
	for _, share := range []float64{0, 0.001, 0.01, 0.5, 1} {
		w := &slowWay{loss: share, delay: time.Hour, queue: make([]delayed, n), buf: make([]byte, 64), chance: chanceOf(7, 0)}
		for i := range n {
			binary.BigEndian.PutUint64(w.buf, uint64(i))
			if err := w.accept(0, 8); err != nil {
				t.Fatal(err)
			}
		}
		mean, dev := n*share, math.Sqrt(n*share*(1-share))
		if math.Abs(float64(w.stats.Lost)-mean) > 6*dev {
			t.Errorf("%v: %d of %d lost, want %.0f ± %.0f", share, w.stats.Lost, n, mean, 6*dev)
		}
		if w.count+int(w.stats.Lost) != n {
			t.Errorf("%v: %d kept and %d lost are not %d", share, w.count, w.stats.Lost, n)
		}
		before := int64(-1)
		for i := range w.count {
			if got := int64(binary.BigEndian.Uint64(w.queue[i].buf)); got <= before {
				t.Fatalf("%v: packet %d after %d", share, got, before)
			} else {
				before = got
			}
		}
	}
}

// TestSlowLinkRandomness checks that the added delay is uniform, and that losses are
// independent of each other, each within six standard deviations.
func TestSlowLinkRandomness(t *testing.T) {
	const n, delay, jitter, share = 10_000, 20 * time.Millisecond, 8 * time.Millisecond, 0.1
	w := &slowWay{loss: share, delay: delay, jitter: jitter, queue: make([]delayed, n), buf: make([]byte, 64), chance: chanceOf(7, 0)}
	var lost [n]bool
	for i := range n {
		before := w.stats.Lost
		if err := w.accept(0, 8); err != nil {
			t.Fatal(err)
		}
		lost[i] = w.stats.Lost > before
	}
	const parts = 8
	var in [parts]int
	for _, p := range w.queue[:w.count] {
		more := time.Duration(p.due) - delay
		if more < 0 || more > jitter {
			t.Fatalf("a packet waits for %s more than %s", more, delay)
		}
		in[min(parts*more/(jitter+1), parts-1)]++
	}
	mean := float64(w.count) / parts
	for i, got := range in {
		if math.Abs(float64(got)-mean) > 6*math.Sqrt(mean*(1-1.0/parts)) {
			t.Errorf("part %d of the jitter has %d packets, want %.0f", i, got, mean)
		}
	}
	twice := 0
	for i := range n - 1 {
		if lost[i] && lost[i+1] {
			twice++
		}
	}
	if mean := n * share * share; math.Abs(float64(twice)-mean) > 6*math.Sqrt(mean) {
		t.Errorf("%d losses follow on another, want %.0f", twice, mean)
	}
}

func TestSlowLinkRefuses(t *testing.T) {
	for field, l := range map[string]SlowLink{
		"delay": {Delay: -1}, "jitter": {Jitter: -1}, "loss": {Loss: 1.01},
	} {
		var bad *ConfigError
		if _, err := RelaySlow(t.Context(), []SlowLink{l}, 1); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%+v: %v, want a *ConfigError of %s", l, err, field)
		}
	}
	var bad *ConfigError
	if _, err := RelaySlow(t.Context(), []SlowLink{{Loss: math.NaN()}}, 1); !errors.As(err, &bad) {
		t.Errorf("a loss that is no number: %v", err)
	}
}

// TestSlowLinksOfOneRelay checks that several links of one relay do not mix.
func TestSlowLinksOfOneRelay(t *testing.T) {
	var links []SlowLink
	var near, far []int
	for i := range 4 {
		a, ra := device(t)
		b, rb := device(t)
		near, far = append(near, a), append(far, b)
		links = append(links, SlowLink{A: ra, B: rb, Delay: time.Duration(3-i) * 5 * time.Millisecond})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []SlowStats, 1)
	go func() {
		stats, err := RelaySlow(ctx, links, 1)
		if err != nil {
			t.Error(err)
		}
		done <- stats
	}()
	began := nanos()
	for i, fd := range near {
		unix.Write(fd, []byte{byte(i)})
	}
	for i := len(far) - 1; i >= 0; i-- {
		if got := read(t, far[i]); len(got) != 1 || got[0] != byte(i) {
			t.Errorf("link %d carried %v", i, got)
		}
		if took := time.Duration(nanos() - began); took < links[i].Delay {
			t.Errorf("link %d took %s, want at least %s", i, took, links[i].Delay)
		}
	}
	cancel()
	for i, s := range <-done {
		if s.AB.Packets != 1 || s.BA.Packets != 0 {
			t.Errorf("link %d counted %+v", i, s)
		}
	}
}

func TestSlowLinkEndsWithItsDevice(t *testing.T) {
	a, ra := device(t)
	_, rb := device(t)
	unix.Shutdown(a, unix.SHUT_RDWR)
	if _, err := RelaySlow(t.Context(), []SlowLink{{A: ra, B: rb, Delay: time.Millisecond}}, 1); !errors.Is(err, errDeviceGone) {
		t.Errorf("the relay ended with %v though a device is gone", err)
	}
}

func TestSlowLinkQueueIsBounded(t *testing.T) {
	w := &slowWay{queue: make([]delayed, slowQueue), buf: make([]byte, relayPacketBytes)}
	for range 2 * slowQueue {
		w.enqueue(1<<62, 2000)
	}
	if w.count > slowQueue || w.queued > slowQueueBytes {
		t.Errorf("%d packets with %d bytes wait, want at most %d and %d", w.count, w.queued, slowQueue, slowQueueBytes)
	}
	if w.stats.Dropped != uint64(2*slowQueue-w.count) {
		t.Errorf("%d dropped, %d wait", w.stats.Dropped, w.count)
	}
}

func TestSlowLinkAllocatesNothing(t *testing.T) {
	a, ra := device(t)
	b, rb := device(t)
	r, err := newSlowRelay([]SlowLink{{A: ra, B: rb, Delay: time.Nanosecond, Jitter: time.Nanosecond, Loss: 1e-18}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	allocatesNothing(t, a, b, func() error {
		if _, err := r.ways[0].take(); err != nil {
			return err
		}
		return r.ways[0].release(1 << 62)
	})
}
