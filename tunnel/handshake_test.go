package tunnel

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/wire"
)

// TestAdopt is what each kind of handshake does to a connection's life.
func TestAdopt(t *testing.T) {
	tests := []struct {
		name         string
		up           bool
		mine, theirs uint64 // what the handshake calls it; the life that is: 1 and 2
		fresh        bool
	}{
		{"the first", false, 1, 9, true},
		{"new keys", true, 1, 2, false},
		{"the peer has begun anew", true, 1, 9, true},
		{"we have begun anew", true, 9, 2, true},
		{"both have begun anew", true, 8, 9, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var told []What
			e := newEnds(t, Config{Changed: func(e Event) { told = append(told, e.What) }}, false, 1)
			e.seal(t)
			s, last, older := &e.a.sess, e.a.sess.keys, &keys{}
			s.mine, s.theirs, s.up = 1, 2, tt.up
			e.a.ring.previous.Store(older)
			e.a.send.Path(0).Sent(0, 5, 500)
			e.a.out.seq, e.a.out.renew = 5, false
			k := newKeys(last.Session, e.a.now())
			k.hello, k.mine = hello{mine: tt.theirs}, tt.mine
			e.a.await(k)
			if !k.pending.Load() || e.a.ring.next.Load() != k || s.keys == k {
				t.Fatal("keys are used before the peer has shown that it has them")
			}
			if fresh := e.a.confirm(k); fresh != tt.fresh || k.pending.Load() {
				t.Errorf("a new life: %v, want %v", fresh, tt.fresh)
			}
			if s.mine != tt.mine || s.theirs != tt.theirs || !s.up || s.keys != k || s.tag != k.out {
				t.Errorf("the life is %d and %d, up %v, tag %x", s.mine, s.theirs, s.up, s.tag)
			}
			if e.a.out.renew != tt.fresh || e.a.send.Path(0).Seq() == 0 != tt.fresh {
				t.Errorf("counting anew: %v, %d packets", e.a.out.renew, e.a.send.Path(0).Seq())
			}
			r := &e.a.ring
			if kept := r.previous.Load() == last; kept != !tt.fresh || r.current.Load() != k || r.next.Load() != nil {
				t.Errorf("the last keys are kept: %v; the new ones are current: %v", kept, r.current.Load() == k)
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
			e.a.sess = session{mine: 1, theirs: 2, up: tt.up}
			if tt.up {
				e.a.sess.keys = present
			}
			p := e.a.propose(tt.said)
			if p.mine == 1 != tt.same || p.mine == 0 {
				t.Errorf("proposed %d", p.mine)
			}
			if p.before == present != (tt.up && tt.same) {
				t.Errorf("goes on with the numbers of %v", p.before)
			}
			if s := e.a.sess; s.mine != 1 || s.theirs != 2 {
				t.Errorf("a message changed the life: %+v", s)
			}
		})
	}
}

// newKeyedEnds are two ends with keys that have not spoken to each other yet. The first
// initiates.
func newKeyedEnds(t testing.TB, cfg Config, paths int) *ends {
	t.Helper()
	e := newEnds(t, cfg, false, paths)
	e.seal(t)
	for _, end := range []*Tunnel{e.a, e.b} {
		end.ring.clear()
		end.beginLife()
	}
	return e
}

// shake has both ends work on what has come, until the first message of an end that has
// begun is answered.
func (e *ends) shake() {
	e.round(e.b)
	e.b.hands.read(e.b.now())
	e.round(e.a)
	e.a.hands.read(e.a.now())
}

// letters are all that waits at the first path of an end.
func letters(t *testing.T, end *Tunnel) [][]byte {
	t.Helper()
	var all [][]byte
	for _, a := range arrivals(t, end.paths[0], sys.NewInbox([][]byte{make([]byte, 1<<16)})) {
		all = append(all, a.data)
	}
	return all
}

// hearAll has an end receive packets by its first path.
func hearAll(end *Tunnel, all ...[]byte) {
	for _, b := range all {
		end.in.packet(end.now(), end.paths[0], bytes.Clone(b), 0, 0)
	}
}

