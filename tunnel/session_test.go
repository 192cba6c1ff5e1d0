package tunnel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/wire"
)

// oneDatagram returns a valid inner datagram.
func oneDatagram() superPacket {
	return superPacket{proto: packet.UDP, flow: 7, ttl: 64, payload: make([]byte, 100)}
}

// passOne sends one datagram from the first end to the second, and returns how many
// arrived.
func (e *ends) passOne(t *testing.T) int {
	t.Helper()
	s := oneDatagram()
	e.devA.provide(s.deviceRead())
	e.send(t)
	e.receive(e.b)
	return len(e.devB.readAll())
}

// compatPacket returns a datagram in the compat form with a sequence number.
func compatPacket(seq byte) []byte {
	s := oneDatagram()
	_, pkt := s.build()
	return append([]byte{0x10, 0, 0x08, 0, 0, 0, 0, seq}, pkt...)
}

// helloPacket returns a hello without a key.
func helloPacket(h hello) []byte { return h.append(append(wire.AppendHello(nil), plainHello)) }

// TestSessionHasOneForm checks that packets of the compat form are dropped and change
// nothing at an end that speaks natively or has no session.
func TestSessionHasOneForm(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	if e.passOne(t) != 1 {
		t.Fatal("no packet arrived")
	}
	buf := e.b.in.buf
	receivePackets(e.b, compatPacket(9), mptKeepalivePacket())
	e.b.in.flush()
	if n := len(e.devB.readAll()); n != 0 || e.b.in.buf != buf || len(e.b.in.knownPaths) != 1 || e.b.session.mpt {
		t.Errorf("%d packets of the compat form were delivered; %d known paths", n, len(e.b.in.knownPaths))
	}
	if got := len(drainPath(t, e.a)); got != 0 {
		t.Errorf("a keepalive of the compat form was answered %d times", got)
	}
	if e.passOne(t) != 1 || e.b.in.buf.Stats().Delivered != 2 {
		t.Error("the session has not survived")
	}
	e.b.newSession()
	receivePackets(e.b, compatPacket(9))
	e.b.in.flush()
	if n := len(e.devB.readAll()); n != 0 {
		t.Errorf("%d packets were delivered without a session", n)
	}
}

// TestStaysNative has a peer that has answered natively, at once or after this end had
// fallen back to compat, fall silent for good.
func TestStaysNative(t *testing.T) {
	for _, fellBack := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 1)
		e.a.newSession()
		if fellBack {
			if e.a.fallBack(compatAfter); !e.a.session.compat {
				t.Fatal("the form is not compat without a peer")
			}
		}
		e.a.handleHello(compatAfter, hello{senderName: 5, receiverName: e.a.session.ownName}, e.a.paths[0])
		if !e.a.session.up || e.a.session.compat || !e.a.peerIsNative {
			t.Fatal("no native session")
		}
		for _, now := range []time.Duration{compatAfter, time.Minute, time.Hour} {
			if e.a.fallBack(now); e.a.session.compat {
				t.Fatalf("after %v the form is compat", now)
			}
		}
		e.a.newSession() // however the session ends
		if e.a.fallBack(2 * time.Hour); e.a.session.compat {
			t.Fatal("the form is compat after a native session")
		}
	}
}

// TestTagIsNeeded forges packets of a session without a key.
func TestTagIsNeeded(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	tag := e.a.session.tag
	forge := func(tag uint32, kind wire.Kind) {
		s := oneDatagram()
		_, pkt := s.build()
		shim := wire.Shim{Tag: tag, Kind: kind, Flags: wire.Partial | wire.Datagram}
		b := make([]byte, wire.HeaderBytes)
		shim.Put(b)
		if kind == wire.Control || kind == wire.Probe {
			pkt = wire.Append(nil, wire.TypeLeave, nil)
		}
		receivePackets(e.b, append(b, pkt...))
		e.b.in.flush()
	}
	r := rand.New(rand.NewPCG(1, 2))
	for bit := range 32 {
		for kind := range wire.Control + 1 {
			forge(tag^1<<bit, kind)
			forge(r.Uint32()&^(1<<bit)|^tag&(1<<bit), kind)
		}
	}
	if n := len(e.devB.readAll()); n != 0 || len(e.b.in.knownPaths) > 0 {
		t.Errorf("%d forged packets were delivered, %d known paths", n, len(e.b.in.knownPaths))
	}
	if forge(tag, wire.Data); len(e.devB.readAll()) != 1 {
		t.Error("a packet with the right tag was not delivered: the test proves nothing")
	}
	if tagOf(1, 2) == tagOf(2, 1) || tagOf(1, 2) == tagOf(1, 3) {
		t.Error("different directions or sessions have the same tag")
	}
}

