package sched

import (
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// sender has so many paths, all of which have brought something.
func sender(paths int) *Sender {
	s := &Sender{}
	for id := range paths {
		s.Add(0, id, 1, 0)
	}
	return s
}

// answer reports that all of a path's packets up to a number have come, at a time after so
// much delay. The receiver's clock is the sender's.
func answer(p *Path, now, delay time.Duration, highest uint64) {
	p.Report(now, Report{
		Highest: uint32(highest), Packets: uint32(highest + 1), Bytes: uint32(highest+1) * 1000,
		Arrived: uint32(now / time.Microsecond), AsOf: uint32(now / time.Microsecond), Delay: int32(delay / time.Microsecond),
	})
}

// bring has a path bring its first two packets, after so much delay.
func bring(p *Path, delay time.Duration) {
	for n := range uint64(2) {
		p.Sent(0, 1, 1000)
		answer(p, delay, delay, n)
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
	check := func(what string, want [3]float64) {
		t.Helper()
		sum := float64(bytes[0] + bytes[1] + bytes[2])
		for id, w := range want {
			if got := float64(bytes[id]) / sum; math.Abs(got-w) > 0.02 {
				t.Errorf("%s: path %d has %.3f of the bytes, want %.3f", what, id, got, w)
			}
		}
	}
	send(1000)
	check("all", [3]float64{1. / 8, 2. / 8, 5. / 8})
	s.SetUp(2, false)
	send(1000)
	check("without the third", [3]float64{1. / 3, 2. / 3, 0})
	s.SetUp(2, true)
	s.Path(2).dead = false
	send(80)
	check("it does not catch up", [3]float64{1. / 8, 2. / 8, 5. / 8})
	for id := range 3 {
		s.SetUp(id, false)
	}
	if p, _ := s.Pick(0, 0, 100); p != nil {
		t.Error("picked a path that is down")
	}
}

func TestByFlow(t *testing.T) {
	s := sender(5)
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
		t.Errorf("flows by path: %v", share)
	}
	s.SetUp(3, false)
	for f := range was {
		p, _ := s.Pick(0, uint32(f)*2654435761, 100)
		if p.ID == 3 || p.ID != was[f] && was[f] != 3 {
			t.Fatalf("flow %d went from path %d to %d when path 3 went down", f, was[f], p.ID)
		}
	}
}

func TestBestTwo(t *testing.T) {
	s := sender(4)
	for id, delay := range []time.Duration{9 * ms, 2 * ms, 1 * ms, 5 * ms} {
		bring(s.Path(id), delay)
	}
	s.SetUp(2, false)
	if a, b := s.BestTwo(); a != s.Path(1) || b != s.Path(3) {
		t.Error("the best two are not 1 and 3")
	}
	s = sender(1)
	if a, b := s.BestTwo(); a != s.Path(0) || b != nil {
		t.Error("of one path")
	}
}

// TestEarliest takes the path that delivers first, by its delay and by what waits in it.
func TestEarliest(t *testing.T) {
	s := sender(2)
	for id, delay := range []time.Duration{1 * ms, 2500 * time.Microsecond} {
		p := s.Path(id)
		bring(p, delay)
		p.rate, p.backlog, p.carried = 1e6, 0, 10*ms
	}
	var order []int
	for range 4 {
		p, n := s.Earliest(10*ms, 500)
		if p == nil {
			order = append(order, -1)
			continue
		}
		if n > 1000 {
			t.Errorf("%d bytes in one go, want 1 ms' worth at most", n)
		}
		p.Sent(10*ms, 1, 1000)
		order = append(order, p.ID)
	}
	// The first takes 2 ms of its rate; the second is 1.5 ms longer.
	if want := []int{0, 0, 1, 1}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if p, _ := s.Earliest(10*ms, 500); p != nil {
		t.Error("a path has room beyond its depth")
	}
	if at := s.RoomAt(10 * ms); at != 11*ms {
		t.Errorf("room again at %v, want 11ms", at)
	}
	s.Inflight = 1500
	if p, _ := s.Earliest(20*ms, 500); p != nil {
		t.Error("a path may have more in flight than the peer's buffer holds")
	}
}

// TestDeath compares paths of which one owes an acknowledgement since 100 ms.
func TestDeath(t *testing.T) {
	tests := []struct {
		name  string
		delay time.Duration // of the path that owes, beyond the other's 1 ms
		queue time.Duration // that stands in it besides
		sent  time.Duration // when what the other has brought was sent
		asOf  time.Duration // until when the receiver has looked at the path that owes
		set   func(*Sender)
		died  bool
	}{
		{name: "others have brought what was sent later", sent: 132 * ms, asOf: 140 * ms, died: true},
		{name: "too early to tell", sent: 128 * ms, asOf: 140 * ms},
		{name: "a longer path may take longer", delay: 50 * ms, sent: 170 * ms, asOf: 175 * ms},
		{name: "but not for ever", delay: 50 * ms, sent: 185 * ms, asOf: 190 * ms, died: true},
		{name: "a queue stands in it", queue: 60 * ms, sent: 180 * ms, asOf: 185 * ms},
		{name: "it is overdue with its queue", queue: 60 * ms, sent: 195 * ms, asOf: 200 * ms, died: true},
		{name: "the receiver has not looked", sent: 190 * ms, asOf: 110 * ms},
		{name: "it was late before", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.Path(0).suspect = 20 * ms }},
		{name: "it was new", sent: 360 * ms, asOf: 370 * ms, set: func(s *Sender) { s.Path(0).fresh = 1 * ms }},
		{name: "it was new long ago", sent: 390 * ms, asOf: 400 * ms, set: func(s *Sender) { s.Path(0).fresh = 1 * ms }, died: true},
		{name: "it was not new", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.Path(0).fresh = 1*ms - measureTime + 98*ms }, died: true},
		{name: "the last path", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.SetUp(1, false) }},
		{name: "it is down", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.SetUp(0, false) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sender(2)
			p, o := s.Path(0), s.Path(1)
			bring(p, 1*ms+tt.delay)
			p.Sent(50*ms, 1, 1000)
			answer(p, 60*ms, 1*ms+tt.delay+tt.queue, 2)
			for i := range 3 {
				p.Sent(100*ms+time.Duration(i)*ms/10, 1, 1000)
			}
			p.asOf = uint32(tt.asOf / time.Microsecond)
			bring(o, 1*ms)
			o.Sent(tt.sent, 1, 1000)
			answer(o, tt.sent+1*ms, 1*ms, 2)
			if tt.set != nil {
				tt.set(s)
			}
			died, _ := s.Check(tt.sent + 5*ms)
			if died != 0 != tt.died || died&^1 != 0 {
				t.Fatalf("died: %b, want %v", died, tt.died)
			}
			if tt.died && (p.Live() || p.inflight != 0) {
				t.Errorf("a dead path: live %v, %d bytes in flight", p.Live(), p.inflight)
			}
		})
	}
}

