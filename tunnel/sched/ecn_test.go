package sched

import (
	"math"
	"testing"
	"time"
)

// markedPath is a path that is full, and whose packets a router marks.
type markedPath struct {
	*Path
	now    time.Duration
	report Report
}

func newMarkedPath() *markedPath {
	s := &Sender{}
	m := &markedPath{Path: s.Add(0, 0, 1, 0), now: time.Second}
	m.AddRTT(20 * ms)
	m.control.saturated, m.control.capacity, m.control.topRate, m.pacer.rate = true, 1e6, 1e6, 1e6
	return m
}

// send sends 10 packets in 10 ms.
func (m *markedPath) send() {
	m.Sent(m.now, 10, 10000)
	m.now += 10 * ms
}

// deliver reports that what had been sent up to now has arrived, with that many marks.
func (m *markedPath) deliver(end uint64, marked uint32) {
	r := &m.report
	r.Packets, r.Bytes = uint32(end), 1000*uint32(end)
	r.HighestSeq, r.Arrived, r.Marked = uint32(end)-1, uint32(m.now/time.Microsecond), r.Marked+marked
	m.Report(m.now, *r)
}

// TestMarksOncePerRoundTrip marks all packets for a second. The path responds to each packet that
// was sent after the last response, but not to those that were on their way.
func TestMarksOncePerRoundTrip(t *testing.T) {
	const inFlight = 5 // groups of 10 packets
	m := newMarkedPath()
	for range inFlight {
		m.send()
	}
	responses, last := 0, 0.0
	for range 100 {
		m.send()
		m.deliver(m.NextSeq()-10*inFlight, 10)
		if p := m.control.marks.pressure; p > last {
			responses, last = responses+1, p
		}
	}
	// 60 ms until the first packet sent after a response is reported, and 10 ms to count.
	if responses < 12 || responses > 100/inFlight {
		t.Errorf("%d responses in a second, want one in 60 to 80 ms", responses)
	}
	if c := &m.control; c.marks.pressure < 0.9 || c.marks.heldUntil < m.now+minHold/2 || c.capacity < minMarkedRate*c.topRate {
		t.Errorf("pressure %.2f, held for %v, capacity %.0f", c.marks.pressure, c.marks.heldUntil-m.now, c.capacity)
	}
	for range int(markRecovery/(10*ms)) + 10 {
		m.send()
		m.deliver(m.NextSeq()-10*inFlight, 0)
	}
	if c := &m.control; c.marks.pressure > 0 || m.now < c.marks.heldUntil {
		t.Errorf("after %v without marks: pressure %.2f", markRecovery, c.marks.pressure)
	}
}

// TestMarksOfHostilePeer checks what is believed of counters that can't be true.
func TestMarksOfHostilePeer(t *testing.T) {
	tests := []struct {
		name   string
		marked []uint32 // in consecutive reports, each about 10 packets
		want   uint64   // packets that count as marked
	}{
		{"an old peer", []uint32{0, 0, 0, 0}, 0},
		{"all", []uint32{10, 20, 30, 40}, 40},
		{"more than arrived", []uint32{0, 1 << 30, 1<<30 + 1, 1<<30 + 2}, 12},
		{"backwards", []uint32{10, 5, 15, 0}, 20},
		{"beyond 32 bits", []uint32{math.MaxUint32 - 1, 1, 2, 3}, 10 + 3 + 1 + 1},
		{"an old peer after a new one", []uint32{10, 0, 0, 0}, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMarkedPath()
			for _, marked := range tt.marked {
				m.send()
				m.report.Marked = marked
				m.deliver(m.NextSeq(), 0)
			}
			if got := m.ledger.markedPackets; got != tt.want {
				t.Errorf("%d packets count as marked, want %d", got, tt.want)
			}
			if got := m.ledger.deliveredPackets; got != 40 {
				t.Errorf("%d packets count as delivered, want 40", got)
			}
		})
	}
}

// TestMarksAfterReset restarts the sequence numbers while a response is awaited: later marks
// must be noticed.
func TestMarksAfterReset(t *testing.T) {
	s := &Sender{}
	m := newMarkedPath()
	s.paths, s.byID[0] = []*Path{m.Path}, m.Path
	for range 10 {
		m.send()
		m.deliver(m.NextSeq(), 10)
	}
	for !m.control.marks.waiting {
		m.send()
		m.deliver(m.NextSeq(), 10)
	}
	before := m.control.marks.pressure
	s.Reset(m.now, 0)
	m.report = Report{}
	for range 10 {
		m.send()
		m.deliver(m.NextSeq(), 10)
	}
	if got := m.control.marks.pressure; got <= before {
		t.Errorf("pressure is %.2f after more marks, was %.2f", got, before)
	}
}

// TestPressure checks what pressure changes: the queue that a full path keeps, which can still be
// measured, and how fast its rate grows.
func TestPressure(t *testing.T) {
	for _, rate := range []float64{2e6 / 8, 100e6 / 8, 1e9 / 8} {
		m := newMarkedPath()
		m.control.capacity, m.pacer.rate = rate, rate
		target, caution := m.queueTarget(), m.caution()
		m.control.marks.pressure = 1
		if got := m.queueTarget(); got <= m.queueNoise() || got > 0.8*target {
			t.Errorf("%.0f Mbit/s: a full path keeps a queue of %.0f µs under pressure, %.0f without; %.0f can be measured", rate*8e-6, got, target, m.queueNoise())
		}
		if got := m.caution(); got > 0.7*caution {
			t.Errorf("%.0f Mbit/s: grows by %.3f under pressure, by %.3f without", rate*8e-6, got, caution)
		}
		if m.delay.smoothedRTT = time.Second; rate > 10e6 && m.caution() > 1.01*carefulGrowth {
			t.Errorf("%.0f Mbit/s, round trips of 1 s: grows by %.3f under pressure", rate*8e-6, m.caution())
		}
	}
}

// TestHeldPathSavesNothing sends a held path what it is meant to carry for a second: its bucket
// counts as full of nothing more than a burst, so the rate may grow afterwards.
func TestHeldPathSavesNothing(t *testing.T) {
	m := newMarkedPath()
	m.control.savings = savings{at: m.now, noneAt: m.now}
	m.control.marks.heldUntil = m.now + 2*time.Second
	for range 100 {
		m.now += 10 * ms
		m.Sent(m.now, 10, int(heldShare*m.control.capacity/100))
	}
	if got := m.control.savings.bytes; got > 2*fullPacketBytes {
		t.Errorf("a held path has saved %.0f bytes", got)
	}
}