// TestHellos checks what hellos change, depending on who may have sent them.
func TestHellos(t *testing.T) {
	const heardNow, silentLong = 0, 2 * time.Second
	const peer, other = 1002, 1003
	for _, tt := range []struct {
		name   string
		up     bool
		silent time.Duration
		hello  hello // yours: 1 stands for this end's name
		theirs uint64
		isUp   bool
		events []EventKind
	}{
		{"first", false, heardNow, hello{senderName: peer}, peer, false, nil},
		{"with our name", false, heardNow, hello{senderName: peer, receiverName: 1}, peer, true, []EventKind{Established}},
		{"from a stranger, during a session", true, heardNow, hello{senderName: other}, peer, true, nil},
		{"from a stranger, while the peer is silent", true, silentLong, hello{senderName: other}, peer, true, nil},
		{"from a stranger who guesses our name", true, silentLong, hello{senderName: other, receiverName: 7}, peer, true, nil},
		{"from a restarted peer that has just learned our name", true, heardNow, hello{senderName: other, receiverName: 1}, peer, true, nil},
		{"from a restarted peer", true, silentLong, hello{senderName: other, receiverName: 1}, other, true, []EventKind{Restarted}},
		{"from the peer again", true, heardNow, hello{senderName: peer, receiverName: 1}, peer, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var events []EventKind
			e := newEnds(t, Config{OnEvent: func(v Event) { events = append(events, v.Kind) }}, false, 1)
			now := e.b.now() + time.Hour
			e.b.newSession()
			mine := e.b.session.ownName
			if tt.up {
				e.b.setPeerName(peer)
				e.b.session.up, e.b.session.heardAt = true, now-tt.silent
			}
			if tt.hello.receiverName == 1 {
				tt.hello.receiverName = mine
			}
			before := e.b.peerTag.Load()
			e.b.in.handlePacket(now, e.b.paths[0], helloPacket(tt.hello), 0, 0)
			s := &e.b.session
			if s.peerName != tt.theirs || s.up != tt.isUp || s.ownName != mine || !slices.Equal(events, tt.events) {
				t.Errorf("session with %d, up %v; events %v", s.peerName, s.up, events)
			}
			if changed := e.b.peerTag.Load() != before; changed != (!tt.up || tt.theirs != peer) {
				t.Errorf("the expected tag has changed: %v", changed)
			}
			if n := len(drainPath(t, e.a)); n != 1 {
				t.Errorf("answered %d times, want once", n)
			}
		})
	}
}

// TestHellosEnd checks that two ends with a session stop sending hellos.
func TestHellosEnd(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for _, end := range []*Tunnel{e.a, e.b} {
		end.newSession()
	}
	e.a.sendHellos(e.a.now())
	rounds := 0
	for ; rounds < 20; rounds++ {
		for _, end := range []*Tunnel{e.a, e.b} {
			end.paths[0].helloSentAt = 0
		}
		e.receive(e.b)
		e.receive(e.a)
		if e.a.session.up && e.b.session.up && len(drainPath(t, e.a)) == 0 && len(drainPath(t, e.b)) == 0 {
			break
		}
	}
	if rounds > 4 {
		t.Errorf("hellos go on after %d rounds; up: %v and %v", rounds, e.a.session.up, e.b.session.up)
	}
	if e.passOne(t) != 1 {
		t.Error("no packet arrived")
	}
}

// TestHelloFlood has 100,000 strangers send hellos to an end without a session: memory
// must not grow, answers must be few, and the peer must still get a session.
func TestHelloFlood(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	e.a.newSession()
	e.b.newSession()
	buf, now, answers := e.b.in.buf, e.b.now()+time.Second, 0
	for i := range 100_000 {
		now += 10 * time.Microsecond
		e.b.in.handlePacket(now, e.b.paths[0], helloPacket(hello{senderName: rand.Uint64() | 1}), 0, 0)
		if i%100 == 0 {
			answers += len(drainPath(t, e.a))
		}
	}
	if e.b.in.buf != buf {
		t.Error("each hello makes a buffer")
	}
	if most := int(time.Second/helloAnswerInterval) + 2; answers > most {
		t.Errorf("%d answers in a second, want at most %d", answers, most)
	}
	e.a.sendHellos(e.a.now())
	e.receive(e.b)
	e.b.session.helloSentAt = 0
	e.b.sendHellos(now + time.Second)
	e.receive(e.a)
	e.receive(e.b)
	e.receive(e.a)
	if !e.a.session.up || !e.b.session.up {
		t.Errorf("up: %v and %v", e.a.session.up, e.b.session.up)
	}
}

// TestOtherVersions checks that another version of the peer is reported once.
func TestOtherVersions(t *testing.T) {
	old := append([]byte{0x10, 0, 0x88, 0xb5, 0, 0, 0, 0, 0x40}, make([]byte, 29)...) // version 1's hello
	newer := helloPacket(hello{senderName: 1})
	newer[4] = wire.Version + 1
	for _, key := range []bool{false, true} {
		var events []Event
		cfg := Config{OnEvent: func(v Event) { events = append(events, v) }}
		e := newEnds(t, cfg, false, 1)
		if key {
			e.seal(t)
		}
		receivePackets(e.b, old, newer)
		if len(events) > 0 {
			t.Errorf("key %v: events %v during a session", key, events)
		}
		e.b.newSession()
		receivePackets(e.b, old, old, newer, newer)
		if len(events) != 1 || events[0].Kind != Mismatched {
			t.Errorf("key %v: events %v", key, events)
		}
		if n := e.b.stats.invalid.Load(); n != 6 {
			t.Errorf("key %v: %d invalid packets, want 6", key, n)
		}
	}
}
