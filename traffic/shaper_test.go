package traffic

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"cleat/internal/linkzoo"
)

const shapedSize = 1500 // bytes of a packet in these tests

// shapedArrival is a packet that left a link.
type shapedArrival struct {
	number int
	at     int64
}

// shapedLab is one link under a virtual clock. advance is called every tick, as a relay does.
type shapedLab struct {
	links    *shapedLinks
	now      int64
	arrivals []shapedArrival
}

func newShapedLab(t testing.TB, links ...linkzoo.Link) *shapedLab {
	t.Helper()
	l := &shapedLab{}
	l.links = newShapedLinks(0, links, 1, func(_ *shapedWay, due int64, buf []byte) error {
		if due > l.now {
			t.Errorf("a packet that is due at %d is delivered at %d", due, l.now)
		}
		l.arrivals = append(l.arrivals, shapedArrival{int(binary.BigEndian.Uint32(buf)), due})
		return nil
	})
	return l
}

// send offers packets at a rate for a time, and then lets all of them arrive.
func (l *shapedLab) send(way int, bitsPerSec float64, during time.Duration) (sent int) {
	const tick = int64(shapedTick)
	for end := l.now + int64(during); l.now < end; l.now += tick {
		for due := int(bitsPerSec / 8 / shapedSize * float64(l.now+tick) / 1e9); sent < due; sent++ {
			l.one(way, sent)
		}
		l.links.advance(l.now)
	}
	l.drain()
	return sent
}

func (l *shapedLab) one(way, number int) {
	b := l.links.pool.get(shapedSize)
	binary.BigEndian.PutUint32(b, uint32(number))
	l.links.accept(l.now, l.links.ways[way], b)
}

func (l *shapedLab) drain() {
	for at := l.links.next(); at != never; at = l.links.next() {
		l.now = max(l.now, at)
		l.links.advance(l.now)
	}
}

// rate returns the rate in bit/s of the arrivals between two times.
func (l *shapedLab) rate(from, to time.Duration) float64 {
	n := 0
	for _, a := range l.arrivals {
		if a.at >= int64(from) && a.at < int64(to) {
			n++
		}
	}
	return float64(n) * shapedSize * 8 / (to - from).Seconds()
}

func shapedLink(rate float64) linkzoo.Link {
	return linkzoo.Link{Rate: rate, BackRate: rate, Burst: 5000, Queue: 50 * time.Millisecond}
}

func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

func TestShaperRate(t *testing.T) {
	for _, rate := range []float64{1e6, 7e6, 100e6, 400e6} {
		for _, burst := range []int{1600, 32 << 10} {
			link := shapedLink(rate)
			link.Burst = burst
			l := newShapedLab(t, link)
			l.send(0, 1.5*rate, 5*time.Second)
			if got := l.rate(time.Second, 4*time.Second); !near(got, rate, 0.005) {
				t.Errorf("rate %.0f, bucket %d: %.0f bit/s passed", rate, burst, got)
			}
			if l.links.ways[0].stats.Dropped == 0 {
				t.Errorf("rate %.0f, bucket %d: nothing was dropped", rate, burst)
			}
		}
	}
}

// TestShaperBucketAndQueue sends many packets at once: those of the bucket pass at once, the
// queue holds what waits as long as it may, and the rest is dropped.
func TestShaperBucketAndQueue(t *testing.T) {
	link := linkzoo.Link{Rate: 12e6, BackRate: 12e6, Burst: 10 * shapedSize, Queue: 40 * time.Millisecond, Delay: 3 * time.Millisecond}
	l := newShapedLab(t, link)
	for i := range 200 {
		l.one(0, i)
	}
	l.drain()
	// 40 ms at 12 Mbit/s are 40 packets; the bucket's 10 may wait too, as with tbf.
	if n := len(l.arrivals); n != 10+40+10 {
		t.Errorf("%d packets arrived, want 60", n)
	}
	for i, a := range l.arrivals {
		want := link.Delay + time.Duration(max(0, i-9))*time.Millisecond
		if got := time.Duration(a.at); a.number != i || (got-want).Abs() > time.Microsecond {
			t.Errorf("arrival %d is packet %d after %v, want it after %v", i, a.number, got, want)
		}
	}
}

