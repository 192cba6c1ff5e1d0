package tunnel

import (
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// TestSequenceOfReplacedPath checks that a path with a reused ID continues its
// sequence numbers: with the same keys no number may occur twice, and the peer continues
// its record of that path.
func TestSequenceOfReplacedPath(t *testing.T) {
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
	e.a.sender.Path(1).Sent(e.a.now(), 5, 500)
	e.a.mu.Lock()
	e.a.sendControl(e.a.now(), e.a.paths[1], make([]byte, wire.HeaderBytes))
	e.a.mu.Unlock()
	replace()
	if seq, control := e.a.sender.Path(1).NextSeq(), e.a.controlSeqs[1]; seq != 5 || control != 1+leaveCopies {
		t.Errorf("after 5 packets, 1 control packet and the announcement that the path leaves, the new path begins with %d and %d", seq, control)
	}
	if err := e.a.RemovePath("b"); err != nil {
		t.Fatal(err)
	}
	e.a.resetSession() // a new session, in which both ends count from 0
	if err := e.a.AddPath(PathConfig{Name: "b", Down: true}); err != nil {
		t.Fatal(err)
	}
	if seq, control := e.a.sender.Path(1).NextSeq(), e.a.controlSeqs[1]; seq != 0 || control != 0 {
		t.Errorf("in a new session the path begins with %d and %d", seq, control)
	}
}

// TestLeave takes a path out of use at one end. The other end must know at once, and what
// was in flight must be delivered, but must not prove that the path lives.
func TestLeave(t *testing.T) {
	for _, key := range []bool{false, true} {
		var events []Event
		e := newEnds(t, Config{OnEvent: func(v Event) { events = append(events, v) }}, false, 2)
		if key {
			e.seal(t)
		}
		e.b.out.sendProbe(e.b.now(), e.b.paths[0], e.b.sender.Path(0), false)
		e.receive(e.a)
		discardPath(e.b, 0)
		e.a.sender.Kill(1) // so that the first path is picked
		s := superPacket{flow: 1, ttl: 64, proto: packet.UDP, payload: make([]byte, 100)}
		e.devA.provide(s.deviceRead())
		e.send(t)
		e.a.mu.Lock()
		e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.sender.Path(0), false)
		e.a.mu.Unlock()
		e.a.sender.Revive(1)
		if err := e.b.SetPath("a", false); err != nil {
			t.Fatal(err)
		}
		e.receive(e.b)
		if n := len(e.devB.readAll()); n != 1 {
			t.Errorf("key %v: %d packets of a disabled path are delivered, want 1", key, n)
		}
		if r := e.b.in.paths[0]; r.known {
			t.Errorf("key %v: arrivals are still recorded: %+v", key, r.report)
		}
		e.receive(e.a)
		want := Event{Path: "a", Kind: PathDead, Err: ErrWithdrawn}
		if !slices.Contains(events, want) || e.a.sender.Path(0).Live() || e.a.resends.len() != 1 {
			t.Errorf("key %v: the other end still uses the path: %v; %d pieces are sent again", key, events, e.a.resends.len())
		}
		if e.b.closings[0].readUntil += -2 * lingerTime; e.b.in.lingerUntil == 0 {
			t.Fatalf("key %v: the path is no longer read", key)
		}
		e.b.in.polls = nil
		for range 3 {
			e.receive(e.b)
			e.b.mu.Lock()
			e.b.closeReleased(true)
			e.b.mu.Unlock()
		}
		if len(e.b.closings) > 0 || e.b.in.lingerUntil != 0 {
			t.Errorf("key %v: the socket is not closed: %+v", key, e.b.closings)
		}
	}
}

// receive makes an end process what has arrived.
func (e *ends) receive(t *Tunnel) {
	t.in.updatePolls()
	for i := 1; i < len(t.in.polls); i++ {
		t.in.role = t.in.roles[i-1]
		t.in.drain(t.in.pollPaths[i-1], int(t.in.polls[i].Fd))
	}
	t.in.flush()
}

