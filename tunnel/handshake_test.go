package tunnel

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/wire"
)

// TestConfirmKeys checks what each kind of handshake does to the session.
func TestConfirmKeys(t *testing.T) {
	tests := []struct {
		name         string
		up           bool
		mine, theirs uint64 // names in the handshake; the current session is 1 and 2
		fresh        bool
	}{
		{"first session", false, 1, 9, true},
		{"rekeying", true, 1, 2, false},
		{"the peer has restarted", true, 1, 9, true},
		{"this end has restarted", true, 9, 2, true},
		{"both ends have restarted", true, 8, 9, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var events []EventKind
			e := newEnds(t, Config{OnEvent: func(e Event) { events = append(events, e.Kind) }}, false, 1)
			e.seal(t)
			s, last, older := &e.a.session, e.a.session.keys, &keys{}
			s.ownName, s.peerName, s.up = 1, 2, tt.up
			e.a.keyring.previous.Store(older)
			e.a.sender.Path(0).Sent(0, 5, 500)
			e.a.out.nextSeq, e.a.out.sessionChanged = 5, false
			k := newKeys(last.Session, e.a.now())
			k.hello, k.ownName = hello{senderName: tt.theirs}, tt.mine
			e.a.setPendingKeys(k)
			if !k.pending.Load() || e.a.keyring.next.Load() != k || s.keys == k {
				t.Fatal("keys are used before the peer has shown that it has them")
			}
			if fresh := e.a.confirmKeys(k); fresh != tt.fresh || k.pending.Load() {
				t.Errorf("new session: %v, want %v", fresh, tt.fresh)
			}
			if s.ownName != tt.mine || s.peerName != tt.theirs || !s.up || s.keys != k || s.tag != k.outTag {
				t.Errorf("session names are %d and %d, up %v, tag %x", s.ownName, s.peerName, s.up, s.tag)
			}
			if e.a.out.sessionChanged != tt.fresh || e.a.sender.Path(0).NextSeq() == 0 != tt.fresh {
				t.Errorf("session changed: %v, next path sequence number %d", e.a.out.sessionChanged, e.a.sender.Path(0).NextSeq())
			}
			r := &e.a.keyring
			if kept := r.previous.Load() == last; kept != !tt.fresh || r.current.Load() != k || r.next.Load() != nil {
				t.Errorf("previous keys kept: %v; new keys are current: %v", kept, r.current.Load() == k)
			}
			want := 0
			if tt.fresh {
				want = 1
			}
			if len(events) != want {
				t.Errorf("events %v", events)
			}
		})
	}
}

func TestPropose(t *testing.T) {
	tests := []struct {
		name  string
		up    bool
		hello hello
		same  bool
	}{
		{"first session", false, hello{senderName: 9}, true},
		{"this end has restarted", false, hello{senderName: 2, receiverName: 7}, true},
		{"rekeying", true, hello{senderName: 2, receiverName: 1}, true},
		{"the peer has restarted", true, hello{senderName: 9}, false},
		{"the peer has missed that this end has restarted", true, hello{senderName: 2, receiverName: 7}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{}, false, 1)
			present := &keys{}
			e.a.session = session{ownName: 1, peerName: 2, up: tt.up}
			if tt.up {
				e.a.session.keys = present
			}
			p := e.a.propose(tt.hello)
			if p.ownName == 1 != tt.same || p.ownName == 0 {
				t.Errorf("proposed %d", p.ownName)
			}
			if p.previous == present != (tt.up && tt.same) {
				t.Errorf("continues the counters of %v", p.previous)
			}
			if s := e.a.session; s.ownName != 1 || s.peerName != 2 {
				t.Errorf("a message changed the session: %+v", s)
			}
		})
	}
}

// newKeyedEnds returns two ends with keys and without a session. The first one initiates.
func newKeyedEnds(t testing.TB, cfg Config, paths int) *ends {
	t.Helper()
	e := newEnds(t, cfg, false, paths)
	e.seal(t)
	for _, end := range []*Tunnel{e.a, e.b} {
		end.keyring.clear()
		end.newSession()
	}
	return e
}

// exchange makes both ends process what has arrived, so that the first message of an end
// is answered.
func (e *ends) exchange() {
	e.receive(e.b)
	e.b.handshakes.processMessage(e.b.now())
	e.receive(e.a)
	e.a.handshakes.processMessage(e.a.now())
}

// drainPath returns all packets that wait at the first path of an end.
func drainPath(t *testing.T, end *Tunnel) [][]byte {
	t.Helper()
	var all [][]byte
	for _, a := range receiveAll(t, end.paths[0], sys.NewInbox([][]byte{make([]byte, 1<<16)})) {
		all = append(all, a.data)
	}
	return all
}

