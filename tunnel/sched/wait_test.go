package sched

import (
	"math"
	"slices"
	"testing"
	"time"
)

// known has a path's rate and what it loses be known since a time.
func known(p *Path, rate, leaks float64, since time.Duration) {
	p.rate, p.leaks, p.known = rate, leaks, since
}

// TestSpoils leaves paths alone beside which others carry more without them.
func TestSpoils(t *testing.T) {
	tests := []struct {
		name string
		set  func(s *Sender, p *Path) // p is the path in question, beside one of 30 that loses nothing
		want bool
	}{
		{"it loses much and brings little", func(_ *Sender, p *Path) { known(p, 5, 0.15, ms) }, true},
		{"it brings as much as it loses times 4", func(_ *Sender, p *Path) { known(p, 22, 0.15, ms) }, false},
		{"it loses little", func(_ *Sender, p *Path) { known(p, 0.1, 0.04, ms) }, false},
		{"the other loses as much", func(s *Sender, p *Path) { known(p, 5, 0.15, ms); s.Path(1).leaks = 0.15 }, false},
		{"the other is not there", func(s *Sender, p *Path) { known(p, 5, 0.15, ms); s.SetUp(1, false) }, false},
		{"the other is left alone itself", func(s *Sender, p *Path) { known(p, 5, 0.15, ms); s.Path(1).spoils = true }, false},
		{"it lost much and loses less", func(_ *Sender, p *Path) { known(p, 0.1, 0.04, ms); p.lossy = true }, true},
		{"it lost much and loses little", func(_ *Sender, p *Path) { known(p, 0.1, 0.02, ms); p.lossy = true }, false},
		{"it lost much and brings more", func(_ *Sender, p *Path) { known(p, 22, 0.15, ms); p.lossy = true }, true},
		{"it lost much and brings much more", func(_ *Sender, p *Path) { known(p, 45, 0.15, ms); p.lossy = true }, false},
		{"it has not brought anything", func(_ *Sender, p *Path) { p.reported = false }, true},
		{"nor has the other", func(s *Sender, p *Path) { p.reported, s.Path(1).reported = false, false }, false},
		{"it came when the other was known", func(_ *Sender, p *Path) { known(p, 30, 0, 0); p.back = 9 * ms }, true},
		{"it came before that", func(_ *Sender, p *Path) { known(p, 30, 0, 0); p.back = 7 * ms }, false},
		{"it was left alone only until it was known", func(_ *Sender, p *Path) { known(p, 0.1, 0.04, ms); p.spoils = true }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sender(2)
			p := s.Path(0)
			bring(p, ms)
			bring(s.Path(1), ms)
			known(s.Path(1), 30, 0, 8*ms)
			tt.set(s, p)
			if s.weigh(p); p.spoils != tt.want {
				t.Errorf("it spoils the others: %v", p.spoils)
			}
		})
	}
}

// TestLeftAlone has nothing but copies and probes go by a path that spoils the others.
func TestLeftAlone(t *testing.T) {
	s := sender(2)
	bring(s.Path(0), ms)
	bring(s.Path(1), 20*ms)
	known(s.Path(0), 1e6, 0.2, ms)
	known(s.Path(1), 10e6, 0, ms)
	s.Check(10 * ms)
	if p, _ := s.Pick(30*ms, 0, 1000); p != s.Path(1) {
		t.Error("the next packet goes by the path that spoils the others, or waits for it")
	}
	if p, _ := s.PickAgain(30*ms, 0, 1000); p != s.Path(1) {
		t.Error("so does one that is sent again")
	}
	if !s.Path(0).Spoils() || s.Path(1).Spoils() || s.Spread() != 0 {
		t.Errorf("left alone: %v, %v; worth to wait for: %v", s.Path(0).Spoils(), s.Path(1).Spoils(), s.Spread())
	}
}

// bringMost has a path bring n more packets but some, at a time, after so much delay.
func bringMost(p *Path, now, delay time.Duration, n, lost int) {
	p.Sent(now, n, n*1000)
	r := p.last
	r.Highest, r.Packets, r.Bytes = uint32(p.seq-1), r.Packets+uint32(n-lost), r.Bytes+uint32(n-lost)*1000
	r.Arrived, r.Delay = r.Arrived+1000, int32(delay/time.Microsecond)
	p.Report(now, r)
}

