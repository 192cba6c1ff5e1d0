package sched

import (
	"testing"
	"time"
)

// breakerTest sends at a path's rate, 10 ms at a time, and reports it with losses.
type breakerTest struct {
	s                *Sender
	p                *Path
	now              time.Duration
	packets, arrived uint32
	owed             float64 // packets that the losses so far are short of their share
}

func newBreakerTest() *breakerTest {
	s := newSender(1)
	b := &breakerTest{s: s, p: s.Path(0), now: time.Second}
	b.p.AddRTT(20 * ms)
	b.p.pacer.rate = 1e6
	return b
}

// step sends for 10 ms, or as long as ten packets take, and loses a share.
func (b *breakerTest) step(loss float64) {
	const size = 100
	d := max(10*ms, b.p.TransmitTime(10*size))
	b.now += d
	n := max(int(b.p.pacer.rate*d.Seconds()/size), 1)
	b.p.Sent(b.now, n, n*size)
	b.packets += uint32(n)
	b.owed += float64(n) * loss
	lost := min(int(b.owed), n-1) // the last one always arrives
	b.owed -= float64(lost)
	b.arrived += uint32(n - lost)
	at := uint32((b.now + 10*ms) / time.Microsecond)
	b.p.Report(b.now+20*ms, Report{HighestSeq: b.packets - 1, Packets: b.arrived, Bytes: b.arrived * size, Arrived: at, CheckedUntil: at, MinDelay: 10_000})
}

func (b *breakerTest) run(d time.Duration, loss float64) {
	for end := b.now + d; b.now < end; {
		b.step(loss)
	}
}

// TestBreaker checks which losses trip the breaker.
func TestBreaker(t *testing.T) {
	for _, tt := range []struct {
		name string
		loss float64
		want bool
	}{
		{"none", 0, false},
		{"much", 0.3, false}, // repair copes with it
		{"too much", 0.4, true},
		{"nearly all", 0.8, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBreakerTest()
			b.run(10*time.Second, tt.loss)
			if b.p.Tripped() != tt.want || b.s.RepairStopped(0) != tt.want {
				t.Errorf("tripped: %v, repair stopped: %v, want %v", b.p.Tripped(), b.s.RepairStopped(0), tt.want)
			}
			if tripped, closed := b.s.BreakerChanges(); tripped != 0 != tt.want || closed != 0 {
				t.Errorf("announced: %b tripped, %b closed", tripped, closed)
			}
			if tripped, _ := b.s.BreakerChanges(); tripped != 0 {
				t.Error("the trip is announced twice")
			}
			if tt.want && b.p.pacer.rate != minRate {
				t.Errorf("the rate is %.0f bytes/s, want %v", b.p.pacer.rate, minRate)
			}
		})
	}
}

// TestBreakerAfterPadding checks that the losses of padding do not count, however long after it
// they are reported, because of the queue.
func TestBreakerAfterPadding(t *testing.T) {
	b := newBreakerTest()
	b.step(0)
	for range 400 {
		b.now += ms
		b.p.pacer.backlogBytes = 0
		if _, ok := b.p.PaddingRoom(b.now); !ok {
			b.p.padding.due = true
		}
		b.p.Sent(b.now, 1, 100)
	}
	sent := b.now
	for range 40 { // reports about padding, of which half is lost
		b.now += 20 * ms
		b.packets, b.arrived = b.packets+10, b.arrived+5
		at := uint32(b.now / time.Microsecond)
		b.p.Report(b.now+10*ms, Report{HighestSeq: b.packets - 1, Packets: b.arrived, Bytes: b.arrived * 100, Arrived: at, CheckedUntil: at, MinDelay: int32((b.now-sent)/time.Microsecond) + 10_000})
	}
	b.p.pacer.rate = 1000
	b.run(2*time.Second, 0)
	if b.p.breaker.limit > 0 || b.p.loss.ratio > 0 {
		t.Errorf("the rate is limited to %.0f bytes/s, the loss counts as %.2f", b.p.breaker.limit, b.p.loss.ratio)
	}
}

