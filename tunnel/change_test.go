package tunnel

import (
	"testing"

	"cleat/tunnel/sched"
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
	e.a.sendControl(e.a.now(), e.a.paths[1], make([]byte, 20))
	e.a.mu.Unlock()
	replace()
	if seq, control := e.a.send.Path(1).Seq(), e.a.control[1]; seq != 5 || control != 1 {
		t.Errorf("after 5 packets and 1 control packet the new path begins with %d and %d", seq, control)
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
	e.a.sess.compat = true
	e.devA.hand(make([]byte, 12))
	e.send(t)
	if n := e.a.stats.strange.Load(); n != 1 {
		t.Errorf("%d strange packets, want 1", n)
	}
}
