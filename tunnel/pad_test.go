package tunnel

import (
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"
)

// TestPaddingOfSizes pads paths of different sizes in turn: all of it is understood.
func TestPaddingOfSizes(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for _, size := range []int{1400, 1300, 1400, 1401} {
		o, p := e.a.out, e.a.paths[0]
		o.run.begin(e.a, p)
		o.run.padding(0, size, 2)
		o.run.commit(e.a, e.a.send.Path(0), e.a.now())
		o.run.send(e.a)
		e.b.in.drain(e.b.paths[0], e.b.paths[0].fd)
	}
	if n, came := e.b.stats.strange.Load(), e.b.in.paths[0].report.Packets; n != 0 || came != 8 {
		t.Errorf("%d packets of 8 came, %d were strange", came, n)
	}
}

// TestPaddingRests does not pad beside data, but then, and where data does not go.
func TestPaddingRests(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	o, now := e.a.out, e.a.now()
	o.load.add(now, padLess-1)
	if _, ok := o.load.padding(now, e.a.send.Path(0)); !ok {
		t.Error("no padding beside a little data")
	}
	o.load.since = now + time.Hour // however long it takes to get here
	pkt := super{proto: packet.UDP, ttl: 64, payload: make([]byte, 100)}
	e.devA.hand(pkt.read())
	if e.send(t); o.padOne(now) {
		t.Error("padding beside data")
	}
	if now = o.load.until; !o.padOne(now) {
		t.Error("no padding after it")
	}
	s := &sched.Sender{}
	known, added := s.Add(now, 0, 1, 0), s.Add(now, 1, 1, 0)
	known.Sent(now, 1, 100)
	known.Report(now, sched.Report{Packets: 1})
	s.Check(now)
	l := load{until: now + 1}
	if _, ok := l.padding(now, known); ok {
		t.Error("padding on a path that data uses")
	}
	if _, ok := l.padding(now, added); !ok {
		t.Error("no padding on one that it does not use")
	}
	known.RTT(farTrip)
	if _, ok := l.padding(now, known); ok {
		t.Error("padding on a far path that data uses")
	}
	known.RTT(farTrip - 1)
	if _, ok := l.padding(now, known); !ok {
		t.Error("no padding on a short path")
	}
	for now < time.Minute {
		now += padBeside
		o.load.add(now, padLess)
	}
	if now < o.load.until {
		t.Error("padding rests for ever")
	}
}
