package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// handshakes makes keys with the peer, in a goroutine of its own: a message may cost a
// millisecond, and packets must not wait for that.
//
// Every message is a letter, sealed with a key that both ends compute from their static
// keys when they start (secure.Guard). What a stranger forges ends there, in the receiving
// thread, after a microsecond. A replayed letter is authentic, so each one has a number:
//
//   - The initiator numbers its first messages by its clock, and never downwards. The
//     responder multiplies only for a number above all that it has accepted, its floor,
//     and of several that wait for the highest: that one is the initiator's own, whatever
//     somebody has recorded.
//   - The responder begins with its own clock as the floor. If the initiator's clock is
//     behind, its numbers are too low. A responder without a session says its floor, and
//     the initiator goes on from there. An old floor, replayed, is lower and does nothing.
//   - An answer has the number of the message that it answers.
//
// So only the peer itself can make this end multiply, and works bounds that, too.
type handshakes struct {
	t     *Tunnel
	key   *Key
	guard *secure.Guard
	first bool // this end initiates
	works bucket

	begun   *secure.Handshake // by this end
	message []byte            // its first message
	names   hello             // what it says
	since   time.Duration
	said    time.Duration
	answer  []byte // responder: to the message with the number floor; nil: there is none

	wake chan struct{}
	mu   sync.Mutex // guards what follows, the receiving thread's letters
	mail struct {
		letter letter // the one to be read next
		some   bool   // there is one
		again  uint64 // paths that brought the answered message once more
		floor  uint64 // the highest number that was accepted, or used
		sent   uint64 // initiator: the number of its message
	}
}

// letter is a handshake message.
type letter struct {
	paths  uint64 // that brought it
	step   step
	number uint64
	body   []byte // Noise's
}

// step says which message of a handshake it is.
type step byte

const (
	stepBegin  step = 1 + iota // the initiator's message
	stepAnswer                 // the responder's
	stepAsk                    // the responder has no keys; its number is its floor
)

// The byte behind the header of a greeting.
const (
	plainGreeting  = 0 // a hello, neither encrypted nor authenticated
	sealedGreeting = 1 // a letter
)

const (
	handshakeEvery = 100 * time.Millisecond // the same message again
	handshakeLife  = 2 * time.Second        // then a new one
	handshakeTick  = handshakeEvery / 2

	letterHeader = 1 + 8 // step and number
	// mostNumber is beyond any clock, nanoseconds since 1970: year 2262. A peer with a higher
	// number would leave no room above.
	mostNumber = 1 << 63
)

// worksMost handshakes may be worked on at once, and one more each worksEvery: a peer needs
// one each two minutes, and takes 1.3 ms for one.
const (
	worksMost  = 10
	worksEvery = 200 * time.Millisecond
)

func newHandshakes(t *Tunnel) (*handshakes, error) {
	k := t.cfg.Key
	guard, err := secure.NewGuard(k.Private, k.Peer)
	if err != nil {
		return nil, err
	}
	h := &handshakes{
		t: t, key: k, guard: guard, first: secure.Initiates(k.Private.Public(), k.Peer), wake: make(chan struct{}, 1),
		works: bucket{most: worksMost, every: worksEvery},
	}
	h.mail.floor = uint64(time.Now().UnixNano())
	return h, nil
}

// take reads a letter that a path has brought and hands it over if it is worth reading. It
// belongs to the receiving thread, and reports whether the letter is authentic.
func (h *handshakes) take(path int, header, sealed []byte) bool {
	plain, err := h.guard.Open(header, sealed)
	if err != nil || len(plain) < letterHeader {
		return false
	}
	l := letter{paths: 1 << path, step: step(plain[0]), number: binary.BigEndian.Uint64(plain[1:]), body: plain[letterHeader:]}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &h.mail
	switch {
	case l.number > mostNumber:
		return false
	case l.step == stepBegin && !h.first && l.number == m.floor:
		m.again |= l.paths // answered at the next tick
		return true
	case l.step == stepBegin && !h.first && l.number < m.floor:
		return true // a replay, or a clock that is behind: asked for if there is no session
	case l.step == stepBegin && !h.first:
	case l.step == stepAnswer && h.first && l.number == m.sent:
	case l.step == stepAsk && h.first:
	default: // to somebody in this end's own role, or an answer to something earlier
		return l.step >= stepBegin && l.step <= stepAsk
	}
	if m.some && l.step == m.letter.step && l.number == m.letter.number {
		m.letter.paths |= l.paths
		return true
	}
	if m.some && (l.step > m.letter.step || l.step == m.letter.step && l.number < m.letter.number) {
		return true
	}
	l.body = bytes.Clone(l.body)
	m.letter, m.some = l, true
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return true
}

