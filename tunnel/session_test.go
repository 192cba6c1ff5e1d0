package tunnel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/wire"
)

// oneDatagram is a datagram that an end may hand over.
func oneDatagram() super {
	return super{proto: packet.UDP, flow: 7, ttl: 64, payload: make([]byte, 100)}
}

// passes has one datagram go from the first end to the second, and returns how many came.
func (e *ends) passes(t *testing.T) int {
	t.Helper()
	s := oneDatagram()
	e.devA.hand(s.read())
	e.send(t)
	e.round(e.b)
	return len(e.devB.written())
}

// compatPacket is a datagram in the compat form with a sequence number.
func compatPacket(seq byte) []byte {
	s := oneDatagram()
	_, pkt := s.build()
	return append([]byte{0x10, 0, 0x08, 0, 0, 0, 0, seq}, pkt...)
}

// greeting is a greeting without a key.
func greeting(h hello) []byte { return h.append(append(wire.AppendHello(nil), plainGreeting)) }

// TestSessionIsOfOneForm has packets of the compat form come to an end that speaks
// natively, or that has not decided yet: they are dropped, and change nothing.
func TestSessionIsOfOneForm(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	if e.passes(t) != 1 {
		t.Fatal("nothing passes")
	}
	buf := e.b.in.buf
	hearAll(e.b, compatPacket(9), mptSample())
	e.b.in.flush()
	if n := len(e.devB.written()); n != 0 || e.b.in.buf != buf || len(e.b.in.heard) != 1 || e.b.sess.mpt {
		t.Errorf("%d packets of the other form were delivered; %d paths are known", n, len(e.b.in.heard))
	}
	if got := len(letters(t, e.a)); got != 0 {
		t.Errorf("a keepalive of the other form was answered %d times", got)
	}
	if e.passes(t) != 1 || e.b.in.buf.Stats().Delivered != 2 {
		t.Error("the session does not go on")
	}
	e.b.beginLife()
	hearAll(e.b, compatPacket(9))
	e.b.in.flush()
	if n := len(e.devB.written()); n != 0 {
		t.Errorf("%d packets were delivered before there was a session", n)
	}
}

// TestStaysNative has a peer that has answered natively fall silent for good.
func TestStaysNative(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	e.a.beginLife()
	e.a.hear(0, hello{mine: 5, yours: e.a.sess.mine}, e.a.paths[0])
	if !e.a.sess.up || !e.a.native {
		t.Fatal("no session")
	}
	for _, now := range []time.Duration{compatAfter, time.Minute, time.Hour} {
		if e.a.fallBack(now); e.a.sess.compat {
			t.Fatalf("after %v the form is another", now)
		}
	}
}

// TestTagIsNeeded forges packets of a session without a key.
func TestTagIsNeeded(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	tag := e.a.sess.tag
	forge := func(tag uint32, kind wire.Kind) {
		s := oneDatagram()
		_, pkt := s.build()
		shim := wire.Shim{Tag: tag, Kind: kind, Flags: wire.Partial | wire.Datagram}
		b := make([]byte, wire.HeaderBytes)
		shim.Put(b)
		if kind == wire.Control || kind == wire.Probe {
			pkt = wire.Append(nil, wire.TypeLeave, nil)
		}
		hearAll(e.b, append(b, pkt...))
		e.b.in.flush()
	}
	r := rand.New(rand.NewPCG(1, 2))
	for bit := range 32 {
		for kind := range wire.Control + 1 {
			forge(tag^1<<bit, kind)
			forge(r.Uint32()|tag^1<<bit&^tag, kind)
		}
	}
	if n := len(e.devB.written()); n != 0 || len(e.b.in.heard) > 0 {
		t.Errorf("%d forged packets were delivered, %d paths heard of", n, len(e.b.in.heard))
	}
	if forge(tag, wire.Data); len(e.devB.written()) != 1 {
		t.Error("the true tag does not help: the test proves nothing")
	}
	if tagOf(1, 2) == tagOf(2, 1) || tagOf(1, 2) == tagOf(1, 3) {
		t.Error("tags of other directions or lives are the same")
	}
}

