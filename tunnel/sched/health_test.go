package sched

import (
	"testing"
	"time"
)

// TestDeath compares two paths, one of which has not acknowledged packets since 100 ms.
func TestDeath(t *testing.T) {
	tests := []struct {
		name  string
		delay time.Duration // of the silent path, beyond the other's 1 ms
		queue time.Duration // standing in the silent path
		sent  time.Duration // when the newest packet that the other has delivered was sent
		asOf  time.Duration // until when the receiver has looked at the silent path
		set   func(*Sender)
		died  bool
	}{
		{name: "another path delivered later packets", sent: 132 * ms, asOf: 140 * ms, died: true},
		{name: "too early", sent: 128 * ms, asOf: 140 * ms},
		{name: "longer path", delay: 50 * ms, sent: 170 * ms, asOf: 175 * ms},
		{name: "longer path, overdue", delay: 50 * ms, sent: 185 * ms, asOf: 190 * ms, died: true},
		{name: "queue in the path", queue: 60 * ms, sent: 180 * ms, asOf: 185 * ms},
		{name: "queue in the path, overdue", queue: 60 * ms, sent: 195 * ms, asOf: 200 * ms, died: true},
		{name: "receiver has not looked", sent: 190 * ms, asOf: 110 * ms},
		{name: "extra patience", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.Path(0).health.extraPatience = 20 * ms }},
		{name: "new path", sent: 360 * ms, asOf: 370 * ms, set: func(s *Sender) { s.Path(0).padding.since = 1 * ms }},
		{name: "new path, overdue", sent: 390 * ms, asOf: 400 * ms, set: func(s *Sender) { s.Path(0).padding.since = 1 * ms }, died: true},
		{name: "path is no longer new", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.Path(0).padding.since = 1*ms - paddingTime + 98*ms }, died: true},
		{name: "last live path", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.SetUp(1, false) }},
		{name: "path is down", sent: 132 * ms, asOf: 140 * ms, set: func(s *Sender) { s.SetUp(0, false) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSender(2)
			p, o := s.Path(0), s.Path(1)
			deliverTwo(p, 1*ms+tt.delay)
			p.Sent(50*ms, 1, 1000)
			ackUpTo(p, 60*ms, 1*ms+tt.delay+tt.queue, 2)
			for i := range 3 {
				p.Sent(100*ms+time.Duration(i)*ms/10, 1, 1000)
			}
			p.ledger.checkedUntil = uint32(tt.asOf / time.Microsecond)
			deliverTwo(o, 1*ms)
			o.Sent(tt.sent, 1, 1000)
			ackUpTo(o, tt.sent+1*ms, 1*ms, 2)
			if tt.set != nil {
				tt.set(s)
			}
			died, _ := s.Check(tt.sent + 5*ms)
			if died != 0 != tt.died || died&^1 != 0 {
				t.Fatalf("died: %b, want %v", died, tt.died)
			}
			if tt.died && (p.Live() || p.ledger.inFlightBytes != 0) {
				t.Errorf("dead path: live %v, %d bytes in flight", p.Live(), p.ledger.inFlightBytes)
			}
		})
	}
}

// TestReturn checks that a dead path returns when new packets have come through, or when it
// was only late.
func TestReturn(t *testing.T) {
	dead := func() (*Sender, *Path) {
		s := newSender(2)
		p := s.Path(0)
		deliverTwo(p, 1*ms)
		for range 5 {
			p.Sent(100*ms, 1, 1000)
		}
		if !s.Kill(0) || s.Kill(0) || s.Kill(1) {
			t.Fatal("Kill did not take the first path out of use, or took the last one")
		}
		return s, p
	}
	s, p := dead()
	p.Sent(200*ms, 5, 1000) // probes
	for i := range proofsNeeded {
		if _, back := s.Check(300 * ms); back != 0 {
			t.Fatalf("path returned after %d reports", i)
		}
		ackUpTo(p, 300*ms, 1*ms, uint64(8+i))
	}
	if _, back := s.Check(300 * ms); back != 1 || !p.Live() || p.health.extraPatience != 0 {
		t.Errorf("returned: %b, live %v, extra patience %v", back, p.Live(), p.health.extraPatience)
	}
	s, p = dead()
	ackUpTo(p, 300*ms, 1*ms, 3)
	if _, back := s.Check(300 * ms); back != 1 || p.health.extraPatience == 0 {
		t.Errorf("false alarm: returned %b, extra patience %v", back, p.health.extraPatience)
	}
	s.Check(10 * time.Second)
	if p.health.extraPatience != minExtraPatience {
		t.Errorf("extra patience %v right after a false alarm", p.health.extraPatience)
	}
	p.health.extraPatience = 4 * minExtraPatience
	for i, want := range []time.Duration{2 * minExtraPatience, minExtraPatience, 0, 0} {
		if s.Check(time.Duration(i+2) * 11 * time.Second); p.health.extraPatience != want {
			t.Errorf("extra patience %v after %d half-lives, want %v", p.health.extraPatience, i+1, want)
		}
	}
	// Reports without new packets prove nothing.
	s, p = dead()
	for range 5 {
		ackUpTo(p, 300*ms, 1*ms, 1)
	}
	if _, back := s.Check(300 * ms); back != 0 {
		t.Error("reports without new packets revived a path")
	}
}
