package tunnel

import (
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"
)

// TestPaddingOfSizes pads paths of different sizes in turn and checks that the receiver
// understands all of it.
func TestPaddingOfSizes(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for _, size := range []int{1400, 1300, 1400, 1401} {
		o, p := e.a.out, e.a.paths[0]
		o.batch.begin(e.a, p)
		o.batch.addPadding(0, size, 2)
		o.batch.commit(e.a, e.a.sender.Path(0), e.a.now())
		o.batch.send(e.a)
		e.b.in.drain(e.b.paths[0], e.b.paths[0].fd)
	}
	if n, arrived := e.b.stats.invalid.Load(), e.b.in.paths[0].report.Packets; n != 0 || arrived != 8 {
		t.Errorf("%d packets of 8 arrived, %d were invalid", arrived, n)
	}
}

// TestPaddingPauses checks that padding pauses while data is sent, except on paths that
// data does not use, and resumes afterwards.
func TestPaddingPauses(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	o, now := e.a.out, e.a.now()
	o.load.add(now, slowStartPackets-1)
	if _, ok := o.load.paddingRoom(now, e.a.sender.Path(0)); !ok {
		t.Error("no padding beside a little data")
	}
	o.load.windowStart = now + time.Hour // however long the test takes to get here
	pkt := superPacket{proto: packet.UDP, ttl: 64, payload: make([]byte, 100)}
	e.devA.provide(pkt.deviceRead())
	if e.send(t); o.preparePadding(now) {
		t.Error("padding beside data")
	}
	if now = o.load.restUntil; !o.preparePadding(now) {
		t.Error("no padding after the data")
	}
	s := &sched.Sender{}
	known, added := s.Add(now, 0, 1, 0), s.Add(now, 1, 1, 0)
	known.Sent(now, 1, 100)
	known.Report(now, sched.Report{Packets: 1})
	s.Check(now)
	l := load{restUntil: now + 1}
	if _, ok := l.paddingRoom(now, known); ok {
		t.Error("padding on a path that data uses")
	}
	if _, ok := l.paddingRoom(now, added); !ok {
		t.Error("no padding on a path that data does not use")
	}
	known.AddRTT(longRTT)
	if _, ok := l.paddingRoom(now, known); ok {
		t.Error("padding on a long path that data uses")
	}
	known.AddRTT(longRTT - 1)
	if _, ok := l.paddingRoom(now, known); !ok {
		t.Error("no padding on a short path")
	}
	for now < time.Minute {
		now += loadWindow
		o.load.add(now, slowStartPackets)
	}
	if now < o.load.restUntil {
		t.Error("padding pauses forever")
	}
}