// TestBreakerIsPatient checks that the rate is lowered before the breaker trips, and that it
// takes several intervals.
func TestBreakerIsPatient(t *testing.T) {
	b := newBreakerTest()
	for rate := b.p.pacer.rate; !b.p.Tripped(); rate = min(rate, b.p.pacer.rate) {
		if b.step(0.5); b.now > 20*time.Second {
			t.Fatal("it never trips")
		}
		if r := b.p.pacer.rate; r < rate/2.1 && !b.p.Tripped() {
			t.Fatalf("the rate falls from %.0f to %.0f bytes/s at once", rate, r)
		}
	}
	if took := b.now - time.Second; took < tripIntervals*breakerInterval {
		t.Errorf("it trips after %v", took)
	}
	// A heavy interval now and then is no reason.
	b = newBreakerTest()
	for range 10 {
		b.run(1500*ms, 0.5)
		b.run(2500*ms, 0)
	}
	if b.p.breaker.trips > 0 {
		t.Error("it trips although the losses end each time")
	}
}

// TestBreakerCloses checks that the breaker closes when the losses end, and that the rate
// rises step by step until the controller decides alone.
func TestBreakerCloses(t *testing.T) {
	b := newBreakerTest()
	b.run(10*time.Second, 0.5)
	b.run(10*time.Second, 0.25) // less than before, but more than half of heavyLoss
	if !b.p.Tripped() {
		t.Error("it closes although the path still loses a quarter")
	}
	b.s.BreakerChanges()
	for end := b.now + 6*time.Second; b.p.Tripped() && b.now < end; {
		b.step(0)
	}
	if _, closed := b.s.BreakerChanges(); b.p.Tripped() || closed != 1 || b.p.pacer.rate > recoverGrowth*minRate {
		t.Errorf("tripped: %v, announced as closed: %b, %.0f bytes/s", b.p.Tripped(), closed, b.p.pacer.rate)
	}
	for end := b.now + 15*time.Second; b.p.breaker.limit > 0 && b.now < end; {
		b.p.pacer.heldBackAt = b.now
		b.step(0)
	}
	if b.p.breaker.limit > 0 {
		t.Errorf("the rate is still limited, to %.0f bytes/s", b.p.breaker.limit)
	}
}

// TestBreakerIgnoresOutages interrupts a path, half of the time.
func TestBreakerIgnoresOutages(t *testing.T) {
	b := newBreakerTest()
	for range 60 {
		b.run(200*ms, 0)
		for end := b.now + 200*ms; b.now < end; b.now += 10 * ms {
			n := int(b.p.pacer.rate * 0.01 / 100)
			b.p.Sent(b.now, n, 100*n)
			b.packets += uint32(n)
		}
	}
	if b.p.breaker.trips > 0 || b.p.breaker.limit > 0 {
		t.Errorf("it has tripped %d times, the limit is %.0f bytes/s", b.p.breaker.trips, b.p.breaker.limit)
	}
}

// TestBreakerLeavesSidelined checks that a path that is sidelined for its losses does not trip
// as well.
func TestBreakerLeavesSidelined(t *testing.T) {
	b := newBreakerTest()
	b.p.health.sidelined = true
	if b.run(10*time.Second, 0.6); b.p.breaker.trips > 0 || b.p.breaker.limit > 0 {
		t.Errorf("it has tripped %d times, the limit is %.0f bytes/s", b.p.breaker.trips, b.p.breaker.limit)
	}
}

// TestRepairStopped checks for which paths repair stops.
func TestRepairStopped(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		tripped, dead, sidelined []int
		want                     [3]bool
	}{
		{"none", nil, nil, nil, [3]bool{}},
		{"one of three", []int{1}, nil, nil, [3]bool{false, true, false}},
		{"all", []int{0, 1, 2}, nil, nil, [3]bool{true, true, true}},
		{"all that live", []int{0, 1}, []int{2}, nil, [3]bool{true, true, true}},
		{"all that carry data", []int{0, 1}, nil, []int{2}, [3]bool{true, true, true}},
		{"no path lives", nil, []int{0, 1, 2}, nil, [3]bool{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSender(3)
			for _, id := range tt.tripped {
				s.Path(id).breaker.tripped = true
			}
			for _, id := range tt.dead {
				s.Path(id).health.dead = true
			}
			for _, id := range tt.sidelined {
				s.Path(id).health.sidelined = true
			}
			for id, want := range tt.want {
				if got := s.RepairStopped(id); got != want {
					t.Errorf("path %d: %v, want %v", id, got, want)
				}
			}
		})
	}
}
