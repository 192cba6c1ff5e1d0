package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// handshakes makes keys with the peer, in a goroutine of its own: a message may take a
// millisecond, and packets must not wait for that.
//
// Each message is sealed with a key that both ends derive from their static keys when
// they start (secure.Guard), so the receiving thread rejects a forged message within a
// microsecond. A replayed message is authentic, so each message has a number:
//
//   - The initiator numbers its first messages by its clock, and never decreases. The
//     responder processes only a message with a number above its floor, the highest number
//     that it has accepted, and of several waiting messages the one with the highest number.
//     That one is always the initiator's own, whatever an attacker has recorded.
//   - The responder's floor starts at its own clock. If the initiator's clock is behind, its
//     numbers are too low. A responder without a session sends its floor, and the initiator
//     continues from there. A replayed old floor is lower and has no effect.
//   - An answer has the number of the message that it answers.
//
// An end that learns the peer's addresses answers where a message came from. If the keys
// make it the initiator, it begins when the peer requests it. A request is padded, so that
// what it causes is not longer, and an attacker gains nothing by sending it on from
// somewhere else.
//
// So only the peer itself can make this end compute a key exchange, and limiter bounds
// even that.
type handshakes struct {
	t         *Tunnel
	key       *Key
	guard     *secure.Guard
	initiator bool // this end initiates
	limiter   tokenBucket

	begun   *secure.Handshake // the handshake that this end has begun
	message []byte            // its first message
	begunAt time.Duration
	sentAt  time.Duration // when a message was last sent
	answer  []byte        // responder: answer to the message numbered floor; nil: none

	wake  chan struct{}
	mu    sync.Mutex // guards inbox
	inbox struct {
		message handshakeMessage // processed next
		waiting bool             // message is set
		repeats replies          // where the answered message came from again
		floor   uint64           // highest number accepted or used
		sent    uint64           // initiator: number of its message
	}
}

type handshakeMessage struct {
	from   replies
	step   step
	number uint64
	body   []byte // for package secure
}

// replies is where to send an answer.
type replies struct {
	paths   uint64 // set of paths
	origins [maxOrigins]pathOrigin
	n       int // of origins
}

// maxOrigins is how many addresses get an answer that are not known as those of a path.
const maxOrigins = 8

// pathOrigin is where a message came from that has arrived at a listener of a path.
type pathOrigin struct {
	path int
	origin
}

func (r *replies) add(o *replies) {
	r.paths |= o.paths
	for _, from := range o.origins[:o.n] {
		if r.n < maxOrigins && !slices.Contains(r.origins[:r.n], from) {
			r.origins[r.n] = from
			r.n++
		}
	}
}

// replyTo returns where to answer the message being read, which has arrived by a path.
func (in *inbound) replyTo(p *path) replies {
	if !p.learns || in.role != listener {
		return replies{paths: 1 << p.id}
	}
	return replies{origins: [maxOrigins]pathOrigin{{p.id, in.learning.origin}}, n: 1}
}

type step byte

const (
	stepBegin   step = 1 + iota // from the initiator
	stepAnswer                  // from the responder
	stepRequest                 // the responder has no keys; the number is its floor
)

// The byte after the header of a hello.
const (
	plainHello  = 0 // a hello, neither encrypted nor authenticated
	sealedHello = 1 // a handshakeMessage
)

const (
	handshakeEvery = 100 * time.Millisecond // until the same message is sent again
	handshakeLife  = 2 * time.Second        // until a new handshake begins
	handshakeTick  = handshakeEvery / 2

	messageHeaderBytes = 1 + 8 // step and number
	// requestBytes is the length of a request's body, which is padding: so much that no
	// message that begins a handshake is longer.
	requestBytes = 128
	// maxNumber is beyond any clock in nanoseconds since 1970: year 2262. A higher number
	// would leave no room above it.
	maxNumber = 1 << 63
)

// maxHandshakes may be processed at once, and one more each handshakeRefill. A peer needs
// one each two minutes, and one takes 1.3 ms.
const (
	maxHandshakes   = 10
	handshakeRefill = 200 * time.Millisecond
)

