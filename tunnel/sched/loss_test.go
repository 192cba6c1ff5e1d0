package sched

import (
	"math"
	"slices"
	"testing"
	"time"
)

// setLoss sets a path's rate and a loss that is known since a time.
func setLoss(p *Path, rate, ratio float64, since time.Duration) {
	p.pacer.rate, p.loss.ratio, p.loss.knownSince = rate, ratio, since
}

// TestSidelined checks which paths are sidelined beside a path with a rate of 30 and no
// loss.
func TestSidelined(t *testing.T) {
	tests := []struct {
		name string
		set  func(s *Sender, p *Path) // p is the path in question
		want bool
	}{
		{"loses much, delivers little", func(_ *Sender, p *Path) { setLoss(p, 5, 0.15, ms) }, true},
		{"delivers 4 times what it loses", func(_ *Sender, p *Path) { setLoss(p, 22, 0.15, ms) }, false},
		{"loses little", func(_ *Sender, p *Path) { setLoss(p, 0.1, 0.04, ms) }, false},
		{"the other loses as much", func(s *Sender, p *Path) { setLoss(p, 5, 0.15, ms); s.Path(1).loss.ratio = 0.15 }, false},
		{"the other is down", func(s *Sender, p *Path) { setLoss(p, 5, 0.15, ms); s.SetUp(1, false) }, false},
		{"the other is sidelined", func(s *Sender, p *Path) { setLoss(p, 5, 0.15, ms); s.Path(1).health.sidelined = true }, false},
		{"sidelined, loses less than before", func(_ *Sender, p *Path) { setLoss(p, 0.1, 0.04, ms); p.health.sidelinedForLoss = true }, true},
		{"sidelined, loses little now", func(_ *Sender, p *Path) { setLoss(p, 0.1, 0.02, ms); p.health.sidelinedForLoss = true }, false},
		{"sidelined, delivers more than before", func(_ *Sender, p *Path) { setLoss(p, 22, 0.15, ms); p.health.sidelinedForLoss = true }, true},
		{"sidelined, delivers much more", func(_ *Sender, p *Path) { setLoss(p, 45, 0.15, ms); p.health.sidelinedForLoss = true }, false},
		{"has delivered nothing", func(_ *Sender, p *Path) { p.ledger.reported = false }, true},
		{"neither has delivered anything", func(s *Sender, p *Path) { p.ledger.reported, s.Path(1).ledger.reported = false, false }, false},
		{"came after the other was known", func(_ *Sender, p *Path) { setLoss(p, 30, 0, 0); p.health.returnedAt = 9 * ms }, true},
		{"came before the other was known", func(_ *Sender, p *Path) { setLoss(p, 30, 0, 0); p.health.returnedAt = 7 * ms }, false},
		{"sidelined only until its loss was known", func(_ *Sender, p *Path) { setLoss(p, 0.1, 0.04, ms); p.health.sidelined = true }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSender(2)
			p := s.Path(0)
			deliverTwo(p, ms)
			deliverTwo(s.Path(1), ms)
			setLoss(s.Path(1), 30, 0, 8*ms)
			tt.set(s, p)
			if s.updateSidelined(p); p.health.sidelined != tt.want {
				t.Errorf("sidelined: %v, want %v", p.health.sidelined, tt.want)
			}
		})
	}
}

// TestSidelinedIsAvoided checks that packets avoid a sidelined path.
func TestSidelinedIsAvoided(t *testing.T) {
	s := newSender(2)
	deliverTwo(s.Path(0), ms)
	deliverTwo(s.Path(1), 20*ms)
	setLoss(s.Path(0), 1e6, 0.2, ms)
	setLoss(s.Path(1), 10e6, 0, ms)
	s.Check(10 * ms)
	if p, _ := s.Pick(30*ms, 0, 1000); p != s.Path(1) {
		t.Error("the next packet takes the sidelined path, or waits for it")
	}
	if p, _ := s.PickResend(30*ms, 0, 1000); p != s.Path(1) {
		t.Error("a resent packet takes the sidelined path, or waits for it")
	}
	if !s.Path(0).Sidelined() || s.Path(1).Sidelined() || s.Spread() != 0 {
		t.Errorf("sidelined: %v, %v; spread %v", s.Path(0).Sidelined(), s.Path(1).Sidelined(), s.Spread())
	}
}

// deliverMost delivers n more packets of a path, except some that are lost, at a time and
// with the given delay.
func deliverMost(p *Path, now, delay time.Duration, n, lost int) {
	p.Sent(now, n, n*1000)
	r := p.ledger.lastReport
	r.HighestSeq, r.Packets, r.Bytes = uint32(p.ledger.nextSeq-1), r.Packets+uint32(n-lost), r.Bytes+uint32(n-lost)*1000
	r.Arrived, r.MinDelay = r.Arrived+100_000, int32(delay/time.Microsecond)
	p.Report(now, r)
}

