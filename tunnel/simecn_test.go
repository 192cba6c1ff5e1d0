package tunnel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// ecnNet is a tunnel over one link whose queue an AQM manages.
type ecnNet struct {
	*simNet
	link *simLink
}

// ecnResult is what the link has shown for a time.
type ecnResult struct {
	share       float64       // of the link's rate that was carried
	marked      float64       // share of the packets that were marked
	mean, ninth time.Duration // how long packets waited: the mean, and 95 % of them no longer
}

func (r ecnResult) String() string {
	return fmt.Sprintf("%5.1f %% carried, %5.2f %% marked, waits %v, 95 %% %v", 100*r.share, 100*r.marked, r.mean.Round(10*time.Microsecond), r.ninth.Round(10*time.Microsecond))
}

// ecnLink returns the rate of 2 to 500 Mbit/s and the delay of 1 to 100 ms that a seed stands
// for.
func ecnLink(seed uint64) (rate float64, delay time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 23))
	return mbit(2 * math.Pow(250, rng.Float64())), time.Duration(math.Pow(100, rng.Float64()) * float64(time.Millisecond))
}

// newECN returns the network of a seed. Its inner packets support ECN, and it has always
// something to send.
func newECN(seed uint64, aqm simAQM) *ecnNet {
	rate, delay := ecnLink(seed)
	l := &simLink{rate: rate, delay: delay}
	l.shaper = newSimShaper(time.Second, func(time.Duration) float64 { return l.rate }, 2*simSize, 200*time.Millisecond)
	l.shaper.aqm = aqm
	s := newDirections(&simClock{now: time.Second}, rand.New(rand.NewPCG(seed, 7)), []*simLink{l}, []*simLink{{rate: rate, delay: delay}})
	s.endless, s.ect = true, true
	return &ecnNet{s, l}
}

// measure lets time pass and returns what the link has shown in it.
func (e *ecnNet) measure(d time.Duration) ecnResult {
	l := e.link.shaper
	l.waits, l.marked = l.waits[:0], 0
	passed := l.passed
	e.run(d)
	r := ecnResult{share: float64(l.passed-passed) / d.Seconds() / e.link.rate}
	if n := len(l.waits); n > 0 {
		r.marked = float64(l.marked) / float64(n)
		for _, w := range l.waits {
			r.mean += w / time.Duration(n)
		}
		slices.Sort(l.waits)
		r.ninth = l.waits[n*95/100]
	}
	return r
}

func (e *ecnNet) String() string {
	return fmt.Sprintf("%5.1f Mbit/s, %5.1f ms", e.link.rate*8e-6, e.link.delay.Seconds()*1e3)
}

// packetTime returns how long so many packets take over the link.
func (e *ecnNet) packetTime(n float64) time.Duration {
	return time.Duration(n * simSize / e.link.rate * 1e9)
}

func stepAQM() simAQM { return simStepMarker{time.Millisecond} }
func codelAQM() simAQM {
	return &simCoDel{target: 5 * time.Millisecond, interval: 100 * time.Millisecond}
}

// TestSimulatedECN fills links whose AQM marks packets: they must be full, the queue no longer
// than the AQM wants, and few packets marked. One and a half packets may wait in any case.
func TestSimulatedECN(t *testing.T) {
	tests := []struct {
		name   string
		aqm    func() simAQM
		waits  time.Duration // most that packets may wait, on average
		marked float64       // highest share
	}{
		{"CoDel of 5 ms", codelAQM, 5 * time.Millisecond, 0.01},
		{"step of 1 ms", stepAQM, time.Millisecond, 0.065}, // 0.07 with drains while the path is held
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var shares, marks []float64
			for seed := range uint64(12) {
				e := newECN(seed, tt.aqm())
				e.run(8 * time.Second)
				r := e.measure(12 * time.Second)
				t.Logf("%v: %v", e, r)
				if r.share < 0.95 || r.marked > tt.marked || r.mean > max(tt.waits, e.packetTime(1.5)) {
					t.Errorf("seed %d, %v: %v", seed, e, r)
				}
				shares, marks = append(shares, r.share), append(marks, r.marked)
			}
			slices.Sort(shares)
			slices.Sort(marks)
			t.Logf("carried: worst %.1f %%, median %.1f; marked: median %.2f %%, most %.2f", 100*shares[0], 100*shares[len(shares)/2], 100*marks[len(marks)/2], 100*marks[len(marks)-1])
		})
	}
}