// run makes keys as they are needed, until the Tunnel is closed.
func (h *handshakes) run() {
	tick := time.NewTicker(handshakeTick)
	defer tick.Stop()
	for {
		select {
		case <-h.t.done:
			return
		case <-h.wake:
			h.read(h.t.now())
		case <-tick.C:
			h.repeat()
			h.read(h.t.now())
		}
		h.keep(h.t.now())
	}
}

// repeat answers a message again on the paths that brought it again: over several paths at
// first, or because the answer was lost.
func (h *handshakes) repeat() {
	h.mu.Lock()
	paths, number := h.mail.again, h.mail.floor
	h.mail.again = 0
	h.mu.Unlock()
	if h.answer != nil {
		h.say(paths, stepAnswer, number, h.answer)
	}
}

// read works on the letter that waits. Without a place in works it goes on waiting, and
// may be replaced by a better one.
func (h *handshakes) read(now time.Duration) {
	l, ok := h.next(now)
	switch {
	case !ok:
	case l.step == stepBegin:
		h.respond(l)
	case l.step == stepAnswer && h.begun != nil: // else the same has come over another path
		h.finish(l)
	case l.step == stepAsk:
		h.asked(now, l.number)
	}
}

// next takes the letter that waits, if it may be worked on now.
func (h *handshakes) next(now time.Duration) (l letter, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &h.mail
	if !m.some {
		return l, false
	}
	multiplies := m.letter.step == stepBegin || m.letter.step == stepAnswer && h.begun != nil
	if multiplies && !h.works.take(now) {
		return l, false
	}
	l, m.letter, m.some = m.letter, letter{}, false
	if l.step == stepBegin {
		m.floor, m.again = l.number, 0
	}
	return l, true
}

// asked takes the responder's floor, and begins a handshake if there is no session.
func (h *handshakes) asked(now time.Duration, floor uint64) {
	h.mu.Lock()
	behind := h.mail.floor < floor
	h.mail.floor = max(h.mail.floor, floor)
	h.mu.Unlock()
	if (h.begun == nil || behind) && h.t.silent(now) && h.works.take(now) {
		h.begin(now)
	}
}

// keep begins a handshake where one is due, and says again what has not been answered.
func (h *handshakes) keep(now time.Duration) {
	wanted := h.t.wantsKeys(now)
	switch {
	case !wanted:
	case !h.first:
		if now-h.said >= handshakeEvery && h.t.silent(now) {
			h.said = now
			floor, _ := h.numbers()
			h.say(allPaths, stepAsk, floor, nil)
		}
	case h.begun == nil || now-h.since > handshakeLife:
		h.begin(now)
	case now-h.said >= handshakeEvery:
		h.said = now
		_, number := h.numbers()
		h.say(allPaths, stepBegin, number, h.message)
	}
}

func (h *handshakes) numbers() (floor, sent uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mail.floor, h.mail.sent
}

// begin begins a handshake. Its number is above all before, whatever the clock does.
func (h *handshakes) begin(now time.Duration) {
	h.mu.Lock()
	number := max(h.mail.floor+1, uint64(time.Now().UnixNano()))
	h.mail.floor, h.mail.sent = number, number
	h.mu.Unlock()
	h.names = h.t.names()
	if h.begun != nil {
		h.begun.Abandon()
	}
	begun, message, err := secure.NewHandshake(h.key.Private, h.key.Peer, h.names.append(nil))
	if err != nil {
		return // New has looked at the keys
	}
	h.begun, h.message, h.since, h.said = begun, message, now, now
	h.say(allPaths, stepBegin, number, message)
}

// finish takes the answer to what this end began.
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
	k := newKeys(session, h.t.now())
	k.hello = said
	h.t.install(k)
}

// respond answers what the peer began.
func (h *handshakes) respond(l letter) {
	h.answer = nil
	var said hello
	var proposed proposal
	fine := false
	answer, session, _, err := secure.Respond(h.key.Private, h.key.Peer, l.body, func(theirs []byte) []byte {
		if said, fine = parseHello(theirs); !fine {
			return nil
		}
		proposed = h.t.propose(said)
		return hello{mine: proposed.mine, yours: said.mine}.append(nil)
	})
	if err != nil || !fine {
		h.t.stats.strange.Add(1)
		return
	}
	k := newKeys(session, h.t.now())
	k.hello, k.mine, k.before = said, proposed.mine, proposed.before
	h.answer = answer
	h.t.await(k)
	h.say(l.paths, stepAnswer, l.number, answer)
}

