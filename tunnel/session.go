package tunnel

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/wire"
)

// session is one life of the connection: both ends count from 0 in it. It belongs to
// the lock of the Tunnel.
type session struct {
	mine, theirs uint64 // each end's name for it: random, so only who hears an end knows its name
	known        bool   // theirs is set
	up           bool   // the peer has shown that it hears us
	compat       bool   // the form is Compat
	mpt          bool   // the peer is MPT, which takes greetings for data
	tag          uint32 // in the packets that we send
	said         time.Duration
	heard        time.Duration // the last packet of the peer's
	keys         *keys         // to seal with; nil without a key
}

// An end greets the other on every path this often until both have answered, and a tenth
// as often afterwards if the other has fallen silent.
const (
	helloEvery = 100 * time.Millisecond
	silence    = time.Second
	// restartSilence is how long the peer must have been silent before another life is
	// believed in.
	restartSilence = 1100 * time.Millisecond // idle paths are probed every 500 ms
	// answerEvery bounds how often a path answers greetings, which anybody may forge.
	answerEvery = 10 * time.Millisecond
)

// beginLife begins a life. The lock is held.
func (t *Tunnel) beginLife() {
	var b [8]byte
	rand.Read(b[:]) // never fails
	t.sess = session{mine: binary.BigEndian.Uint64(b[:]) | 1}
	t.expects.Store(noTag)
}

// noTag is what is expected before the peer has introduced itself: no tag has so many bits.
const noTag = 1 << 32

// hello is what an end says to find the other. Without a key it is a greeting by itself,
// with one it is a part of the handshake.
type hello struct {
	mine, yours uint64 // yours is 0 as long as it is not known
	up          bool   // the sender has heard its own name from the receiver
}

const helloBytes = 17

func (h hello) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, h.mine), h.yours)
	up := byte(0)
	if h.up {
		up = 1
	}
	return append(b, up)
}

func parseHello(b []byte) (h hello, ok bool) {
	if len(b) < helloBytes {
		return h, false
	}
	h = hello{mine: binary.BigEndian.Uint64(b), yours: binary.BigEndian.Uint64(b[8:]), up: b[16] != 0}
	return h, h.mine != 0
}

// tagOf is the tag of the packets from one end to the other in the life that the two
// names make. It takes both names to compute it, and a stranger off the path knows neither.
func tagOf(from, to uint64) uint32 {
	b := []byte("cleat tunnel tag")
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, from), to)
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint32(sum[:])
}

// know notes the peer's name for the life, and so the tags of both directions. The lock
// is held.
func (t *Tunnel) know(theirs uint64) {
	s := &t.sess
	s.theirs, s.known = theirs, true
	s.tag = tagOf(s.mine, theirs)
	t.expects.Store(uint64(tagOf(theirs, s.mine)))
}

// greet says hello on all paths where that is due. The lock is held.
func (t *Tunnel) greet(now time.Duration) {
	s := &t.sess
	if t.cfg.Key != nil || t.cfg.Form == Compat || s.mpt {
		return // the goroutine of handshakes does; nobody would understand
	}
	if s.said != 0 && now-s.said < helloEvery || s.up && !s.compat && now-s.heard < silence || s.compat && now-s.said < silence {
		return
	}
	s.said = now
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 {
			t.sayHello(p)
		}
	}
}

// sayHello greets the peer. It is not important that it arrives: it is said again.
func (t *Tunnel) sayHello(p *path) {
	s := &t.sess
	b := append(wire.AppendHello(nil), plainGreeting)
	_, _ = sys.SendNow(p.fd, hello{mine: s.mine, yours: s.theirs, up: s.up && !s.compat}.append(b), 0)
}

// hear takes a greeting, which anybody may have forged. One without our name changes
// nothing of a session that is up: the answer lets the peer show that it hears us. hear
// reports whether a new life has begun, of which the receiving thread has to know. The
// lock is held.
func (t *Tunnel) hear(now time.Duration, h hello, p *path) (fresh bool) {
	s := &t.sess
	proven := h.yours == s.mine
	another := !s.known || h.mine != s.theirs
	living := s.up && !s.compat
	switch {
	case living && another && (!proven || now-s.heard < restartSilence), s.compat && !proven:
		t.answer(now, p)
		return false
	case living && another: // the peer counts from 0
		t.restart()
		t.tell(Event{What: Restarted})
	case s.compat: // both ends have counted in the other form
		t.restart()
		another = true
	}
	if another {
		t.know(h.mine)
		fresh = true
	}
	switch {
	case proven && !living:
		s.up, s.compat, s.heard = true, false, now
		t.native, t.mismatched, t.send.Blind = true, false, false
		t.compatUp.Store(false)
		t.tell(Event{What: Established})
		wake(t.wakeOut)
		t.sayHello(p) // ahead of the first packet: the peer can't open that before
	case !proven || !h.up:
		t.answer(now, p)
	}
	return fresh
}

// answer greets a peer that has to know our name, unless that path has done so a moment
// ago. The lock is held.
func (t *Tunnel) answer(now time.Duration, p *path) {
	if p.answered != 0 && now-p.answered < answerEvery || p.fd < 0 {
		return
	}
	p.answered = now
	t.sayHello(p)
}

// mismatch tells people once that the peer speaks another version of the native form.
// The message may be forged, so nothing follows from it. The lock is held.
func (t *Tunnel) mismatch(version int) {
	if t.sess.up && !t.sess.compat || t.mismatched {
		return
	}
	t.mismatched = true
	t.tell(Event{What: Mismatched, Err: fmt.Errorf("it speaks version %d of the native form, this end version %d", version, wire.Version)})
}

// restart forgets what was sent in the last life. The lock is held.
func (t *Tunnel) restart() {
	for t.again.len() > 0 {
		t.arena.release(t.again.first().e)
		t.again.drop()
	}
	clear(t.control[:])
	for id, p := range t.paths {
		t.send.Restart(t.now(), id)
		if p == nil {
			continue
		}
		t.forget(p)
		p.data = false
	}
	if t.out != nil {
		t.out.renew = true
	}
}

// forget lets go of what a path has not acknowledged. The lock is held.
func (t *Tunnel) forget(p *path) {
	for ; p.kept.len() > 0; p.kept.from++ {
		t.arena.release(p.kept.at(p.kept.from).e)
	}
}
