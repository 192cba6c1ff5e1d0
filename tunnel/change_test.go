package tunnel

import (
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// TestNumbersOfAPathThatIsReplaced counts on where another path has had the ID: with the
// same keys no number may come twice, and the peer goes on with the books of that path.
func TestNumbersOfAPathThatIsReplaced(t *testing.T) {
	e := newEnds(t, Config{}, false, 2)
	replace := func() {
		t.Helper()
		if err := e.a.RemovePath("b"); err != nil {
			t.Fatal(err)
		}
		if err := e.a.AddPath(PathConfig{Name: "b", Down: true}); err != nil {
			t.Fatal(err)
		}
	}
	e.a.send.Path(1).Sent(e.a.now(), 5, 500)
	e.a.mu.Lock()
	e.a.sendControl(e.a.now(), e.a.paths[1], make([]byte, wire.HeaderBytes))
	e.a.mu.Unlock()
	replace()
	if seq, control := e.a.send.Path(1).Seq(), e.a.control[1]; seq != 5 || control != 1+leaveTimes {
		t.Errorf("after 5 packets, 1 control packet and the news that it leaves the new path begins with %d and %d", seq, control)
	}
	if err := e.a.RemovePath("b"); err != nil {
		t.Fatal(err)
	}
	e.a.restart() // a new life, in which both ends count from 0
	if err := e.a.AddPath(PathConfig{Name: "b", Down: true}); err != nil {
		t.Fatal(err)
	}
	if seq, control := e.a.send.Path(1).Seq(), e.a.control[1]; seq != 0 || control != 0 {
		t.Errorf("in a new life the path begins with %d and %d", seq, control)
	}
}

// TestLeave has an end take a path out of use: the other end knows at once, and what was on its
// way is delivered all the same, though nothing proves that the path lives.
func TestLeave(t *testing.T) {
	for _, key := range []bool{false, true} {
		var news []Event
		e := newEnds(t, Config{Changed: func(v Event) { news = append(news, v) }}, false, 2)
		if key {
			e.seal(t)
		}
		e.b.out.sendProbe(e.b.now(), e.b.paths[0], e.b.send.Path(0), false)
		e.round(e.a)
		swallow(e.b, 0)
		e.a.send.Kill(1) // so that the first path is taken
		s := super{flow: 1, ttl: 64, proto: packet.UDP, payload: make([]byte, 100)}
		e.devA.hand(s.read())
		e.send(t)
		e.a.mu.Lock()
		e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.send.Path(0), false)
		e.a.mu.Unlock()
		e.a.send.Revive(1)
		if err := e.b.SetPath("a", false); err != nil {
			t.Fatal(err)
		}
		e.round(e.b)
		if n := len(e.devB.written()); n != 1 {
			t.Errorf("key %v: %d packets of a path that was taken down are delivered, want 1", key, n)
		}
		if r := e.b.in.paths[0]; r.known {
			t.Errorf("key %v: the path's books go on: %+v", key, r.report)
		}
		e.round(e.a)
		want := Event{Path: "a", What: PathDead, Err: ErrLeft}
		if !slices.Contains(news, want) || e.a.send.Path(0).Live() || e.a.again.len() != 1 {
			t.Errorf("key %v: the other end uses the path: %v; %d pieces are sent again", key, news, e.a.again.len())
		}
		if e.b.closings[0].until += -2 * lingerTime; e.b.in.linger == 0 {
			t.Fatalf("key %v: it is not read any more", key)
		}
		e.b.in.polls = nil
		for range 3 {
			e.round(e.b)
			e.b.mu.Lock()
			e.b.sweep(true)
			e.b.mu.Unlock()
		}
		if len(e.b.closings) > 0 || e.b.in.linger != 0 {
			t.Errorf("key %v: the socket is not closed: %+v", key, e.b.closings)
		}
	}
}

// round has an end take what has come.
func (e *ends) round(t *Tunnel) {
	t.in.gather()
	for i := 1; i < len(t.in.polls); i++ {
		t.in.left = i > t.in.kept
		t.in.drain(t.in.socket[i-1], int(t.in.polls[i].Fd))
	}
	t.in.flush()
}