// meet has both ends use keys that a handshake makes now.
func (e *ends) meet(t *testing.T) {
	t.Helper()
	e.a.hands.begin(e.a.now())
	e.shake()
	if !e.a.sess.up {
		t.Fatal("no session")
	}
	e.a.mu.Lock()
	e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.send.Path(0), false)
	e.a.mu.Unlock()
	e.round(e.b)
	if !e.b.sess.up || e.b.sess.keys.ID() != e.a.sess.keys.ID() {
		t.Fatal("the responder has other keys")
	}
}

// TestFirstMessageOverSeveralPaths has it answered with the same keys each time.
func TestFirstMessageOverSeveralPaths(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 3)
	e.a.hands.begin(e.a.now())
	e.round(e.b)
	e.b.hands.read(e.b.now())
	pending, answer := e.b.ring.next.Load(), e.b.hands.answer
	if pending == nil || !pending.pending.Load() || e.b.sess.up {
		t.Fatal("no keys wait, or they are used")
	}
	e.a.hands.said = -handshakeEvery
	e.a.hands.keep(e.a.now()) // once more on all paths
	e.round(e.b)
	e.b.hands.read(e.b.now())
	e.b.hands.repeat()
	if e.b.ring.next.Load() != pending || !bytes.Equal(e.b.hands.answer, answer) || e.b.hands.works.used != 1 {
		t.Error("the same message made other keys")
	}
	for id := range 3 {
		all := arrivals(t, e.a.paths[id], sys.NewInbox([][]byte{make([]byte, 1<<16)}))
		if len(all) == 0 {
			t.Errorf("path %d has no answer", id)
		}
		for _, a := range all {
			hearAll(e.a, a.data, a.data)
			e.a.hands.read(e.a.now())
		}
	}
	if !e.a.sess.up || e.a.sess.keys.ID() != pending.ID() || e.a.hands.works.used != 1 {
		t.Errorf("the life of the first side: %+v, %d messages worked on", e.a.sess, e.a.hands.works.used)
	}
}

// TestForgedHandshakes has a stranger send 100,000 first messages: none is worked on, none
// waits, and the true one that comes in their midst is answered.
func TestForgedHandshakes(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.meet(t)
	e.a.hands.begin(e.a.now())
	var genuine []byte
	for _, b := range letters(t, e.b) {
		if wire.FormOf(b) == wire.Hello {
			genuine = b
		}
	}
	before, id := e.b.stats.strange.Load(), e.b.sess.keys.ID()
	used := e.b.hands.works.used
	forged := bytes.Clone(genuine)
	const flood = 100_000
	for i := range flood {
		binary.BigEndian.PutUint32(forged[6+i%(len(forged)-10):], uint32(i)*0x9e3779b1+1)
		hearAll(e.b, forged)
		if e.b.hands.mail.some {
			t.Fatalf("forged message %d waits to be worked on", i)
		}
	}
	if n := e.b.stats.strange.Load() - before; n != flood || e.b.hands.works.used != used {
		t.Errorf("%d of %d forged messages are strange, %d were worked on", n, flood, e.b.hands.works.used-used)
	}
	hearAll(e.b, genuine)
	hearAll(e.b, forged, forged, forged)
	e.b.hands.read(e.b.now())
	e.round(e.a)
	e.a.hands.read(e.a.now())
	if e.a.sess.keys.ID() == id || e.a.sess.keys.ID() != e.b.ring.next.Load().ID() {
		t.Error("there are no new keys")
	}
}

// TestReplayedHandshakes has all letters that ever passed come again and again: none is
// worked on, and rekeying goes on.
func TestReplayedHandshakes(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	var toA, toB [][]byte
	for range 5 {
		e.a.hands.begin(e.a.now())
		all := letters(t, e.b)
		toB = append(toB, all...)
		hearAll(e.b, all...)
		e.b.hands.read(e.b.now())
		all = letters(t, e.a)
		toA = append(toA, all...)
		hearAll(e.a, all...)
		e.a.hands.read(e.a.now())
	}
	used := [2]int{e.a.hands.works.used, e.b.hands.works.used}
	e.a.hands.begin(e.a.now())
	genuine := letters(t, e.b)
	for range 1000 {
		hearAll(e.a, toA...)
		hearAll(e.b, toB...)
	}
	hearAll(e.b, genuine...)
	hearAll(e.b, toB...)
	e.b.hands.read(e.b.now())
	answer := letters(t, e.a)
	hearAll(e.a, toA...)
	hearAll(e.a, answer...)
	hearAll(e.a, toA...)
	e.a.hands.read(e.a.now())
	if a, b := e.a.hands.works.used-used[0], e.b.hands.works.used-used[1]; a != 1 || b != 1 {
		t.Errorf("%d and %d messages were worked on, want the true one each", a, b)
	}
	if e.a.sess.keys.ID() != e.b.ring.next.Load().ID() {
		t.Error("the ends have not agreed on keys")
	}
	e.b.hands.repeat()
	if n := len(letters(t, e.a)); n > 1 {
		t.Errorf("a thousand copies of a message were answered %d times", n)
	}
}