// TestLossEstimate checks how the loss of a path is estimated, and what does not count.
func TestLossEstimate(t *testing.T) {
	begin := func() *Path {
		p := newSender(1).Path(0)
		p.padding.lastAt = -time.Second
		deliverTwo(p, ms)
		return p
	}
	p := begin()
	for range 10 {
		deliverMost(p, 100*ms, ms, 9, 1)
	}
	if want := 10. / (90 + 2 + lossPriorPackets); math.Abs(p.loss.ratio-want) > 0.005 || p.loss.knownSince != 0 || !p.LossUnknown() {
		t.Errorf("loss is %.3f, want %.3f; known since %v", p.loss.ratio, want, p.loss.knownSince)
	}
	deliverMost(p, 110*ms, ms, 10, 1)
	if p.loss.knownSince != 110*ms || !p.LossUnknown() {
		t.Errorf("loss known since %v, LossUnknown %v", p.loss.knownSince, p.LossUnknown())
	}
	for range 20 {
		deliverMost(p, 120*ms, ms, 100, 0)
	}
	if p.loss.ratio > 0.001 || p.LossUnknown() {
		t.Errorf("2000 packets later the loss is %.3f, LossUnknown %v", p.loss.ratio, p.LossUnknown())
	}
	p = begin()
	deliverMost(p, 100*ms, ms+longQueue+ms, 100, 50)
	if p.loss.ratio != 0 || p.loss.knownSince == 0 {
		t.Errorf("losses in a long queue count: %.3f; known since %v", p.loss.ratio, p.loss.knownSince)
	}
	p = begin()
	p.padding.lastAt = 100 * ms
	if deliverMost(p, 150*ms, ms, 100, 50); p.loss.ratio != 0 || p.loss.samplePackets > 1 {
		t.Errorf("losses after padding count: %.3f", p.loss.ratio)
	}
}

// TestQuickReturns checks that a path that keeps returning has to deliver more packets each
// time before it is used.
func TestQuickReturns(t *testing.T) {
	s := newSender(2)
	p := s.Path(0)
	deliverTwo(p, ms)
	revive := func(at time.Duration, late bool) {
		p.health.dead, p.health.proofReports, p.health.falseAlarm = true, proofsNeeded, late
		if _, back := s.Check(at); back != 1 {
			t.Fatal("the path did not return")
		}
	}
	var took []int
	for at := range 8 {
		at := time.Duration(at+1) * time.Second
		if at == 8*time.Second {
			at += steadyTime
		}
		revive(at, false)
		n := 0
		for ; p.loss.knownSince == 0; n += 50 {
			deliverMost(p, at, ms, 50, 0)
		}
		took = append(took, n)
	}
	if want := []int{200, 400, 800, 800, 800, 800, 800, 100}; !slices.Equal(took, want) {
		t.Errorf("packets needed after each return: %v, want %v", took, want)
	}
	if revive(30*time.Second, true); p.loss.knownSince == 0 {
		t.Error("a false alarm reset the loss")
	}
}

// TestAnnouncedDeath checks that a path whose death was announced is used at once when it
// returns, if it has delivered enough without loss.
func TestAnnouncedDeath(t *testing.T) {
	tests := []struct {
		name    string
		kill    func(s *Sender)
		packets int // delivered before the death, besides one
		lost    int
		at      time.Duration // when it returns
		trusted bool
		needs   int // otherwise, packets that it has to deliver
	}{
		{"link down", func(s *Sender) { s.SetUp(0, false) }, trustPackets, 0, 2 * time.Second, true, 0},
		{"withdrawn by the peer", func(s *Sender) { s.Withdraw(0) }, trustPackets, 0, 2 * time.Second, true, 0},
		{"killed by the kernel", func(s *Sender) { s.Kill(0) }, trustPackets, 0, 2 * time.Second, true, 0},
		{"found dead", func(s *Sender) { s.Path(0).markDead(false) }, trustPackets, 0, 2 * time.Second, false, 200},
		{"found dead before the link went down", func(s *Sender) { s.Path(0).markDead(false); s.SetUp(0, false) }, trustPackets, 0, 2 * time.Second, false, 200},
		{"delivered little", func(s *Sender) { s.SetUp(0, false) }, trustPackets - 2, 0, 2 * time.Second, false, 100},
		{"lost some", func(s *Sender) { s.SetUp(0, false) }, trustPackets, 20, 2 * time.Second, false, 200},
		{"was up for long, lost some", func(s *Sender) { s.SetUp(0, false) }, trustPackets, 20, 2 * steadyTime, false, 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSender(2)
			p := s.Path(0)
			p.padding.lastAt = -time.Second
			deliverTwo(p, ms)
			deliverMost(p, 100*ms, ms, tt.packets, tt.lost)
			tt.kill(s)
			s.SetUp(0, true)
			for range proofsNeeded {
				deliverMost(p, tt.at, ms, 2, 1) // lost while the path was dead, so it does not count
				s.Check(tt.at)
			}
			if !p.Live() {
				t.Fatal("the path is not live")
			}
			if trusted := p.loss.knownSince > 0; trusted != tt.trusted {
				t.Fatalf("trusted: %v, want %v", trusted, tt.trusted)
			}
			n := 0
			for ; p.loss.knownSince == 0; n += 50 {
				deliverMost(p, tt.at, ms, 50, 0)
			}
			if n != tt.needs {
				t.Errorf("needs %d packets, want %d", n, tt.needs)
			}
		})
	}
}