func newHandshakes(t *Tunnel) (*handshakes, error) {
	k := t.cfg.Key
	guard, err := secure.NewGuard(k.Private, k.Peer)
	if err != nil {
		return nil, err
	}
	h := &handshakes{
		t: t, key: k, guard: guard, initiator: secure.Initiates(k.Private.Public(), k.Peer), wake: make(chan struct{}, 1),
		limiter: tokenBucket{burst: maxHandshakes, every: handshakeRefill},
	}
	h.inbox.floor = uint64(time.Now().UnixNano())
	return h, nil
}

// accept opens a message that a path has delivered, and keeps it if it is worth
// processing. It is called by the receiving thread and reports whether the message is
// authentic.
func (h *handshakes) accept(from replies, header, sealed []byte) bool {
	plain, err := h.guard.Open(header, sealed)
	if err != nil || len(plain) < messageHeaderBytes {
		return false
	}
	msg := handshakeMessage{from: from, step: step(plain[0]), number: binary.BigEndian.Uint64(plain[1:]), body: plain[messageHeaderBytes:]}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &h.inbox
	switch {
	case msg.number > maxNumber:
		return false
	case msg.step == stepBegin && !h.initiator && msg.number == m.floor:
		m.repeats.add(&msg.from) // the answer is repeated at the next tick
		return true
	case msg.step == stepBegin && !h.initiator && msg.number < m.floor:
		return true // a replay, or the clock is behind: without a session this end sends its floor
	case msg.step == stepBegin && !h.initiator:
	case msg.step == stepAnswer && h.initiator && msg.number == m.sent:
	case msg.step == stepRequest && h.initiator:
		if len(msg.body) < requestBytes {
			msg.from.n = 0
		}
	default: // for the other role, or an answer to an earlier message
		return msg.step >= stepBegin && msg.step <= stepRequest
	}
	if m.waiting && msg.step == m.message.step && msg.number == m.message.number {
		m.message.from.add(&msg.from)
		return true
	}
	if m.waiting && (msg.step > m.message.step || msg.step == m.message.step && msg.number < m.message.number) {
		return true
	}
	msg.body = bytes.Clone(msg.body)
	m.message, m.waiting = msg, true
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return true
}

// run makes keys as needed, until the Tunnel is closed.
func (h *handshakes) run() {
	tick := time.NewTicker(handshakeTick)
	defer tick.Stop()
	for {
		select {
		case <-h.t.done:
			return
		case <-h.wake:
			h.processMessage(h.t.now())
		case <-tick.C:
			h.repeatAnswers()
			h.processMessage(h.t.now())
		}
		h.maintain(h.t.now())
	}
}

// repeatAnswers answers a message again on the paths on which it came again: because it
// was sent on several paths, or because the answer was lost.
func (h *handshakes) repeatAnswers() {
	h.mu.Lock()
	to, number := h.inbox.repeats, h.inbox.floor
	h.inbox.repeats = replies{}
	h.mu.Unlock()
	if h.answer != nil {
		h.send(to, stepAnswer, number, h.answer)
	}
}

// processMessage processes the waiting message. If the limiter is exhausted, the message
// keeps waiting, and a better one may replace it.
func (h *handshakes) processMessage(now time.Duration) {
	msg, ok := h.next(now)
	switch {
	case !ok:
	case msg.step == stepBegin:
		h.respond(msg)
	case msg.step == stepAnswer && h.begun != nil: // otherwise it came by another path before
		h.finish(msg)
	case msg.step == stepRequest:
		h.handleRequest(now, msg)
	}
}

// next removes the waiting message, if it may be processed now.
func (h *handshakes) next(now time.Duration) (msg handshakeMessage, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &h.inbox
	if !m.waiting {
		return msg, false
	}
	exchangesKeys := m.message.step == stepBegin || m.message.step == stepAnswer && h.begun != nil
	if exchangesKeys && !h.limiter.take(now) {
		return msg, false
	}
	msg, m.message, m.waiting = m.message, handshakeMessage{}, false
	if msg.step == stepBegin {
		m.floor, m.repeats = msg.number, replies{}
	}
	return msg, true
}