// receivePackets makes an end receive packets by its first path.
func receivePackets(end *Tunnel, all ...[]byte) {
	for _, b := range all {
		end.in.handlePacket(end.now(), end.paths[0], bytes.Clone(b), 0, 0)
	}
}

// handshake makes both ends use new keys.
func (e *ends) handshake(t *testing.T) {
	t.Helper()
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	e.exchange()
	if !e.a.session.up {
		t.Fatal("no session")
	}
	e.a.mu.Lock()
	e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.sender.Path(0), false)
	e.a.mu.Unlock()
	e.receive(e.b)
	if !e.b.session.up || e.b.session.keys.ID() != e.a.session.keys.ID() {
		t.Fatal("the responder has other keys")
	}
}

// TestFirstMessageOverSeveralPaths checks that all copies of a first message are answered
// with the same keys.
func TestFirstMessageOverSeveralPaths(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 3)
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	e.receive(e.b)
	e.b.handshakes.processMessage(e.b.now())
	pending, answer := e.b.keyring.next.Load(), e.b.handshakes.answer
	if pending == nil || !pending.pending.Load() || e.b.session.up {
		t.Fatal("no keys are pending, or they are in use")
	}
	e.a.handshakes.sentAt = -handshakeEvery
	e.a.handshakes.maintain(e.a.now()) // again on all paths
	e.receive(e.b)
	e.b.handshakes.processMessage(e.b.now())
	e.b.handshakes.repeatAnswers()
	if e.b.keyring.next.Load() != pending || !bytes.Equal(e.b.handshakes.answer, answer) || e.b.handshakes.limiter.used != 1 {
		t.Error("the same message made other keys")
	}
	for id := range 3 {
		all := receiveAll(t, e.a.paths[id], sys.NewInbox([][]byte{make([]byte, 1<<16)}))
		if len(all) == 0 {
			t.Errorf("no answer on path %d", id)
		}
		for _, a := range all {
			receivePackets(e.a, a.data, a.data)
			e.a.handshakes.processMessage(e.a.now())
		}
	}
	if !e.a.session.up || e.a.session.keys.ID() != pending.ID() || e.a.handshakes.limiter.used != 1 {
		t.Errorf("session of the initiator: %+v, %d messages processed", e.a.session, e.a.handshakes.limiter.used)
	}
}

// TestForgedHandshakes sends 100,000 forged first messages: none may be processed or
// kept, and the genuine one among them must be answered.
func TestForgedHandshakes(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.handshake(t)
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	var genuine []byte
	for _, b := range drainPath(t, e.b) {
		if wire.FormOf(b) == wire.Hello {
			genuine = b
		}
	}
	before, id := e.b.stats.invalid.Load(), e.b.session.keys.ID()
	used := e.b.handshakes.limiter.used
	forged := bytes.Clone(genuine)
	const flood = 100_000
	for i := range flood {
		binary.BigEndian.PutUint32(forged[6+i%(len(forged)-10):], uint32(i)*0x9e3779b1+1)
		receivePackets(e.b, forged)
		if e.b.handshakes.inbox.waiting {
			t.Fatalf("forged message %d waits to be processed", i)
		}
	}
	if n := e.b.stats.invalid.Load() - before; n != flood || e.b.handshakes.limiter.used != used {
		t.Errorf("%d of %d forged messages are invalid, %d were processed", n, flood, e.b.handshakes.limiter.used-used)
	}
	receivePackets(e.b, genuine)
	receivePackets(e.b, forged, forged, forged)
	e.b.handshakes.processMessage(e.b.now())
	e.receive(e.a)
	e.a.handshakes.processMessage(e.a.now())
	if e.a.session.keys.ID() == id || e.a.session.keys.ID() != e.b.keyring.next.Load().ID() {
		t.Error("no new keys")
	}
}