// TestRestartedResponder has one that knows of no number before, and whose clock may be
// behind, hear recorded messages before the true one: that is worked on next.
func TestRestartedResponder(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	var recorded [][]byte
	for range 50 {
		e.a.hands.begin(e.a.now())
		recorded = append(recorded, letters(t, e.b)...)
	}
	e.b.hands.mail.floor = 0
	e.a.hands.begin(e.a.now())
	hearAll(e.b, recorded...)
	e.round(e.b)
	hearAll(e.b, recorded...)
	e.b.hands.read(e.b.now())
	e.round(e.a)
	e.a.hands.read(e.a.now())
	if !e.a.sess.up || e.b.hands.works.used != 1 {
		t.Errorf("up %v, after %d messages", e.a.sess.up, e.b.hands.works.used)
	}
}

// TestClockBehind has an initiator whose clock is behind what the responder has heard of
// it before.
func TestClockBehind(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.b.hands.mail.floor = mostNumber / 2
	e.a.hands.begin(e.a.now())
	e.shake()
	if e.a.sess.up || e.b.hands.works.used > 0 {
		t.Fatal("a number below the floor is worked on")
	}
	e.b.hands.said = -handshakeEvery
	e.b.hands.keep(e.b.now())
	e.round(e.a)
	e.a.hands.read(e.a.now())
	e.shake()
	if !e.a.sess.up {
		t.Error("there is no session with an initiator whose clock is behind")
	}
	// What it said can be replayed, even while an answer is on its way.
	e.a.hands.begin(e.a.now())
	e.round(e.b)
	e.b.hands.read(e.b.now())
	hearAll(e.a, seal(e.b.hands, stepAsk, mostNumber-5, nil))
	e.a.hands.read(e.a.now())
	id := e.a.sess.keys.ID()
	e.round(e.a)
	e.a.hands.read(e.a.now())
	if e.a.sess.keys.ID() == id {
		t.Error("an answer was dropped because of a replayed question")
	}
	works := e.a.hands.works.used
	e.a.hands.asked(e.a.now(), mostNumber/2)
	if e.a.hands.begun != nil || e.a.hands.works.used != works {
		t.Error("a replayed question made an end begin")
	}
}

// TestHostilePeer has one that holds a key and sends as many messages as it likes, all of
// them new and true.
func TestHostilePeer(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	now := e.b.now()
	for range 200 {
		e.a.hands.begin(e.a.now())
		e.round(e.b)
		e.b.hands.read(now)
	}
	if n := e.b.hands.works.used; n != worksMost {
		t.Errorf("%d messages were worked on at once, want %d", n, worksMost)
	}
	now += 3 * worksEvery
	for range 10 {
		e.a.hands.begin(e.a.now())
		e.round(e.b)
		e.b.hands.read(now)
	}
	if n := e.b.hands.works.used; n != worksMost {
		t.Errorf("%d messages count after a while, want %d", n, worksMost)
	}
	hearAll(e.b, seal(e.a.hands, stepBegin, mostNumber+1, make([]byte, 100)))
	if e.b.hands.mail.some && e.b.hands.mail.letter.number > mostNumber {
		t.Error("a number that leaves no room above is taken")
	}
}

// seal is a letter as an end would send it.
func seal(h *handshakes, s step, number uint64, body []byte) []byte {
	header := append(wire.AppendHello(nil), sealedGreeting)
	return h.guard.Seal(header, header, append(binary.BigEndian.AppendUint64([]byte{byte(s)}, number), body...))
}