// TestSimulatedECNUnused checks that an AQM that marks changes nothing for packets whose
// senders don't support ECN.
func TestSimulatedECNUnused(t *testing.T) {
	var results [2]ecnResult
	for i, aqm := range []simAQM{stepAQM(), simStepMarker{time.Hour}} {
		e := newECN(2, aqm)
		e.ect = i > 0
		results[i] = e.measure(5 * time.Second)
	}
	if results[0] != results[1] {
		t.Errorf("%v; without the AQM %v", results[0], results[1])
	}
}

// TestSimulatedECNChanges halves and doubles the rate of a link whose AQM marks, and then sends
// packets that it can't mark: the path must follow, and in the end keep its usual queue.
func TestSimulatedECNChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(7) {
		e := newECN(seed, stepAQM())
		e.run(8 * time.Second)
		e.link.rate /= 2
		atOnce, halved := e.measure(2*time.Second), e.measure(4*time.Second)
		e.link.rate *= 2
		e.run(6 * time.Second)
		doubled := e.measure(4 * time.Second)
		e.ect = false
		e.run(markTime)
		usual := e.measure(4 * time.Second)
		t.Logf("%v: halved %v; later %v; doubled %v; not marked %v", e, atOnce, halved, doubled, usual)
		if atOnce.share < 0.85 || halved.share < 0.9 || doubled.share < 0.9 || halved.marked > 0.15 || doubled.marked > 0.15 {
			t.Errorf("%v: halved %v; later %v; doubled %v", e, atOnce, halved, doubled)
		}
		if usual.share < 0.98 || usual.mean < time.Millisecond {
			t.Errorf("%v: without marks %v", e, usual)
		}
	}
}

// markTime is how long a path takes to forget marks.
const markTime = 25 * time.Second

// simAlways marks all packets, as an attacker on the way may.
type simAlways struct{}

func (simAlways) marks(time.Duration, time.Duration, int) bool { return true }

// simVirtual marks packets that would wait in the queue of a slower link, so that the real queue
// stays empty.
type simVirtual struct {
	rate  float64 // bytes/s
	bytes float64 // in the queue
	at    time.Duration
}

func (v *simVirtual) marks(now, _ time.Duration, _ int) bool {
	limit := 0.001*v.rate + 2*simSize
	v.bytes, v.at = min(max(v.bytes-v.rate*(now-v.at).Seconds(), 0)+simSize, 2*limit), now
	return v.bytes > limit
}

// TestSimulatedECNWithoutQueue marks packets although no queue stands. A path whose packets are
// all marked still carries about half of what was measured, and a virtual queue is obeyed.
func TestSimulatedECNWithoutQueue(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 4, 7, 9, 10} {
		e := newECN(seed, simAlways{})
		e.run(20 * time.Second)
		all := e.measure(5 * time.Second)
		e = newECN(seed, nil)
		e.link.shaper.aqm = &simVirtual{rate: 0.9 * e.link.rate}
		e.run(10 * time.Second)
		virtual := e.measure(10 * time.Second)
		t.Logf("%v: all marked: %v; virtual queue: %v", e, all, virtual)
		if all.share < 0.45 || all.share > 0.6 {
			t.Errorf("%v, all packets marked: %v", e, all)
		}
		if virtual.share < 0.75 || virtual.share > 0.93 || virtual.marked > 0.35 {
			t.Errorf("%v, virtual queue of 90 %%: %v", e, virtual)
		}
	}
}

// TestSimulatedECNStreams sends TCP streams that support ECN over links that mark at 1 ms.
// Several streams on a slow link of 1 ms would not show what the path does: their smallest
// windows fill the tunnel's queue, and CoDel marks all packets before they enter the path.
func TestSimulatedECNStreams(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		e := newECN(seed, stepAQM())
		if e.link.delay > 30*time.Millisecond { // no stream of cubic fills such a link if it is marked at 1 ms
			continue
		}
		e.endless = false
		e.run(2 * time.Second)
		for i := range 1 + int(e.link.rate/mbit(10))%4 {
			c := newSimTCP(e.simClock, i, e.offer, e.reverse.offer)
			c.marked = func() bool { return e.delivering }
		}
		e.run(10 * time.Second)
		r := e.measure(10 * time.Second)
		t.Logf("%v: %v", e, r)
		if r.share < 0.7 || r.marked > 0.05 {
			t.Errorf("%v: %v", e, r)
		}
	}
}
