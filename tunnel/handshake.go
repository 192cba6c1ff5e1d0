package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// handshakes makes keys with the peer. All but ask and answer belong to the goroutine
// of run: a message costs a millisecond, which packets should not wait for.
type handshakes struct {
	t     *Tunnel
	key   *Key
	first bool // we begin
	inbox chan letter

	begun   *secure.Handshake // by us
	message []byte            // what we began with
	since   time.Duration
	said    time.Duration

	asked  []byte // the peer's last message
	answer []byte // and what we said to it
	number uint64 // in it
}

// letter is a handshake's message that a path brought.
type letter struct {
	path int
	step step
	body []byte
}

// step says which message of a handshake it is: the first byte of a Hello.
type step byte

const (
	stepPlain  step = iota // a hello, neither encrypted nor authenticated
	stepBegin              // the initiator's message
	stepAnswer             // the responder's
	stepAsk                // the responder asks for a handshake: it has no keys
)

const (
	handshakeEvery = 100 * time.Millisecond // the same message again
	handshakeLife  = 2 * time.Second        // then a new one
	maxLetters     = 16                     // that wait; what is more is dropped, and said again
)

func newHandshakes(t *Tunnel) *handshakes {
	k := t.cfg.Key
	return &handshakes{t: t, key: k, first: secure.Initiates(k.Private.Public(), k.Peer), inbox: make(chan letter, maxLetters)}
}

// take hands a message over; it is lost when there are too many.
func (h *handshakes) take(l letter) {
	l.body = bytes.Clone(l.body)
	select {
	case h.inbox <- l:
	default:
		h.t.stats.strange.Add(1)
	}
}

// run makes keys as they are needed, until the Tunnel is closed.
func (h *handshakes) run() {
	tick := time.NewTicker(handshakeEvery / 2)
	defer tick.Stop()
	for {
		select {
		case <-h.t.done:
			return
		case l := <-h.inbox:
			h.read(l)
		case <-tick.C:
		}
		h.keep(h.t.now())
	}
}

func (h *handshakes) read(l letter) {
	switch {
	case l.step == stepBegin && !h.first:
		h.respond(l)
	case l.step == stepAnswer && h.first:
		if h.begun != nil { // or the same has come over another path
			h.finish(l)
		}
	case l.step == stepAsk && h.first:
		if h.begun == nil && h.t.silent(h.t.now()) {
			h.begin(h.t.now())
		}
	default: // of an end without a key, or of one in our role
		h.t.stats.strange.Add(1)
	}
}

// keep begins a handshake where one is due, and says again what has not been answered.
func (h *handshakes) keep(now time.Duration) {
	wanted := h.t.wantsKeys(now)
	switch {
	case !wanted:
		return
	case !h.first:
		if now-h.said >= handshakeEvery && h.t.silent(now) {
			h.said = now
			h.t.sayAll(stepAsk, nil)
		}
		return
	case h.begun == nil || now-h.since > handshakeLife:
		h.begin(now)
	case now-h.said >= handshakeEvery:
		h.said = now
		h.t.sayAll(stepBegin, h.message)
	}
}

// begin begins a handshake. Its number grows with every one, whatever the clock does.
func (h *handshakes) begin(now time.Duration) {
	h.number = max(h.number+1, uint64(time.Now().UnixNano()))
	mine, theirs := h.t.names()
	payload := binary.BigEndian.AppendUint64(hello{mine: mine, yours: theirs}.append(nil), h.number)
	if h.begun != nil {
		h.begun.Abandon()
	}
	begun, message, err := secure.NewHandshake(h.key.Private, h.key.Peer, payload)
	if err != nil {
		return // New has looked at the keys
	}
	h.begun, h.message, h.since, h.said = begun, message, now, now
	h.t.sayAll(stepBegin, message)
}

// finish takes the answer to what we began.
func (h *handshakes) finish(l letter) {
	session, payload, err := h.begun.Finish(l.body)
	if err != nil {
		h.t.stats.strange.Add(1)
		return
	}
	h.begun = nil
	said, ok := parseHello(payload)
	if !ok {
		return
	}
	k := &keys{Session: session, epoch: said.epoch, made: h.t.now(), hello: said}
	h.t.install(k)
}