// TestLateAnswer has the answer come when the life that it is for has ended.
func TestLateAnswer(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.a.hands.begin(e.a.now())
	e.round(e.b)
	e.b.hands.read(e.b.now())
	e.a.beginLife()
	e.round(e.a)
	e.a.hands.read(e.a.now())
	if e.a.sess.up {
		t.Error("keys for another life are used")
	}
}

// TestBucket counts in virtual time.
func TestBucket(t *testing.T) {
	b := bucket{most: 2, every: time.Second}
	for i, tt := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {0, true}, {0, false}, {900 * time.Millisecond, false}, {time.Second, true}, {time.Second, false}, {time.Hour, true}, {time.Hour, true}, {time.Hour, false}} {
		if got := b.take(tt.at); got != tt.want {
			t.Errorf("%d: at %v: %v", i, tt.at, got)
		}
	}
}

// TestKeysEnd has keys seal and open nothing any more once they are too old, or have
// sealed too much, though no handshake comes through.
func TestKeysEnd(t *testing.T) {
	for _, tt := range []struct {
		name       string
		wear       func(k *keys)
		send, take bool
	}{
		{"due for others", func(k *keys) { k.made -= rekeyAfter + time.Second }, true, true},
		{"too old", func(k *keys) { k.made -= rejectAfter + time.Second }, false, false},
		{"half of what a cipher may seal", func(k *keys) { k.sealed.Store(k.Cipher().SealLimit() / 2) }, true, true},
		{"all of it", func(k *keys) { k.sealed.Store(k.Cipher().SealLimit()) }, false, true},
		{"all that it may open", func(k *keys) { k.opened = k.Cipher().SealLimit() + 1 }, true, false},
		{"forged", func(k *keys) { k.refused.Store(k.Cipher().OpenLimit() + 1) }, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told []What
			e := newEnds(t, Config{Mode: "flow", Changed: func(v Event) { told = append(told, v.What) }}, false, 1)
			e.seal(t)
			s := super{proto: 17, flow: 7, ttl: 64, payload: make([]byte, 100)}
			pass := func() int {
				e.devA.hand(s.read())
				e.send(t)
				e.round(e.b)
				return len(e.devB.written())
			}
			if pass() != 1 {
				t.Fatal("nothing passes")
			}
			life := e.a.sess.mine
			tt.wear(e.b.sess.keys)
			if got := pass() == 1; got != tt.take {
				t.Errorf("taken: %v, want %v", got, tt.take)
			}
			tt.wear(e.a.sess.keys)
			sent := e.a.stats.sent.Load()
			pass()
			if got := e.a.stats.sent.Load() > sent; got != tt.send {
				t.Errorf("sent: %v, want %v", got, tt.send)
			}
			if ended := !e.a.sess.up; ended == tt.send || ended != (e.a.sess.mine != life) || ended != (e.a.ring.current.Load() == nil) {
				t.Errorf("the session has ended: %v", ended)
			}
			e.a.mu.Lock()
			e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.send.Path(0), false)
			e.a.sendControl(e.a.now(), e.a.paths[0], make([]byte, 40))
			e.a.mu.Unlock()
			if n := len(letters(t, e.b)); n > 0 && !tt.send {
				t.Errorf("%d packets are sent without keys", n)
			}
			if n := len(told); n > 0 == tt.send {
				t.Errorf("told %v", told)
			}
		})
	}
}

// TestKeysAreForgotten has old keys not be held for ever.
func TestKeysAreForgotten(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.meet(t)
	e.meet(t)
	r := &e.b.ring
	if r.previous.Load() == nil || r.next.Load() != nil {
		t.Fatal("the keys before are not kept")
	}
	e.b.await(newKeys(e.b.sess.keys.Session, e.b.now()))
	now := e.b.now() + rejectAfter + time.Second
	e.b.sess.keys.made = now
	e.b.mu.Lock()
	ended := e.b.expire(now)
	e.b.mu.Unlock()
	if ended || r.previous.Load() != nil || r.next.Load() != nil || r.current.Load() == nil {
		t.Error("keys are held that open nothing")
	}
}