// TestReplayedHandshakes replays all messages again and again: none may be processed, and
// rekeying must work.
func TestReplayedHandshakes(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	var toA, toB [][]byte
	for range 5 {
		e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
		all := drainPath(t, e.b)
		toB = append(toB, all...)
		receivePackets(e.b, all...)
		e.b.handshakes.processMessage(e.b.now())
		all = drainPath(t, e.a)
		toA = append(toA, all...)
		receivePackets(e.a, all...)
		e.a.handshakes.processMessage(e.a.now())
	}
	used := [2]int{e.a.handshakes.limiter.used, e.b.handshakes.limiter.used}
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	genuine := drainPath(t, e.b)
	for range 1000 {
		receivePackets(e.a, toA...)
		receivePackets(e.b, toB...)
	}
	receivePackets(e.b, genuine...)
	receivePackets(e.b, toB...)
	e.b.handshakes.processMessage(e.b.now())
	answer := drainPath(t, e.a)
	receivePackets(e.a, toA...)
	receivePackets(e.a, answer...)
	receivePackets(e.a, toA...)
	e.a.handshakes.processMessage(e.a.now())
	if a, b := e.a.handshakes.limiter.used-used[0], e.b.handshakes.limiter.used-used[1]; a != 1 || b != 1 {
		t.Errorf("%d and %d messages were processed, want only the genuine one each", a, b)
	}
	if e.a.session.keys.ID() != e.b.keyring.next.Load().ID() {
		t.Error("the ends have different keys")
	}
	e.b.handshakes.repeatAnswers()
	if n := len(drainPath(t, e.a)); n > 1 {
		t.Errorf("a thousand copies of a message were answered %d times", n)
	}
}

// TestRestartedResponder sends recorded messages and then the genuine one to a responder
// that knows no floor, and whose clock may be behind: the genuine one must be processed
// next.
func TestRestartedResponder(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	var recorded [][]byte
	for range 50 {
		e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
		recorded = append(recorded, drainPath(t, e.b)...)
	}
	e.b.handshakes.inbox.floor = 0
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	receivePackets(e.b, recorded...)
	e.receive(e.b)
	receivePackets(e.b, recorded...)
	e.b.handshakes.processMessage(e.b.now())
	e.receive(e.a)
	e.a.handshakes.processMessage(e.a.now())
	if !e.a.session.up || e.b.handshakes.limiter.used != 1 {
		t.Errorf("up: %v after %d messages", e.a.session.up, e.b.handshakes.limiter.used)
	}
}

// TestClockBehind checks an initiator whose clock is behind the responder's floor.
func TestClockBehind(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.b.handshakes.inbox.floor = maxNumber / 2
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	e.exchange()
	if e.a.session.up || e.b.handshakes.limiter.used > 0 {
		t.Fatal("a message with a number below the floor is processed")
	}
	e.b.handshakes.sentAt = -handshakeEvery
	e.b.handshakes.maintain(e.b.now())
	e.receive(e.a)
	e.a.handshakes.processMessage(e.a.now())
	e.exchange()
	if !e.a.session.up {
		t.Error("no session with an initiator whose clock is behind")
	}
	// The request can be replayed, even while an answer is in flight.
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	e.receive(e.b)
	e.b.handshakes.processMessage(e.b.now())
	receivePackets(e.a, sealMessage(e.b.handshakes, stepRequest, maxNumber-5, nil))
	e.a.handshakes.processMessage(e.a.now())
	id := e.a.session.keys.ID()
	e.receive(e.a)
	e.a.handshakes.processMessage(e.a.now())
	if e.a.session.keys.ID() == id {
		t.Error("an answer was dropped because of a replayed request")
	}
	works := e.a.handshakes.limiter.used
	e.a.handshakes.handleRequest(e.a.now(), handshakeMessage{number: maxNumber / 2})
	if e.a.handshakes.begun != nil || e.a.handshakes.limiter.used != works {
		t.Error("a replayed request started a handshake")
	}
}

// TestHostilePeer has a peer with the right key send as many new, authentic messages as
// it can.
func TestHostilePeer(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	now := e.b.now()
	for range 200 {
		e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
		e.receive(e.b)
		e.b.handshakes.processMessage(now)
	}
	if n := e.b.handshakes.limiter.used; n != maxHandshakes {
		t.Errorf("%d messages were processed at once, want %d", n, maxHandshakes)
	}
	now += 3 * handshakeRefill
	for range 10 {
		e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
		e.receive(e.b)
		e.b.handshakes.processMessage(now)
	}
	if n := e.b.handshakes.limiter.used; n != maxHandshakes {
		t.Errorf("%d messages count after a while, want %d", n, maxHandshakes)
	}
	receivePackets(e.b, sealMessage(e.a.handshakes, stepBegin, maxNumber+1, make([]byte, 100)))
	if e.b.handshakes.inbox.waiting && e.b.handshakes.inbox.message.number > maxNumber {
		t.Error("accepted a number that leaves no room above it")
	}
}

