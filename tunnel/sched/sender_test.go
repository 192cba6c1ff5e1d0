package sched

import (
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// newSender returns a Sender with the given number of paths.
func newSender(paths int) *Sender {
	s := &Sender{}
	for id := range paths {
		s.Add(0, id, 1, 0)
	}
	return s
}

// ackUpTo reports, at a time, that all packets up to a number have arrived after the given
// delay. Both ends have the same clock.
func ackUpTo(p *Path, now, delay time.Duration, highest uint64) {
	p.Report(now, Report{
		HighestSeq: uint32(highest), Packets: uint32(highest + 1), Bytes: uint32(highest+1) * 1000,
		Arrived: uint32(now / time.Microsecond), CheckedUntil: uint32(now / time.Microsecond), MinDelay: int32(delay / time.Microsecond),
	})
}

// deliverTwo delivers the first two packets of a path with the given delay.
func deliverTwo(p *Path, delay time.Duration) {
	for n := range uint64(2) {
		p.Sent(0, 1, 1000)
		ackUpTo(p, delay, delay, n)
	}
}

func TestWeighted(t *testing.T) {
	s := &Sender{Mode: Weighted}
	for id, w := range []int{1, 2, 5} {
		s.Add(0, id, w, 0)
	}
	var bytes [3]int
	send := func(n int) {
		bytes = [3]int{}
		for i := range n {
			size := 100 + i*37%1400
			p, _ := s.Pick(0, 0, size)
			bytes[p.ID] += size
		}
	}
	check := func(name string, want [3]float64) {
		t.Helper()
		sum := float64(bytes[0] + bytes[1] + bytes[2])
		for id, w := range want {
			if got := float64(bytes[id]) / sum; math.Abs(got-w) > 0.02 {
				t.Errorf("%s: path %d carries %.3f of the bytes, want %.3f", name, id, got, w)
			}
		}
	}
	send(1000)
	check("all", [3]float64{1. / 8, 2. / 8, 5. / 8})
	s.SetUp(2, false)
	send(1000)
	check("without path 2", [3]float64{1. / 3, 2. / 3, 0})
	s.SetUp(2, true)
	s.Path(2).health.dead = false
	send(80)
	check("path 2 is back and does not catch up", [3]float64{1. / 8, 2. / 8, 5. / 8})
	for id := range 3 {
		s.SetUp(id, false)
	}
	if p, _ := s.Pick(0, 0, 100); p != nil {
		t.Error("picked a path although all are down")
	}
}

func TestByFlow(t *testing.T) {
	s := newSender(5)
	s.Mode = Flow
	const flows = 5000
	was := make([]int, flows)
	var share [5]int
	for f := range was {
		p, _ := s.Pick(0, uint32(f)*2654435761, 100)
		was[f] = p.ID
		share[p.ID]++
	}
	if lo, hi := slices.Min(share[:]), slices.Max(share[:]); lo < flows/5*8/10 || hi > flows/5*12/10 {
		t.Errorf("flows per path: %v", share)
	}
	s.SetUp(3, false)
	for f := range was {
		p, _ := s.Pick(0, uint32(f)*2654435761, 100)
		if p.ID == 3 || p.ID != was[f] && was[f] != 3 {
			t.Fatalf("flow %d moved from path %d to %d when path 3 went down", f, was[f], p.ID)
		}
	}
}

func TestBestTwo(t *testing.T) {
	s := newSender(4)
	for id, delay := range []time.Duration{9 * ms, 2 * ms, 1 * ms, 5 * ms} {
		deliverTwo(s.Path(id), delay)
	}
	s.SetUp(2, false)
	if a, b := s.bestTwo(); a != s.Path(1) || b != s.Path(3) {
		t.Error("bestTwo did not return paths 1 and 3")
	}
	s = newSender(1)
	if a, b := s.bestTwo(); a != s.Path(0) || b != nil {
		t.Error("bestTwo of a single path returned something else")
	}
}

// TestEarliest checks that the path that delivers first is picked, by delay and backlog.
func TestEarliest(t *testing.T) {
	s := newSender(2)
	for id, delay := range []time.Duration{1 * ms, 2500 * time.Microsecond} {
		p := s.Path(id)
		deliverTwo(p, delay)
		p.pacer.rate, p.pacer.backlogBytes, p.pacer.drainedAt = 1e6, 0, 10*ms
	}
	var order []int
	for range 4 {
		p, n := s.earliest(10*ms, 500)
		if p == nil {
			order = append(order, -1)
			continue
		}
		if n > 1000 {
			t.Errorf("may send %d bytes at once, want at most 1 ms' worth", n)
		}
		p.Sent(10*ms, 1, 1000)
		order = append(order, p.ID)
	}
	// The first path takes 2 ms of its rate; the second is 1.5 ms longer.
	if want := []int{0, 0, 1, 1}; !slices.Equal(order, want) {
		t.Errorf("paths picked: %v, want %v", order, want)
	}
	if p, _ := s.earliest(10*ms, 500); p != nil {
		t.Error("a path has room beyond backlogTime")
	}
	if at := s.RoomAt(10*ms, 1); at != 11*ms {
		t.Errorf("RoomAt is %v, want 11ms", at)
	}
	s.MaxInFlightBytes = 1500
	if p, _ := s.earliest(20*ms, 500); p != nil {
		t.Error("a path has room beyond what the peer's buffer holds")
	}
}

func TestImpossibleReport(t *testing.T) {
	p := newSender(1).Path(0)
	p.Sent(0, 10, 10000)
	ackUpTo(p, 5*ms, 1*ms, 6)
	was := *p
	for _, highest := range []uint64{10, 1 << 31, 5} {
		if n := p.Report(6*ms, Report{HighestSeq: uint32(highest), Packets: 99, Bytes: 1 << 30}); n != 0 || *p != was {
			t.Errorf("a report about packet %d was accepted", highest)
		}
	}
	if p.ledger.inFlightBytes != 10000 {
		t.Errorf("%d bytes in flight, want the whole run of 10000", p.ledger.inFlightBytes)
	}
	ackUpTo(p, 7*ms, 1*ms, 9)
	if p.ledger.inFlightBytes != 0 || p.ledger.deliveredPackets != 10 || p.ledger.lostPackets != 0 {
		t.Errorf("%d bytes in flight, %d packets delivered, %d lost", p.ledger.inFlightBytes, p.ledger.deliveredPackets, p.ledger.lostPackets)
	}
}

// TestSequenceContinues checks that a path continues the numbers of the last path with its ID:
// a key must never seal a number twice.
func TestSequenceContinues(t *testing.T) {
	s := newSender(2)
	s.Path(0).Sent(0, 7, 100)
	s.Remove(0)
	if s.Path(0) != nil || len(s.Paths()) != 1 {
		t.Fatal("the removed path is still there")
	}
	if p := s.Add(0, 0, 1, 0); p.NextSeq() != 7 || s.Path(1).NextSeq() != 0 {
		t.Errorf("numbers begin at %d and %d, want 7 and 0", p.NextSeq(), s.Path(1).NextSeq())
	}
	s.Path(0).Sent(0, 3, 100)
	s.Reset(0, 0)
	if p := s.Path(0); p.NextSeq() != 0 || p.ledger.inFlightBytes != 0 {
		t.Errorf("after Reset, numbers begin at %d and %d bytes are in flight", p.NextSeq(), p.ledger.inFlightBytes)
	}
}

// TestForgetOld checks that a run is forgotten after forgetAfter even without a report.
func TestForgetOld(t *testing.T) {
	s := newSender(1)
	s.Path(0).Sent(0, 3, 3000)
	if s.Check(forgetAfter - ms); s.Path(0).ledger.inFlightBytes != 3000 {
		t.Error("forgotten too early")
	}
	if s.Check(forgetAfter + ms); s.Path(0).ledger.inFlightBytes != 0 || !s.Path(0).Live() {
		t.Errorf("%d bytes still in flight", s.Path(0).ledger.inFlightBytes)
	}
}

func TestPathIDs(t *testing.T) {
	if got := PathIDs(1<<63 | 1<<5 | 1); !slices.Equal(got, []int{0, 5, 63}) {
		t.Errorf("%v", got)
	}
}

// TestMeasuringTime checks that the queue caused by padding does not prolong the
// measurement.
func TestMeasuringTime(t *testing.T) {
	p := newSender(1).Path(0)
	p.AddRTT(10 * ms)
	p.PaddingRoom(1 * ms)
	for now := 10 * ms; now < time.Second; now += 10 * ms {
		p.AddRTT(now)
	}
	last := paddingTime + 8*10*ms
	if !p.Measuring(last) || p.Measuring(last+2*ms) {
		t.Errorf("measuring at %v and 2 ms later: %v, %v; want true, false", last, p.Measuring(last), p.Measuring(last+2*ms))
	}
}

// TestCopyPaths checks that copies are sent although every path is being drained.
func TestCopyPaths(t *testing.T) {
	s := newSender(3)
	for id, delay := range []time.Duration{3 * ms, 1 * ms, 2 * ms} {
		deliverTwo(s.Path(id), delay)
		s.Path(id).pacer.advance(10 * ms)
		s.Path(id).startDrain(10 * ms)
	}
	if p, _ := s.earliest(11*ms, 500); p != nil {
		t.Fatal("a path that is being drained has room")
	}
	if to, room := s.CopyPaths(11*ms, 500, false); to != 0b111 || room < 500 {
		t.Errorf("copies on all paths: paths %b, %d bytes", to, room)
	}
	if to, _ := s.CopyPaths(11*ms, 500, true); to != 0b110 {
		t.Errorf("copies on the best two: paths %b", to)
	}
	for _, p := range s.Paths() {
		if p.drain.sampling {
			t.Errorf("path %d is still being drained", p.ID)
		}
		p.Sent(11*ms, 1, 1<<20)
	}
	if to, _ := s.CopyPaths(11*ms, 500, false); to != 0 {
		t.Errorf("copies without room: paths %b", to)
	}
	s = newSender(1)
	if to, _ := s.CopyPaths(11*ms, 500, true); to != 1 {
		t.Errorf("copies on the best two of one path: paths %b", to)
	}
}

// TestPickResend checks that a resent packet takes the path with the best chance of early
// delivery.
func TestPickResend(t *testing.T) {
	tests := []struct {
		name string
		set  func(short, long *Path)
		want int // -1: none
	}{
		{"the short path", func(_, _ *Path) {}, 0},
		{"short path drains", func(short, _ *Path) { short.pacer.pausedUntil = 200 * ms }, 1},
		{"short path drains for a moment", func(short, _ *Path) { short.pacer.pausedUntil = 103 * ms }, -1},
		{"short path is full for a moment", func(short, _ *Path) { short.pacer.backlogBytes = 3000 }, -1},
		{"short path is full", func(short, _ *Path) { short.pacer.backlogBytes = 30000 }, 1},
		{"short path has a long queue", func(short, _ *Path) { short.delay.standingQueue = 50e3 }, 1},
		{"short path loses some", func(short, _ *Path) { short.loss.ratio = 0.04 }, 1},
		{"both paths lose some", func(short, long *Path) { short.loss.ratio, long.loss.ratio = 0.04, 0.04 }, 0},
		{"short path is sidelined", func(short, _ *Path) { short.health.sidelined = true }, 1},
		{"short path has delivered nothing", func(short, _ *Path) { short.ledger.reported = false }, 1},
		{"neither has delivered anything", func(short, long *Path) { short.ledger.reported, long.ledger.reported = false, false }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSender(2)
			for id, delay := range []time.Duration{5 * ms, 20 * ms} {
				p := s.Path(id)
				deliverTwo(p, delay)
				p.pacer.rate, p.pacer.backlogBytes, p.pacer.drainedAt = 1e6, 0, 100*ms
			}
			tt.set(s.Path(0), s.Path(1))
			p, room := s.PickResend(100*ms, 0, 500)
			got := -1
			if p != nil {
				got = p.ID
			}
			if got != tt.want || p != nil && room < 500 {
				t.Errorf("path %d, %d bytes; want path %d", got, room, tt.want)
			}
		})
	}
}