// TestShaperLateCalls calls advance rarely: packets still leave at the computed instants, and
// no tokens are lost.
func TestShaperLateCalls(t *testing.T) {
	link := linkzoo.Link{Rate: 12e6, BackRate: 12e6, Burst: 1600, Queue: time.Second}
	l := newShapedLab(t, link)
	for i := range 40 {
		l.one(0, i)
	}
	l.now = int64(35 * time.Millisecond)
	l.one(0, 40)
	l.drain()
	for i, a := range l.arrivals {
		if want := time.Duration(i) * time.Millisecond; time.Duration(a.at)-want > 10*time.Microsecond || time.Duration(a.at) < want-100*time.Microsecond {
			t.Errorf("packet %d left after %v, want %v", i, time.Duration(a.at), want)
		}
	}
}

func TestShaperPolicer(t *testing.T) {
	link := shapedLink(10e6)
	link.Queue, link.Burst = 0, 10*shapedSize
	l := newShapedLab(t, link)
	sent := l.send(0, 20e6, 4*time.Second)
	if got := l.rate(time.Second, 3*time.Second); !near(got, 10e6, 0.01) {
		t.Errorf("%.0f bit/s passed a policer of 10 Mbit/s", got)
	}
	for _, a := range l.arrivals {
		if offered := int64(float64(a.number+1) * shapedSize * 8 / 20e6 * 1e9); a.at > offered {
			t.Fatalf("packet %d waited in a policer until %d", a.number, a.at)
		}
	}
	if s := l.links.ways[0].stats; int(s.Packets+s.Dropped) != sent || s.DroppedBytes != s.Dropped*shapedSize {
		t.Errorf("of %d packets: %+v", sent, s)
	}
}

func TestShaperJitter(t *testing.T) {
	for _, reorders := range []bool{false, true} {
		link := shapedLink(100e6)
		link.Delay, link.Jitter, link.Reorders = 20*time.Millisecond, 10*time.Millisecond, reorders
		l := newShapedLab(t, link)
		l.send(0, 10e6, 2*time.Second)
		inversions, last := 0, -1
		least, most := time.Hour, time.Duration(0)
		for _, a := range l.arrivals {
			if a.number < last {
				inversions++
			}
			last = a.number
			took := time.Duration(a.at - int64(float64(a.number+1)*shapedSize*8/10e6*1e9))
			least, most = min(least, took), max(most, took)
		}
		if reorders != (inversions > 0) {
			t.Errorf("reorders %t: %d inversions", reorders, inversions)
		}
		// A packet enters up to a tick before its time.
		if least < link.Delay-2*shapedTick || most > link.Delay+link.Jitter || most-least < link.Jitter/2 {
			t.Errorf("reorders %t: packets took %v to %v, want 20 to 30 ms", reorders, least, most)
		}
	}
}

func TestShaperLoss(t *testing.T) {
	link := shapedLink(400e6)
	link.Loss = 0.03
	l := newShapedLab(t, link)
	sent := l.send(0, 100e6, 5*time.Second)
	n, share := float64(sent), link.Loss
	if lost := float64(l.links.ways[0].stats.Lost); math.Abs(lost-n*share) > 6*math.Sqrt(n*share*(1-share)) {
		t.Errorf("%.0f of %.0f packets lost, want 3 %%", lost, n)
	}
}