// respond answers what the peer began. What was answered before gets the same answer:
// it comes over several paths.
func (h *handshakes) respond(l letter) {
	if bytes.Equal(l.body, h.asked) {
		h.t.say(l.path, stepAnswer, h.answer)
		return
	}
	var k keys
	fine := false
	answer, session, _, err := secure.Respond(h.key.Private, h.key.Peer, l.body, func(theirs []byte) []byte {
		said, ok := parseHello(theirs)
		if !ok || len(theirs) < helloBytes+8 {
			return nil
		}
		number := binary.BigEndian.Uint64(theirs[helloBytes:])
		if number <= h.number && !h.t.silentFor(h.t.now(), forgetNumber) {
			return nil // a recording
		}
		h.number, fine = number, true
		k.hello = said
		k.mine, k.epoch, k.before = h.t.propose(said)
		return hello{mine: k.mine, yours: said.mine, epoch: k.epoch}.append(nil)
	})
	if err != nil || !fine {
		h.t.stats.strange.Add(1)
		return
	}
	k.Session, k.made = session, h.t.now()
	h.asked, h.answer = l.body, answer
	h.t.await(&k)
	h.t.say(l.path, stepAnswer, answer)
}

// names are what both ends call this life.
func (t *Tunnel) names() (mine, theirs uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sess.mine, t.sess.theirs
}

// silent tells whether nothing authentic has been heard for so long that the peer may
// have begun anew.
func (t *Tunnel) silent(now time.Duration) bool { return t.silentFor(now, restartSilence) }

func (t *Tunnel) silentFor(now, d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.sess.up || now-t.sess.heard > d
}

// wantsKeys tells whether a handshake is due.
func (t *Tunnel) wantsKeys(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.sess
	return !s.up || now-s.heard > silence || s.keys.worn(now, t.largest())
}

// largest is the size of the largest packet that a path carries, bytes. The lock is held.
func (t *Tunnel) largest() int {
	n := 0
	for _, p := range t.paths {
		if p != nil {
			n = max(n, p.mtu)
		}
	}
	return n
}

// propose chooses, for the responder, what it calls the life that the peer speaks of
// and the epoch of the keys to come: neither the present one nor the one before. The keys
// before are the present ones if it is the present life.
func (t *Tunnel) propose(said hello) (mine uint64, epoch uint8, before *keys) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.sess
	mine, before = s.mine, s.keys
	if s.up && (said.mine != s.theirs || said.yours != s.mine) {
		mine, before = rand.Uint64()|1, nil
	}
	return mine, (s.epoch + 1) & 3, before
}

// await keeps keys until the peer has shown that it has them, too.
func (t *Tunnel) await(k *keys) {
	k.pending.Store(true)
	t.ring[k.epoch].Store(k)
}

// confirm puts pending keys into use: a packet was opened with them. It belongs to the
// receiving thread, and tells whether a new life has begun.
func (t *Tunnel) confirm(k *keys) bool {
	k.pending.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.adopt(k, k.mine, k.hello.mine)
}

// install puts keys into use, on the side that began the handshake.
func (t *Tunnel) install(k *keys) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.sess.keys
	fresh := t.adopt(k, t.sess.mine, k.hello.mine)
	if k.fresh.Store(fresh); !fresh {
		k.before = before
	}
	t.ring[k.epoch].Store(k)
	wake(t.wakeOut)
}

// adopt makes keys the present ones, and begins a new life unless both ends mean the
// one that is. The lock is held.
func (t *Tunnel) adopt(k *keys, mine, theirs uint64) (fresh bool) {
	s := &t.sess
	now := t.now()
	if fresh = !s.up || theirs != s.theirs || mine != s.mine; fresh {
		if s.up {
			t.tell(Event{What: Restarted})
		}
		t.restart()
		s.mine, s.theirs = mine, theirs
		for i := range t.ring {
			if uint8(i) != k.epoch {
				t.ring[i].Store(nil)
			}
		}
	}
	t.ring[(k.epoch+2)&3].Store(nil)
	s.keys, s.epoch, s.heard = k, k.epoch, now
	if !s.up {
		s.up = true
		t.tell(Event{What: Established})
	}
	if t.out != nil {
		t.out.tell = tellTimes // the peer waits for a first packet
	}
	return fresh
}

// sayAll sends a handshake's message on every path.
func (t *Tunnel) sayAll(s step, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 {
			t.sayTo(p, s, body)
		}
	}
}

// say sends one on one path.
func (t *Tunnel) say(id int, s step, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.paths[id]; p != nil && p.fd >= 0 {
		t.sayTo(p, s, body)
	}
}

func (t *Tunnel) sayTo(p *path, s step, body []byte) {
	b := make([]byte, wire.HeaderBytes, wire.HeaderBytes+1+len(body))
	shim := wire.Shim{Kind: wire.Hello, Path: uint8(p.id), Time: uint32(t.now() / time.Microsecond)}
	shim.Put(b)
	_, _ = sys.SendNow(p.fd, append(append(b, byte(s)), body...), 0) // it is said again
}