// TestPickResendOfMany checks that many packets that are sent again don't all wait for a short
// path that is full for a moment.
func TestPickResendOfMany(t *testing.T) {
	s := newSender(2)
	for id, delay := range []time.Duration{5 * ms, 20 * ms} {
		p := s.Path(id)
		deliverTwo(p, delay)
		p.pacer.rate, p.pacer.backlogBytes, p.pacer.drainedAt = 1e6, 0, 100*ms
	}
	s.Path(0).pacer.backlogBytes = 3000
	for _, tt := range []struct {
		bytes, want int
	}{{500, -1}, {10000, -1}, {30000, 1}} {
		got := -1
		s.ResendBytes = tt.bytes
		if p, _ := s.PickResend(100*ms, 0, 500); p != nil {
			got = p.ID
		}
		if got != tt.want {
			t.Errorf("with %d bytes waiting, path %d, want %d", tt.bytes, got, tt.want)
		}
	}
}

// TestSmallPackets checks that small packets take the path that full ones would.
func TestSmallPackets(t *testing.T) {
	s := newSender(2)
	for id, delay := range []time.Duration{2 * ms, 10 * ms} {
		deliverTwo(s.Path(id), delay)
	}
	s.Path(0).pacer.rate, s.Path(1).pacer.rate = 60e3, 6e6 // a full packet takes 25 ms and 0.25 ms
	if p, _ := s.Pick(50*ms, 0, 60); p != s.Path(1) {
		t.Error("60 bytes take the path on which 1500 would arrive later")
	}
}

// TestBulkWaits checks that a packet of a sparse flow marks full paths as held back only if no
// packets of bulk flows wait.
func TestBulkWaits(t *testing.T) {
	for _, bulkWaits := range []bool{false, true} {
		s := newSender(2)
		now := time.Second
		for _, p := range s.Paths() {
			p.pacer.advance(now)
			p.Sent(now, 100, 150_000)
			p.pacer.heldBackAt = 0
		}
		s.BulkWaits = bulkWaits
		if p, _ := s.Pick(now, 1, 100); p != nil {
			t.Fatalf("path %d has room", p.ID)
		}
		for _, p := range s.Paths() {
			if marked := p.pacer.heldBackAt == now; marked == bulkWaits {
				t.Errorf("bulk packets wait: %v; path %d is held back: %v", bulkWaits, p.ID, marked)
			}
		}
	}
}