// TestNewLifeForgetsCopies begins a life while a run has gone out on one of two paths.
func TestNewLifeForgetsCopies(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Duplicate}, false, 2)
	s := super{flow: 1, ttl: 64, proto: 17, payload: make([]byte, 100)}
	e.devA.hand(s.read())
	o := e.a.out
	if err := o.read(e.a.now()); err != nil || !o.fill(e.a.now()) || o.copies.to == 0 {
		t.Fatalf("%v; no copy is left to be sent", err)
	}
	e.a.restart()
	o.run.over(e.a)
	if o.fill(e.a.now()) || len(o.copies.pieces) > 0 {
		t.Error("a copy of the last life is sent")
	}
	if n := o.supply.held(); n != 0 {
		t.Errorf("%d packets are kept", n)
	}
	o.seq = 7
	e.a.restart()
	e.a.sess.up = true
	if o.padOne(e.a.now()); o.seq != 0 {
		t.Errorf("padding of a new life begins with %d", o.seq)
	}
}

func TestNothingIsNoPacket(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	e.a.speakCompat()
	e.devA.hand(make([]byte, 12))
	e.send(t)
	if n := e.a.stats.strange.Load(); n != 1 {
		t.Errorf("%d strange packets, want 1", n)
	}
}

// TestLeaveOfAnotherPath has the news that a path leaves be captured and handed over at
// another path's socket: that one stays, and the right one is left.
func TestLeaveOfAnotherPath(t *testing.T) {
	for _, key := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 3)
		if key {
			e.seal(t)
		}
		now := e.a.now()
		for id := range 3 {
			e.b.out.sendProbe(e.b.now(), e.b.paths[id], e.b.send.Path(id), false)
		}
		e.round(e.a)
		for id := range 3 {
			swallow(e.b, id)
		}
		e.b.mu.Lock()
		e.b.sayLeave(e.b.paths[0])
		e.b.out.sendProbe(e.b.now(), e.b.paths[0], e.b.send.Path(0), false)
		e.b.mu.Unlock()
		captured := letters(t, e.a)
		for _, b := range captured {
			e.a.in.packet(now, e.a.paths[1], b, 0, 0)
		}
		if live := e.a.send.LiveSet(); live != 0b110 {
			t.Errorf("key %v: path 0 is left, and paths %b are in use", key, live)
		}
	}
}

// TestLeaveIsAmbiguous where two of the peer's paths come by one of ours.
func TestLeaveIsAmbiguous(t *testing.T) {
	e := newEnds(t, Config{}, false, 2)
	now := 10 * time.Second
	bring := func(theirs uint8, via int) {
		e.a.in.arrived(now, via, &wire.Shim{Path: theirs, Kind: wire.Probe}, 0, 100)
	}
	leave := func(theirs int) uint64 {
		e.a.in.leave(theirs, now)
		return e.a.send.LiveSet()
	}
	if leave(0) != 0b11 {
		t.Error("a path that has brought nothing was left")
	}
	bring(0, 0)
	bring(1, 1)
	now += strayTime - time.Millisecond
	bring(1, 1)
	bring(0, 1) // for the first time
	if r := e.a.in.paths[0]; r.via != 0 {
		t.Error("a path has moved at once")
	}
	now += 2 * time.Millisecond
	bring(0, 1)
	if r := e.a.in.paths[0]; r.via != 1 {
		t.Error("a path can't move")
	}
	if leave(0) != 0b11 {
		t.Error("a path was left that brings others, too")
	}
	if now += 2 * strayTime; leave(0) != 0b01 {
		t.Error("the path stays that only the one has come by lately")
	}
}

// TestEchoOfAnotherPath has an answer come by another path than the question went by.
func TestEchoOfAnotherPath(t *testing.T) {
	e := newEnds(t, Config{}, false, 2)
	now := e.a.now()
	value := echo{1, now}.append(nil)
	e.a.in.controls(now+5*time.Millisecond, e.a.paths[0], &wire.Shim{Kind: wire.Control}, wire.Append(nil, wire.TypeReply, value))
	if a, b := e.a.send.Path(0).RoundTrip(), e.a.send.Path(1).RoundTrip(); a != 0 || b != 5*time.Millisecond {
		t.Errorf("round trips %v and %v", a, b)
	}
	for _, bad := range []echo{{63, now}, {0, now + time.Second}, {0, now - 11*time.Second}} {
		e.a.in.controls(now, e.a.paths[0], &wire.Shim{Kind: wire.Control}, wire.Append(nil, wire.TypeReply, bad.append(nil)))
	}
	if a := e.a.send.Path(0).RoundTrip(); a != 0 {
		t.Errorf("nonsense made a round trip of %v", a)
	}
}