// TestBack uses a dead path again when packets that were sent since have come through, or
// when it was only late.
func TestBack(t *testing.T) {
	dead := func() (*Sender, *Path) {
		s := sender(2)
		p := s.Path(0)
		bring(p, 1*ms)
		for range 5 {
			p.Sent(100*ms, 1, 1000)
		}
		if !s.Kill(0) || s.Kill(0) || s.Kill(1) {
			t.Fatal("the path that was used was not taken out, or the last one was")
		}
		return s, p
	}
	s, p := dead()
	p.Sent(200*ms, 5, 1000) // probes
	for i := range backAfter {
		if _, back := s.Check(300 * ms); back != 0 {
			t.Fatalf("back after %d reports", i)
		}
		answer(p, 300*ms, 1*ms, uint64(8+i))
	}
	if _, back := s.Check(300 * ms); back != 1 || !p.Live() || p.suspect != 0 {
		t.Errorf("back: %b, live %v, more patience by %v", back, p.Live(), p.suspect)
	}
	s, p = dead()
	answer(p, 300*ms, 1*ms, 3)
	if _, back := s.Check(300 * ms); back != 1 || p.suspect == 0 {
		t.Errorf("a path that was late: back %b, more patience by %v", back, p.suspect)
	}
	s.Check(10 * time.Second)
	if p.suspect != suspectLeast {
		t.Errorf("more patience by %v right after a false alarm", p.suspect)
	}
	p.suspect = 4 * suspectLeast
	for i, want := range []time.Duration{2 * suspectLeast, suspectLeast, 0, 0} {
		if s.Check(time.Duration(i+2) * 11 * time.Second); p.suspect != want {
			t.Errorf("more patience by %v after %d times as long, want %v", p.suspect, i+1, want)
		}
	}
	// Nothing new says nothing.
	s, p = dead()
	for range 5 {
		answer(p, 300*ms, 1*ms, 1)
	}
	if _, back := s.Check(300 * ms); back != 0 {
		t.Error("reports without news brought a path back")
	}
}

