package tunnel

import (
	"bytes"
	"testing"
)

// TestAdopt is what each kind of handshake does to a connection's life.
func TestAdopt(t *testing.T) {
	tests := []struct {
		name         string
		up           bool
		mine, theirs uint64 // what the handshake calls it; the life that is: 1 and 2
		epoch        uint8
		fresh        bool
	}{
		{"the first", false, 1, 9, 2, true},
		{"new keys", true, 1, 2, 2, false},
		{"the peer has begun anew", true, 1, 9, 2, true},
		{"we have begun anew", true, 9, 2, 2, true},
		{"both have begun anew", true, 8, 9, 3, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var told []What
			e := newEnds(t, Config{Changed: func(e Event) { told = append(told, e.What) }}, false, 1)
			s, last := &e.a.sess, &keys{epoch: 1}
			s.mine, s.theirs, s.up = 1, 2, tt.up
			e.a.ring[1].Store(last)
			e.a.ring[0].Store(&keys{})
			e.a.send.Path(0).Sent(0, 5, 500)
			e.a.out.seq, e.a.out.renew = 5, false
			k := &keys{epoch: tt.epoch, hello: hello{mine: tt.theirs}, mine: tt.mine}
			e.a.await(k)
			if !k.pending.Load() || e.a.ring[tt.epoch].Load() != k || s.keys == k {
				t.Fatal("keys are used before the peer has shown that it has them")
			}
			if fresh := e.a.confirm(k); fresh != tt.fresh || k.pending.Load() {
				t.Errorf("a new life: %v, want %v", fresh, tt.fresh)
			}
			if s.mine != tt.mine || s.theirs != tt.theirs || !s.up || s.keys != k || s.epoch != tt.epoch {
				t.Errorf("the life is %d and %d, up %v, epoch %d", s.mine, s.theirs, s.up, s.epoch)
			}
			if e.a.out.renew != tt.fresh || e.a.send.Path(0).Seq() == 0 != tt.fresh {
				t.Errorf("counting anew: %v, %d packets", e.a.out.renew, e.a.send.Path(0).Seq())
			}
			if kept := e.a.ring[1].Load() == last; kept != (!tt.fresh) || e.a.ring[(tt.epoch+2)&3].Load() != nil {
				t.Errorf("the last keys are kept: %v; those before them: %v", kept, e.a.ring[(tt.epoch+2)&3].Load() != nil)
			}
			want := 0
			if tt.fresh {
				want = 1
			}
			if len(told) != want {
				t.Errorf("told %v", told)
			}
		})
	}
}

func TestPropose(t *testing.T) {
	tests := []struct {
		name string
		up   bool
		said hello
		same bool
	}{
		{"the first", false, hello{mine: 9}, true},
		{"we have begun anew", false, hello{mine: 2, yours: 7}, true},
		{"new keys", true, hello{mine: 2, yours: 1}, true},
		{"the peer has begun anew", true, hello{mine: 9}, false},
		{"the peer has missed that we have", true, hello{mine: 2, yours: 7}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{}, false, 1)
			present := &keys{}
			e.a.sess = session{mine: 1, theirs: 2, up: tt.up, epoch: 3}
			if tt.up {
				e.a.sess.keys = present
			}
			mine, epoch, before := e.a.propose(tt.said)
			if mine == 1 != tt.same || mine == 0 || epoch != 0 {
				t.Errorf("proposed %d, epoch %d", mine, epoch)
			}
			if before == present != (tt.up && tt.same) {
				t.Errorf("goes on with the numbers of %v", before)
			}
			if s := e.a.sess; s.mine != 1 || s.theirs != 2 || s.epoch != 3 {
				t.Errorf("a message changed the life: %+v", s)
			}
		})
	}
}

// TestFirstMessageOverSeveralPaths has it answered with the same keys each time.
func TestFirstMessageOverSeveralPaths(t *testing.T) {
	e := newEnds(t, Config{}, false, 3)
	e.seal(t)
	e.a.sess, e.b.sess = session{mine: 1}, session{mine: 2}
	e.a.hands, e.b.hands = newHandshakes(e.a), newHandshakes(e.b)
	e.a.hands.begin(e.a.now())
	message := e.a.hands.message
	for i := range 3 {
		e.b.hands.read(letter{path: i, step: stepBegin, body: message})
	}
	answer := e.b.hands.answer
	pending := e.b.ring[(e.b.sess.epoch+1)&3].Load()
	if pending == nil || !pending.pending.Load() || e.b.sess.up {
		t.Fatal("no keys wait, or they are used")
	}
	e.b.hands.read(letter{path: 0, step: stepBegin, body: message})
	if e.b.ring[pending.epoch].Load() != pending || !bytes.Equal(e.b.hands.answer, answer) {
		t.Error("the same message made other keys")
	}
	// The answer is lost; it is asked for again and comes twice.
	e.a.hands.read(letter{step: stepAnswer, body: answer})
	e.a.hands.read(letter{step: stepAnswer, body: answer})
	if !e.a.sess.up || e.a.sess.theirs != 2 || e.a.sess.epoch != pending.epoch || e.a.sess.keys.ID() != pending.ID() {
		t.Errorf("the life of the first side: %+v", e.a.sess)
	}
	e.b.confirm(pending)
	if e.b.sess.theirs != 1 || !e.b.sess.up {
		t.Errorf("the life of the other: %+v", e.b.sess)
	}
	// A recording of it, while the connection lives, is no handshake.
	e.b.hands.asked = nil
	e.b.sess.heard = e.b.now()
	e.b.hands.read(letter{step: stepBegin, body: message})
	if e.b.stats.strange.Load() != 1 || e.b.ring[(pending.epoch+1)&3].Load() != nil {
		t.Error("a recording made keys")
	}
}