// allPaths is every path.
const allPaths = 1<<MaxPaths - 1

// say sends a letter on paths.
func (h *handshakes) say(paths uint64, s step, number uint64, body []byte) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	for _, id := range sched.Ones(paths) {
		h.sayTo(h.t.paths[id], s, number, body)
	}
}

// sayTo sends a letter. It is not important that it arrives: it is said again.
func (h *handshakes) sayTo(p *path, s step, number uint64, body []byte) {
	if p == nil || p.fd < 0 {
		return
	}
	header := append(wire.AppendHello(nil), sealedGreeting)
	plain := append(binary.BigEndian.AppendUint64([]byte{byte(s)}, number), body...)
	_, _ = sys.SendNow(p.fd, h.guard.Seal(header, header, plain), 0)
}

// names are what both ends call this life.
func (t *Tunnel) names() hello {
	t.mu.Lock()
	defer t.mu.Unlock()
	return hello{mine: t.sess.mine, yours: t.sess.theirs}
}

// silent reports whether nothing authentic has been heard for so long that the peer may
// have begun anew.
func (t *Tunnel) silent(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.sess.up || now-t.sess.heard > restartSilence
}

// wantsKeys reports whether a handshake is due.
func (t *Tunnel) wantsKeys(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.sess
	return !s.up || now-s.heard > silence || s.keys.worn(now)
}

// proposal is what the responder calls the life that the peer speaks of. before are the
// keys that the new ones follow in it; nil: it is another life.
type proposal struct {
	mine   uint64
	before *keys
}

// propose makes the responder's proposal.
func (t *Tunnel) propose(said hello) proposal {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.sess
	if s.up && (said.mine != s.theirs || said.yours != s.mine) {
		return proposal{mine: rand.Uint64() | 1}
	}
	return proposal{s.mine, s.keys}
}

// await keeps keys until the peer has shown that it has them, too.
func (t *Tunnel) await(k *keys) {
	k.pending.Store(true)
	t.ring.next.Store(k)
}

// confirm puts pending keys into use: a packet was opened with them. It belongs to the
// receiving thread, and reports whether a new life has begun.
func (t *Tunnel) confirm(k *keys) bool {
	k.pending.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.adopt(k, k.mine, k.hello.mine)
}

// install puts keys into use, on the side that began the handshake. Keys for a life that
// has ended meanwhile are dropped.
func (t *Tunnel) install(k *keys) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.hello.yours != t.sess.mine {
		return
	}
	if t.another(t.sess.mine, k.hello.mine) {
		k.fresh.Store(true)
	} else {
		k.before = t.sess.keys
	}
	t.adopt(k, t.sess.mine, k.hello.mine)
	wake(t.wakeOut)
}

// another reports whether two names are those of another life than the present one. The
// lock is held.
func (t *Tunnel) another(mine, theirs uint64) bool {
	s := &t.sess
	return !s.up || theirs != s.theirs || mine != s.mine
}

// adopt makes keys the current ones, and begins a new life unless both ends mean the one
// that is. The lock is held.
func (t *Tunnel) adopt(k *keys, mine, theirs uint64) (fresh bool) {
	s := &t.sess
	now := t.now()
	if fresh = t.another(mine, theirs); fresh {
		if s.up {
			t.tell(Event{What: Restarted})
		}
		t.restart()
		s.mine, s.theirs = mine, theirs
		t.ring.clear()
	}
	t.ring.use(k)
	s.keys, s.tag, s.heard = k, k.out, now
	t.mismatched = false
	if !s.up {
		s.up = true
		t.tell(Event{What: Established})
	}
	if t.out != nil {
		t.out.tell = tellTimes // the peer waits for a first packet
	}
	return fresh
}

// bucket bounds how often something is done. The zero value allows nothing.
type bucket struct {
	most  int           // at once
	every time.Duration // one more
	used  int
	since time.Duration // when used was last made smaller
}

// take reports whether it may be done now, and counts it.
func (b *bucket) take(now time.Duration) bool {
	if n := int((now - b.since) / b.every); n > 0 {
		b.used = max(b.used-n, 0)
		b.since += time.Duration(n) * b.every
	}
	if b.used >= b.most {
		return false
	}
	b.used++
	return true
}