// TestNewSessionForgetsCopies starts a session while a run has been sent on one of two
// paths.
func TestNewSessionForgetsCopies(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Duplicate}, false, 2)
	s := superPacket{flow: 1, ttl: 64, proto: 17, payload: make([]byte, 100)}
	e.devA.provide(s.deviceRead())
	o := e.a.out
	if err := o.read(e.a.now()); err != nil || !o.prepareRun(e.a.now()) || o.copies.pending == 0 {
		t.Fatalf("%v; no copy is left to be sent", err)
	}
	e.a.resetSession()
	o.batch.release(e.a)
	if o.prepareRun(e.a.now()) || len(o.copies.pieces) > 0 {
		t.Error("a copy of the last session is sent")
	}
	if n := o.supply.entriesInUse(); n != 0 {
		t.Errorf("%d entries are in use", n)
	}
	o.nextSeq = 7
	e.a.resetSession()
	e.a.session.up = true
	if o.preparePadding(e.a.now()); o.nextSeq != 0 {
		t.Errorf("padding of a new session begins with %d", o.nextSeq)
	}
}

func TestEmptyPacket(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	e.a.useCompat()
	e.devA.provide(make([]byte, 12))
	e.send(t)
	if n := e.a.stats.invalid.Load(); n != 1 {
		t.Errorf("%d invalid packets, want 1", n)
	}
}

// TestLeaveOfAnotherPath replays the announcement that a path leaves at another path's
// socket: that path must stay in use, and the right one must be left.
func TestLeaveOfAnotherPath(t *testing.T) {
	for _, key := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 3)
		if key {
			e.seal(t)
		}
		now := e.a.now()
		for id := range 3 {
			e.b.out.sendProbe(e.b.now(), e.b.paths[id], e.b.sender.Path(id), false)
		}
		e.receive(e.a)
		for id := range 3 {
			discardPath(e.b, id)
		}
		e.b.mu.Lock()
		e.b.sendLeave(e.b.paths[0])
		e.b.out.sendProbe(e.b.now(), e.b.paths[0], e.b.sender.Path(0), false)
		e.b.mu.Unlock()
		captured := drainPath(t, e.a)
		for _, b := range captured {
			e.a.in.handlePacket(now, e.a.paths[1], b, 0, 0)
		}
		if live := e.a.sender.LiveSet(); live != 0b110 {
			t.Errorf("key %v: path 0 leaves, but paths %b are in use", key, live)
		}
	}
}

// TestLeaveIsAmbiguous lets two of the peer's paths arrive by one of ours.
func TestLeaveIsAmbiguous(t *testing.T) {
	e := newEnds(t, Config{}, false, 2)
	now := 10 * time.Second
	bring := func(theirs uint8, via int) {
		e.a.in.recordArrival(now, via, &wire.Shim{Path: theirs, Kind: wire.Probe}, 0, 100)
	}
	leave := func(theirs int) uint64 {
		e.a.in.handleLeave(theirs, now)
		return e.a.sender.LiveSet()
	}
	if leave(0) != 0b11 {
		t.Error("a path that has delivered nothing was left")
	}
	bring(0, 0)
	bring(1, 1)
	now += localPathTimeout - time.Millisecond
	bring(1, 1)
	bring(0, 1) // for the first time
	if r := e.a.in.paths[0]; r.localPath != 0 {
		t.Error("a path moved at once")
	}
	now += 2 * time.Millisecond
	bring(0, 1)
	if r := e.a.in.paths[0]; r.localPath != 1 {
		t.Error("a path did not move")
	}
	if leave(0) != 0b11 {
		t.Error("a path was left that delivers packets of another path too")
	}
	if now += 2 * localPathTimeout; leave(0) != 0b01 {
		t.Error("a path that recently delivered packets of one path only was not left")
	}
}

// TestEchoOfAnotherPath delivers an echo reply by another path than the echo.
func TestEchoOfAnotherPath(t *testing.T) {
	e := newEnds(t, Config{}, false, 2)
	now := e.a.now()
	value := echo{1, now}.append(nil)
	e.a.in.handleControl(now+5*time.Millisecond, e.a.paths[0], &wire.Shim{Kind: wire.Control}, wire.Append(nil, wire.TypeReply, value))
	if a, b := e.a.sender.Path(0).SmoothedRTT(), e.a.sender.Path(1).SmoothedRTT(); a != 0 || b != 5*time.Millisecond {
		t.Errorf("round trips are %v and %v", a, b)
	}
	for _, bad := range []echo{{63, now}, {0, now + time.Second}, {0, now - 11*time.Second}} {
		e.a.in.handleControl(now, e.a.paths[0], &wire.Shim{Kind: wire.Control}, wire.Append(nil, wire.TypeReply, bad.append(nil)))
	}
	if a := e.a.sender.Path(0).SmoothedRTT(); a != 0 {
		t.Errorf("an invalid echo caused a round trip of %v", a)
	}
}