func TestReportOfNonsense(t *testing.T) {
	p := sender(1).Path(0)
	p.Sent(0, 10, 10000)
	answer(p, 5*ms, 1*ms, 6)
	was := *p
	for _, highest := range []uint64{10, 1 << 31, 5} {
		if n := p.Report(6*ms, Report{Highest: uint32(highest), Packets: 99, Bytes: 1 << 30}); n != 0 || *p != was {
			t.Errorf("a report of packet %d was believed", highest)
		}
	}
	if p.inflight != 10000 {
		t.Errorf("%d bytes in flight: a run is whole or not there", p.inflight)
	}
	answer(p, 7*ms, 1*ms, 9)
	if p.inflight != 0 || p.delivered != 10 || p.lost != 0 {
		t.Errorf("%d bytes in flight, %d packets delivered, %d lost", p.inflight, p.delivered, p.lost)
	}
}

// TestNumbersGoOn has the path that follows another with the same ID go on with its numbers:
// a key must seal no number twice.
func TestNumbersGoOn(t *testing.T) {
	s := sender(2)
	s.Path(0).Sent(0, 7, 100)
	s.Remove(0)
	if s.Path(0) != nil || len(s.Paths()) != 1 {
		t.Fatal("the path is still there")
	}
	if p := s.Add(0, 0, 1, 0); p.Seq() != 7 || s.Path(1).Seq() != 0 {
		t.Errorf("numbers begin at %d and %d, want 7 and 0", p.Seq(), s.Path(1).Seq())
	}
	s.Path(0).Sent(0, 3, 100)
	s.Restart(0, 0)
	if p := s.Path(0); p.Seq() != 0 || p.inflight != 0 {
		t.Errorf("a new life begins at %d with %d bytes in flight", p.Seq(), p.inflight)
	}
}

// TestForgotten has what was sent long ago hold nothing up, though no report came.
func TestForgotten(t *testing.T) {
	s := sender(1)
	s.Path(0).Sent(0, 3, 3000)
	if s.Check(forgetAfter - ms); s.Path(0).inflight != 3000 {
		t.Error("forgotten too early")
	}
	if s.Check(forgetAfter + ms); s.Path(0).inflight != 0 || !s.Path(0).Live() {
		t.Errorf("%d bytes are waited for", s.Path(0).inflight)
	}
}

func TestOnes(t *testing.T) {
	if got := Ones(1<<63 | 1<<5 | 1); !slices.Equal(got, []int{0, 5, 63}) {
		t.Errorf("%v", got)
	}
}

// TestMeasuringEnds has the queue that padding makes not prolong the padding.
func TestMeasuringEnds(t *testing.T) {
	p := sender(1).Path(0)
	p.RTT(10 * ms)
	p.Cold(1 * ms)
	for now := 10 * ms; now < time.Second; now += 10 * ms {
		p.RTT(now)
	}
	last := measureTime + 8*10*ms
	if !p.Measuring(last) || p.Measuring(last+2*ms) {
		t.Errorf("measuring at %v and 2 ms later: %v, %v", last, p.Measuring(last), p.Measuring(last+2*ms))
	}
}

// TestCopies has copies go out though every path is to run empty, to see its least delay.
func TestCopies(t *testing.T) {
	s := sender(3)
	for id, delay := range []time.Duration{3 * ms, 1 * ms, 2 * ms} {
		bring(s.Path(id), delay)
		s.Path(id).carry(10 * ms)
		s.Path(id).sound(10 * ms)
	}
	if p, _ := s.Earliest(11*ms, 500); p != nil {
		t.Fatal("a path that is to run empty has room")
	}
	if to, room := s.Copies(11*ms, 500, false); to != 0b111 || room < 500 {
		t.Errorf("copies on all paths: %b, %d bytes", to, room)
	}
	if to, _ := s.Copies(11*ms, 500, true); to != 0b110 {
		t.Errorf("copies on the best two: %b", to)
	}
	for _, p := range s.Paths() {
		if p.sampling {
			t.Errorf("path %d takes what comes for its least delay", p.ID)
		}
		p.Sent(11*ms, 1, 1<<20)
	}
	if to, _ := s.Copies(11*ms, 500, false); to != 0 {
		t.Errorf("copies without room: %b", to)
	}
	s = sender(1)
	if to, _ := s.Copies(11*ms, 500, true); to != 1 {
		t.Errorf("the best two of one path: %b", to)
	}
}