// TestLeak takes what a path loses from what it brought when it had no queue.
func TestLeak(t *testing.T) {
	begin := func() *Path {
		p := sender(1).Path(0)
		p.padded = -time.Second
		bring(p, ms)
		return p
	}
	p := begin()
	for range 10 {
		bringMost(p, 100*ms, ms, 9, 1)
	}
	if want := 10. / (90 + 2 + knownPrior); math.Abs(p.leaks-want) > 0.005 || p.known != 0 || !p.Unknown() {
		t.Errorf("it loses %.3f, want %.3f; known since %v", p.leaks, want, p.known)
	}
	bringMost(p, 110*ms, ms, 10, 1)
	if p.known != 110*ms || !p.Unknown() {
		t.Errorf("known since %v, to be probed yet: %v", p.known, p.Unknown())
	}
	for range 20 {
		bringMost(p, 120*ms, ms, 100, 0)
	}
	if p.leaks > 0.001 || p.Unknown() {
		t.Errorf("2000 packets later it loses %.3f, to be probed yet: %v", p.leaks, p.Unknown())
	}
	p = begin()
	bringMost(p, 100*ms, ms+queueLong+ms, 100, 50)
	if p.leaks != 0 || p.known == 0 {
		t.Errorf("what a queue lost counts: %.3f; known: %v", p.leaks, p.known)
	}
	p = begin()
	p.padded = 100 * ms
	if bringMost(p, 150*ms, ms, 100, 50); p.leaks != 0 || p.judged > 1 {
		t.Errorf("what padding lost counts: %.3f", p.leaks)
	}
}

// TestReturned has a path bring ever more packets before it is used again that returns ever
// again.
func TestReturned(t *testing.T) {
	s := sender(2)
	p := s.Path(0)
	bring(p, ms)
	come := func(at time.Duration, late bool) {
		p.dead, p.proofs, p.late = true, backAfter, late
		if _, back := s.Check(at); back != 1 {
			t.Fatal("the path is not used again")
		}
	}
	var took []int
	for at := range 8 {
		at := time.Duration(at+1) * time.Second
		if at == 8*time.Second {
			at += steadyAfter
		}
		come(at, false)
		n := 0
		for ; p.known == 0; n += 50 {
			bringMost(p, at, ms, 50, 0)
		}
		took = append(took, n)
	}
	if want := []int{200, 400, 800, 800, 800, 800, 800, 100}; !slices.Equal(took, want) {
		t.Errorf("packets that it took: %v, want %v", took, want)
	}
	if come(30*time.Second, true); p.known == 0 {
		t.Error("what it loses is forgotten though it was only late")
	}
}

// TestTrusted has a path be used at once that went because somebody said so, if it has carried
// enough well.
func TestTrusted(t *testing.T) {
	tests := []struct {
		name    string
		went    func(s *Sender)
		packets int // that it brought before, besides one
		lost    int
		at      time.Duration // when it is back
		trusted bool
		needs   int // else, packets that it has to bring then
	}{
		{"its link was down", func(s *Sender) { s.SetUp(0, false) }, trustAfter, 0, 2 * time.Second, true, 0},
		{"the other end has said so", func(s *Sender) { s.Leave(0) }, trustAfter, 0, 2 * time.Second, true, 0},
		{"the kernel has said so", func(s *Sender) { s.Kill(0) }, trustAfter, 0, 2 * time.Second, true, 0},
		{"it was found dead", func(s *Sender) { s.bury(s.Path(0), false) }, trustAfter, 0, 2 * time.Second, false, 200},
		{"it was found dead before its link was down", func(s *Sender) { s.bury(s.Path(0), false); s.SetUp(0, false) }, trustAfter, 0, 2 * time.Second, false, 200},
		{"it carried little", func(s *Sender) { s.SetUp(0, false) }, trustAfter - 2, 0, 2 * time.Second, false, 100},
		{"it lost some", func(s *Sender) { s.SetUp(0, false) }, trustAfter, 20, 2 * time.Second, false, 200},
		{"it was there for long, and lost some", func(s *Sender) { s.SetUp(0, false) }, trustAfter, 20, 2 * steadyAfter, false, 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sender(2)
			p := s.Path(0)
			p.padded = -time.Second
			bring(p, ms)
			bringMost(p, 100*ms, ms, tt.packets, tt.lost)
			tt.went(s)
			s.SetUp(0, true)
			for range backAfter {
				bringMost(p, tt.at, ms, 2, 1) // lost while the path was dead: that is none of its losses
				s.Check(tt.at)
			}
			if !p.Live() {
				t.Fatal("the path is not used again")
			}
			if trusted := p.known > 0; trusted != tt.trusted {
				t.Fatalf("it is trusted: %v", trusted)
			}
			n := 0
			for ; p.known == 0; n += 50 {
				bringMost(p, tt.at, ms, 50, 0)
			}
			if n != tt.needs {
				t.Errorf("it has to bring %d packets, want %d", n, tt.needs)
			}
		})
	}
}