// handleRequest processes the responder's floor, and begins a handshake if there is no
// session. If a handshake was finished and the responder does not know that yet, it gets
// another first packet.
func (h *handshakes) handleRequest(now time.Duration, msg handshakeMessage) {
	h.mu.Lock()
	behind := h.inbox.floor < msg.number
	h.inbox.floor = max(h.inbox.floor, msg.number)
	h.mu.Unlock()
	msg.from.paths = 0 // they are sent to anyway
	switch silent := h.t.peerSilent(now); {
	case silent && (h.begun == nil || behind || now-h.begunAt > handshakeLife):
		if h.limiter.take(now) {
			to := msg.from
			to.paths = allPaths
			h.begin(now, to)
		}
	case silent:
		_, number := h.numbers()
		h.send(msg.from, stepBegin, number, h.message)
	default:
		h.t.sendFirst(now, &msg.from)
	}
}

// sendFirst sends a first packet of the session to addresses that are not known as those of
// a path, unless the peer has sent one.
func (t *Tunnel) sendFirst(now time.Duration, to *replies) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.session.unheard {
		return
	}
	for _, from := range to.origins[:to.n] {
		if p := t.paths[from.path]; p != nil {
			t.sendFrom(p, t.controlPacket(now, p, make([]byte, wire.HeaderBytes)), from.origin)
		}
	}
}

// maintain begins a handshake if one is due, and repeats messages that were not answered.
func (h *handshakes) maintain(now time.Duration) {
	switch {
	case !h.t.needsKeys(now):
	case !h.initiator:
		if now-h.sentAt >= handshakeEvery && h.t.peerSilent(now) {
			h.sentAt = now
			floor, _ := h.numbers()
			h.send(replies{paths: h.t.askPaths(now)}, stepRequest, floor, make([]byte, requestBytes))
		}
	case !h.t.hasSocket(): // it waits for a request
	case h.begun == nil || now-h.begunAt > handshakeLife:
		h.begin(now, replies{paths: h.t.askPaths(now)})
	case now-h.sentAt >= handshakeEvery:
		h.sentAt = now
		_, number := h.numbers()
		h.send(replies{paths: h.t.askPaths(now)}, stepBegin, number, h.message)
	}
}

func (h *handshakes) numbers() (floor, sent uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inbox.floor, h.inbox.sent
}

// hasSocket reports whether this end can send anything: a path that learns its remote may
// not know it.
func (t *Tunnel) hasSocket() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.paths[:], func(p *path) bool { return p != nil && p.fd >= 0 })
}

// begin begins a handshake by sending a message. Its number is above all earlier ones,
// whatever the clock does.
func (h *handshakes) begin(now time.Duration, to replies) {
	h.mu.Lock()
	number := max(h.inbox.floor+1, uint64(time.Now().UnixNano()))
	h.inbox.floor, h.inbox.sent = number, number
	h.mu.Unlock()
	h.t.mu.Lock()
	names := hello{senderName: h.t.session.ownName, receiverName: h.t.session.peerName}
	h.t.mu.Unlock()
	if h.begun != nil {
		h.begun.Abandon()
	}
	begun, message, err := secure.NewHandshake(h.key.Private, h.key.Peer, names.append(nil))
	if err != nil {
		return // can't happen: New has checked the keys
	}
	h.begun, h.message, h.begunAt, h.sentAt = begun, message, now, now
	h.send(to, stepBegin, number, message)
}

// finish processes the answer to this end's message.
func (h *handshakes) finish(msg handshakeMessage) {
	session, payload, err := h.begun.Finish(msg.body)
	if err != nil {
		h.t.stats.invalid.Add(1)
		return
	}
	h.begun = nil
	peerHello, ok := parseHello(payload)
	if !ok {
		return
	}
	k := newKeys(session, h.t.now())
	k.hello = peerHello
	h.t.installKeys(k)
	h.t.sendFirst(h.t.now(), &msg.from)
}

func (h *handshakes) respond(msg handshakeMessage) {
	h.answer = nil
	var peerHello hello
	var proposed proposal
	valid := false
	answer, session, _, err := secure.Respond(h.key.Private, h.key.Peer, msg.body, func(theirs []byte) []byte {
		if peerHello, valid = parseHello(theirs); !valid {
			return nil
		}
		proposed = h.t.propose(peerHello)
		return hello{senderName: proposed.ownName, receiverName: peerHello.senderName}.append(nil)
	})
	if err != nil || !valid {
		h.t.stats.invalid.Add(1)
		return
	}
	k := newKeys(session, h.t.now())
	k.hello, k.ownName, k.previous = peerHello, proposed.ownName, proposed.previous
	h.answer = answer
	h.t.setPendingKeys(k)
	h.send(msg.from, stepAnswer, msg.number, answer)
}