// TestGreetings has greetings come to an end: who may have sent them, and what follows.
func TestGreetings(t *testing.T) {
	const heardNow, silentLong = 0, 2 * time.Second
	const peer, other = 1002, 1003
	for _, tt := range []struct {
		name   string
		up     bool
		silent time.Duration
		hello  hello // yours: 1 is this end's name
		theirs uint64
		isUp   bool
		said   []What
	}{
		{"the first", false, heardNow, hello{mine: peer}, peer, false, nil},
		{"one that knows our name", false, heardNow, hello{mine: peer, yours: 1}, peer, true, []What{Established}},
		{"a stranger, during a session", true, heardNow, hello{mine: other}, peer, true, nil},
		{"a stranger, when the peer is silent", true, silentLong, hello{mine: other}, peer, true, nil},
		{"a stranger who guesses", true, silentLong, hello{mine: other, yours: 7}, peer, true, nil},
		{"the peer began anew, and is late to know our name", true, heardNow, hello{mine: other, yours: 1}, peer, true, nil},
		{"the peer began anew", true, silentLong, hello{mine: other, yours: 1}, other, true, []What{Restarted}},
		{"the peer again", true, heardNow, hello{mine: peer, yours: 1}, peer, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told []What
			e := newEnds(t, Config{Changed: func(v Event) { told = append(told, v.What) }}, false, 1)
			now := e.b.now() + time.Hour
			e.b.beginLife()
			mine := e.b.sess.mine
			if tt.up {
				e.b.know(peer)
				e.b.sess.up, e.b.sess.heard = true, now-tt.silent
			}
			if tt.hello.yours == 1 {
				tt.hello.yours = mine
			}
			before := e.b.expects.Load()
			e.b.in.packet(now, e.b.paths[0], greeting(tt.hello), 0, 0)
			s := &e.b.sess
			if s.theirs != tt.theirs || s.up != tt.isUp || s.mine != mine || !slices.Equal(told, tt.said) {
				t.Errorf("the life is with %d, up %v; told %v", s.theirs, s.up, told)
			}
			if changed := e.b.expects.Load() != before; changed != (!tt.up || tt.theirs != peer) {
				t.Errorf("other packets are taken than before: %v", changed)
			}
			if n := len(letters(t, e.a)); n != 1 {
				t.Errorf("answered %d times, want once", n)
			}
		})
	}
}

// TestGreetingsEnd has two ends that are up not greet each other for ever.
func TestGreetingsEnd(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for _, end := range []*Tunnel{e.a, e.b} {
		end.beginLife()
	}
	e.a.greet(e.a.now())
	rounds := 0
	for ; rounds < 20; rounds++ {
		for _, end := range []*Tunnel{e.a, e.b} {
			end.paths[0].answered = 0
		}
		e.round(e.b)
		e.round(e.a)
		if e.a.sess.up && e.b.sess.up && len(letters(t, e.a)) == 0 && len(letters(t, e.b)) == 0 {
			break
		}
	}
	if rounds > 4 {
		t.Errorf("greetings go on after %d rounds; up: %v and %v", rounds, e.a.sess.up, e.b.sess.up)
	}
	if e.passes(t) != 1 {
		t.Error("nothing passes")
	}
}

// TestGreetingFlood has 100,000 strangers greet an end that waits for its peer: the memory
// stays, answers are few, and the peer finds it all the same.
func TestGreetingFlood(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	e.a.beginLife()
	e.b.beginLife()
	buf, now, answers := e.b.in.buf, e.b.now()+time.Second, 0
	for i := range 100_000 {
		now += 10 * time.Microsecond
		e.b.in.packet(now, e.b.paths[0], greeting(hello{mine: rand.Uint64() | 1}), 0, 0)
		if i%100 == 0 {
			answers += len(letters(t, e.a))
		}
	}
	if e.b.in.buf != buf {
		t.Error("greetings make a buffer each")
	}
	if most := int(time.Second/answerEvery) + 2; answers > most {
		t.Errorf("%d answers in a second, want %d at most", answers, most)
	}
	e.a.greet(e.a.now())
	e.round(e.b)
	e.b.sess.said = 0
	e.b.greet(now + time.Second)
	e.round(e.a)
	e.round(e.b)
	e.round(e.a)
	if !e.a.sess.up || !e.b.sess.up {
		t.Errorf("up: %v and %v", e.a.sess.up, e.b.sess.up)
	}
}

// TestOtherVersions has people told once that the peer speaks another version.
func TestOtherVersions(t *testing.T) {
	old := append([]byte{0x10, 0, 0x88, 0xb5, 0, 0, 0, 0, 0x40}, make([]byte, 29)...) // version 1's greeting
	newer := greeting(hello{mine: 1})
	newer[4] = wire.Version + 1
	for _, key := range []bool{false, true} {
		var told []Event
		cfg := Config{Changed: func(v Event) { told = append(told, v) }}
		e := newEnds(t, cfg, false, 1)
		if key {
			e.seal(t)
		}
		hearAll(e.b, old, newer)
		if len(told) > 0 {
			t.Errorf("key %v: told %v during a session", key, told)
		}
		e.b.beginLife()
		hearAll(e.b, old, old, newer, newer)
		if len(told) != 1 || told[0].What != Mismatched {
			t.Errorf("key %v: told %v", key, told)
		}
		if n := e.b.stats.strange.Load(); n != 6 {
			t.Errorf("key %v: %d strange packets, want 6", key, n)
		}
	}
}