// TestPickAgain sends what was lost by the path that delivers first, surely.
func TestPickAgain(t *testing.T) {
	tests := []struct {
		name string
		set  func(short, long *Path)
		want int // -1: it waits
	}{
		{"the shortest", func(_, _ *Path) {}, 0},
		{"that runs empty", func(short, _ *Path) { short.paused = 200 * ms }, 1},
		{"that runs empty, not for long", func(short, _ *Path) { short.paused = 103 * ms }, -1},
		{"that is full for a moment", func(short, _ *Path) { short.backlog = 3000 }, -1},
		{"that is full for longer", func(short, _ *Path) { short.backlog = 30000 }, 1},
		{"that loses some", func(short, _ *Path) { short.leaks = 0.04 }, 1},
		{"both do", func(short, long *Path) { short.leaks, long.leaks = 0.04, 0.04 }, 0},
		{"that is left alone", func(short, _ *Path) { short.spoils = true }, 1},
		{"that has not brought anything", func(short, _ *Path) { short.reported = false }, 1},
		{"neither has", func(short, long *Path) { short.reported, long.reported = false, false }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sender(2)
			for id, delay := range []time.Duration{5 * ms, 20 * ms} {
				p := s.Path(id)
				bring(p, delay)
				p.rate, p.backlog, p.carried = 1e6, 0, 100*ms
			}
			tt.set(s.Path(0), s.Path(1))
			p, room := s.PickAgain(100*ms, 0, 500)
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

// TestTell sends reports by the best path and by one of the others, which they do not fill.
func TestTell(t *testing.T) {
	s := sender(4)
	for id, delay := range []time.Duration{9 * ms, 2 * ms, ms, 5 * ms} {
		bring(s.Path(id), delay)
		s.Path(id).rate = 1e6
	}
	s.Path(2).leaks = 0.1
	s.Path(3).reported = false
	tests := []struct{ size, want int }{
		{100, 1000 / 3}, // in turn
		{500, 1000 / 4}, // they take a path 0.5 ms, and may take an eighth of it
	}
	now := time.Duration(0)
	for _, tt := range tests {
		var told [4]int
		for range 999 {
			now += ms
			set := s.Tell(now, tt.size)
			if set&(1<<1) == 0 {
				t.Fatalf("reports go by paths %b, not by the best", set)
			}
			for _, id := range Ones(set) {
				told[id]++
			}
		}
		for _, id := range []int{0, 2, 3} {
			if told[id] < tt.want-1 || told[id] > tt.want+1 {
				t.Errorf("reports of %d bytes by path: %v, want %d by the others", tt.size, told, tt.want)
				break
			}
		}
	}
	for id := range 4 {
		s.SetUp(id, false)
	}
	if set := s.Tell(time.Second, 500); set != 0b1111 {
		t.Errorf("where no path is in use reports go by %b", set)
	}
}

// TestShort has small packets go where full ones would.
func TestShort(t *testing.T) {
	s := sender(2)
	for id, delay := range []time.Duration{2 * ms, 10 * ms} {
		bring(s.Path(id), delay)
	}
	s.Path(0).rate, s.Path(1).rate = 60e3, 6e6 // a full packet takes 25 ms and 0.25
	if p, _ := s.Pick(50*ms, 0, 60); p != s.Path(1) {
		t.Error("60 bytes go by a path over which 1500 come later")
	}
}