const allPaths = 1<<MaxPaths - 1

// send sends a message. It may get lost, because it is repeated.
func (h *handshakes) send(to replies, s step, number uint64, body []byte) {
	sealed := func() []byte {
		header := append(wire.AppendHello(nil), sealedHello)
		plain := append(binary.BigEndian.AppendUint64([]byte{byte(s)}, number), body...)
		return h.guard.Seal(header, header, plain)
	}
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	for _, id := range sched.PathIDs(to.paths) {
		if p := h.t.paths[id]; p != nil && p.fd >= 0 {
			_, _ = sys.SendNow(p.fd, sealed(), 0)
		}
	}
	for _, from := range to.origins[:to.n] {
		if p := h.t.paths[from.path]; p != nil {
			h.t.sendFrom(p, sealed(), from.origin)
		}
	}
}

// peerSilent reports whether nothing authentic has arrived for so long that the peer may
// have restarted.
func (t *Tunnel) peerSilent(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.session.up || now-t.session.heardAt > restartSilence
}

func (t *Tunnel) needsKeys(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.session
	return !s.up || now-s.heardAt > peerSilence && t.peerMissed(now) || s.keys.needReplacement(now)
}

// proposal is the responder's name for the session that the peer means. previous are the
// keys that the new ones replace; nil: it is a new session.
type proposal struct {
	ownName  uint64
	previous *keys
}

func (t *Tunnel) propose(peerHello hello) proposal {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.session
	if s.up && (peerHello.senderName != s.peerName || peerHello.receiverName != s.ownName) {
		return proposal{ownName: rand.Uint64() | 1}
	}
	return proposal{s.ownName, s.keys}
}

// setPendingKeys holds keys back until the peer has shown that it has them too.
func (t *Tunnel) setPendingKeys(k *keys) {
	k.pending.Store(true)
	t.keyring.next.Store(k)
}

// confirmKeys puts pending keys into use because a packet was opened with them. It is
// called by the receiving thread and reports whether a new session has begun.
func (t *Tunnel) confirmKeys(k *keys) bool {
	k.pending.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.useKeys(k, k.ownName, k.hello.senderName)
}

// installKeys puts keys into use at the end that began the handshake. It drops keys for a
// session that has ended in the meantime.
func (t *Tunnel) installKeys(k *keys) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.hello.receiverName != t.session.ownName {
		return
	}
	if t.isNewSession(t.session.ownName, k.hello.senderName) {
		k.startsSession.Store(true)
	} else {
		k.previous = t.session.keys
	}
	t.useKeys(k, t.session.ownName, k.hello.senderName)
	t.session.unheard = true
	wake(t.wakeOut)
}

// isNewSession reports whether two names are not those of the current session. It is
// called with mu held.
func (t *Tunnel) isNewSession(ownName, peerName uint64) bool {
	s := &t.session
	return !s.up || peerName != s.peerName || ownName != s.ownName
}

// useKeys makes keys the current ones and, unless the names are those of the current
// session, begins a new session. It is called with mu held.
func (t *Tunnel) useKeys(k *keys, ownName, peerName uint64) (started bool) {
	s := &t.session
	now := t.now()
	if started = t.isNewSession(ownName, peerName); started {
		if s.up {
			t.emit(Event{Kind: Restarted})
		}
		t.resetSession()
		s.ownName, s.peerName = ownName, peerName
		t.keyring.clear()
	}
	t.keyring.use(k)
	s.keys, s.tag, s.heardAt = k, k.outTag, now
	t.mismatchReported = false
	if !s.up {
		s.up = true
		t.emit(Event{Kind: Established})
	}
	if t.out != nil {
		t.out.announcements = announceTimes // the peer waits for a first packet
	}
	return started
}

// tokenBucket limits a rate. The zero value allows nothing.
type tokenBucket struct {
	burst      int           // tokens at once
	every      time.Duration // for one more token
	used       int
	refilledAt time.Duration // when used was last reduced
}

// take takes a token. It reports whether there was one.
func (b *tokenBucket) take(now time.Duration) bool {
	if n := int((now - b.refilledAt) / b.every); n > 0 {
		b.used = max(b.used-n, 0)
		b.refilledAt += time.Duration(n) * b.every
	}
	if b.used >= b.burst {
		return false
	}
	b.used++
	return true
}