// sealMessage returns a handshake message as an end would send it.
func sealMessage(h *handshakes, s step, number uint64, body []byte) []byte {
	header := append(wire.AppendHello(nil), sealedHello)
	return h.guard.Seal(header, header, append(binary.BigEndian.AppendUint64([]byte{byte(s)}, number), body...))
}

// TestLateAnswer delivers an answer after its session has ended.
func TestLateAnswer(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.a.handshakes.begin(e.a.now(), replies{paths: allPaths})
	e.receive(e.b)
	e.b.handshakes.processMessage(e.b.now())
	e.a.newSession()
	e.receive(e.a)
	e.a.handshakes.processMessage(e.a.now())
	if e.a.session.up {
		t.Error("keys for another session are in use")
	}
}

// TestTokenBucket uses virtual time.
func TestTokenBucket(t *testing.T) {
	b := tokenBucket{burst: 2, every: time.Second}
	for i, tt := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {0, true}, {0, false}, {900 * time.Millisecond, false}, {time.Second, true}, {time.Second, false}, {time.Hour, true}, {time.Hour, true}, {time.Hour, false}} {
		if got := b.take(tt.at); got != tt.want {
			t.Errorf("%d: at %v: %v", i, tt.at, got)
		}
	}
}

// TestKeysEnd checks that keys seal and open nothing any more once they are too old or
// worn out, even if no handshake comes through.
func TestKeysEnd(t *testing.T) {
	for _, tt := range []struct {
		name       string
		wear       func(k *keys)
		send, take bool
	}{
		{"due for replacement", func(k *keys) { k.createdAt -= rekeyAfter + time.Second }, true, true},
		{"too old", func(k *keys) { k.createdAt -= rejectAfter + time.Second }, false, false},
		{"half of the seal limit", func(k *keys) { k.sealedBlocks.Store(k.Cipher().SealLimit() / 2) }, true, true},
		{"seal limit", func(k *keys) { k.sealedBlocks.Store(k.Cipher().SealLimit()) }, false, true},
		{"open limit", func(k *keys) { k.openedBlocks = k.Cipher().SealLimit() + 1 }, true, false},
		{"forged", func(k *keys) { k.refusedPackets.Store(k.Cipher().OpenLimit() + 1) }, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var events []EventKind
			e := newEnds(t, Config{Mode: "flow", OnEvent: func(v Event) { events = append(events, v.Kind) }}, false, 1)
			e.seal(t)
			s := superPacket{proto: 17, flow: 7, ttl: 64, payload: make([]byte, 100)}
			pass := func() int {
				e.devA.provide(s.deviceRead())
				e.send(t)
				e.receive(e.b)
				return len(e.devB.readAll())
			}
			if pass() != 1 {
				t.Fatal("no packet arrived")
			}
			life := e.a.session.ownName
			tt.wear(e.b.session.keys)
			if got := pass() == 1; got != tt.take {
				t.Errorf("opened: %v, want %v", got, tt.take)
			}
			tt.wear(e.a.session.keys)
			sent := e.a.stats.sent.Load()
			pass()
			if got := e.a.stats.sent.Load() > sent; got != tt.send {
				t.Errorf("sent: %v, want %v", got, tt.send)
			}
			if ended := !e.a.session.up; ended == tt.send || ended != (e.a.session.ownName != life) || ended != (e.a.keyring.current.Load() == nil) {
				t.Errorf("session ended: %v", ended)
			}
			e.a.mu.Lock()
			e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.sender.Path(0), false)
			e.a.sendControl(e.a.now(), e.a.paths[0], make([]byte, 40))
			e.a.mu.Unlock()
			if n := len(drainPath(t, e.b)); n > 0 && !tt.send {
				t.Errorf("%d packets are sent without keys", n)
			}
			if n := len(events); n > 0 == tt.send {
				t.Errorf("events %v", events)
			}
		})
	}
}

// TestKeysAreForgotten checks that old keys are dropped.
func TestKeysAreForgotten(t *testing.T) {
	e := newKeyedEnds(t, Config{}, 1)
	e.handshake(t)
	e.handshake(t)
	r := &e.b.keyring
	if r.previous.Load() == nil || r.next.Load() != nil {
		t.Fatal("the previous keys are not kept")
	}
	e.b.setPendingKeys(newKeys(e.b.session.keys.Session, e.b.now()))
	now := e.b.now() + rejectAfter + time.Second
	e.b.session.keys.createdAt = now
	e.b.mu.Lock()
	ended := e.b.expireKeys(now)
	e.b.mu.Unlock()
	if ended || r.previous.Load() != nil || r.next.Load() != nil || r.current.Load() == nil {
		t.Error("useless keys are kept")
	}
}