// TestShaperSteps checks that rates change only after the case has begun, and at the right
// times.
func TestShaperSteps(t *testing.T) {
	link := shapedLink(20e6)
	link.Steps = []linkzoo.Step{{At: time.Second, Factor: 0.5}, {At: 2 * time.Second, Factor: 0.25}}
	l := newShapedLab(t, link)
	l.links.begin(int64(2 * time.Second))
	l.send(0, 40e6, 5*time.Second)
	for i, want := range []float64{20e6, 20e6, 20e6, 10e6, 5e6} {
		from := time.Duration(i)*time.Second + 100*time.Millisecond
		if got := l.rate(from, from+800*time.Millisecond); !near(got, want, 0.01) {
			t.Errorf("second %d: %.0f bit/s, want %.0f", i, got, want)
		}
	}
}

func TestShaperOutage(t *testing.T) {
	link := shapedLink(20e6)
	link.Outages = []linkzoo.Outage{{From: time.Second, To: 1500 * time.Millisecond}, {From: 2 * time.Second, To: 3 * time.Second}}
	for _, begun := range []bool{false, true} {
		l := newShapedLab(t, link)
		if begun {
			l.links.begin(0)
		}
		l.send(0, 10e6, 4*time.Second)
		for _, second := range []time.Duration{1000, 2000, 2500} {
			got := l.rate(second*time.Millisecond+10*time.Millisecond, second*time.Millisecond+490*time.Millisecond)
			if want := map[bool]float64{false: 10e6}[begun]; !near(got, want, 0.02) {
				t.Errorf("begun %t: %.0f bit/s after %d ms, want %.0f", begun, got, second, want)
			}
		}
		if got := l.rate(1510*time.Millisecond, 1990*time.Millisecond); !near(got, 10e6, 0.02) {
			t.Errorf("begun %t: %.0f bit/s between the outages", begun, got)
		}
	}
}

// TestShaperSharedBottleneck sends over two links with one bucket, and over their ways back.
func TestShaperSharedBottleneck(t *testing.T) {
	link := shapedLink(10e6)
	link.Bottleneck, link.BackRate = 1, 1e6
	l := newShapedLab(t, link, link)
	const tick = int64(shapedTick)
	for n := 0; l.now < int64(4*time.Second); l.now += tick {
		for ; float64(n)*shapedSize*8/10e6*1e9 < float64(l.now); n++ {
			for way := range l.links.ways {
				l.one(way, n)
			}
		}
		l.links.advance(l.now)
	}
	passed := func(way int) float64 { return float64(l.links.ways[way].stats.Bytes) * 8 / 4 }
	if there, back := passed(0)+passed(2), passed(1)+passed(3); !near(there, 10e6, 0.02) || !near(back, 1e6, 0.1) {
		t.Errorf("%.0f bit/s there and %.0f back, want 10 and 1 Mbit/s for both links together", there, back)
	}
}

// TestShaperDropsOversized checks that a packet that no bucket can hold doesn't block the
// queue.
func TestShaperDropsOversized(t *testing.T) {
	link := shapedLink(10e6)
	link.Burst = 1600
	l := newShapedLab(t, link)
	l.links.accept(0, l.links.ways[0], l.links.pool.get(1700))
	l.one(0, 7)
	l.drain()
	if len(l.arrivals) != 1 || l.links.ways[0].stats.Dropped != 1 {
		t.Errorf("%d packets arrived, stats %+v", len(l.arrivals), l.links.ways[0].stats)
	}
}

func TestShaperAllocatesNothing(t *testing.T) {
	link := shapedLink(100e6)
	link.Delay, link.Jitter, link.Reorders = time.Millisecond, time.Millisecond, true
	links := newShapedLinks(0, []linkzoo.Link{link}, 1, func(*shapedWay, int64, []byte) error { return nil })
	now := int64(0)
	round := func() {
		for range 50 {
			links.accept(now, links.ways[0], links.pool.get(shapedSize))
		}
		now += int64(time.Second)
		links.advance(now)
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations per 50 packets, want 0", n)
	}
}
