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

// session is a session with the peer, in which both ends count from 0. It is guarded by
// Tunnel.mu.
type session struct {
	// Each end's name for the session: random, so only those who hear an end know its name.
	ownName, peerName uint64 // peerName is 0 as long as it is unknown
	up                bool   // the peer has shown that it hears us
	compat            bool   // the form is Compat
	mpt               bool   // the peer is MPT, which takes hellos for data
	tag               uint32 // tag of the packets that we send
	helloSentAt       time.Duration
	heardAt           time.Duration // when the peer's last packet arrived
	unheard           bool          // this end has finished a handshake and received no packet since
	keys              *keys         // for sealing; nil without a key
	peer              wire.Receiver // how the peer receives; zero: it has not said
}

// An end sends a hello on every path each helloEvery until both have answered, and each
// peerSilence afterwards while the other is silent.
const (
	helloEvery  = 100 * time.Millisecond
	peerSilence = time.Second
	// restartSilence is how long the peer must have been silent before a new session is
	// accepted.
	restartSilence = 1100 * time.Millisecond // idle paths are probed every 500 ms
	// helloAnswerInterval bounds how often a path answers hellos, which anybody can
	// forge.
	helloAnswerInterval = 10 * time.Millisecond
)

// newSession begins a session. It is called with mu held.
func (t *Tunnel) newSession() {
	var b [8]byte
	rand.Read(b[:]) // never fails
	t.session = session{ownName: binary.BigEndian.Uint64(b[:]) | 1}
	t.peerTag.Store(noTag)
}

// noTag stands for the expected tag before the peer has introduced itself: no tag has so
// many bits.
const noTag = 1 << 32

// hello is what an end sends to find the other. Without a key it is a message by itself,
// with a key it is part of the handshake.
type hello struct {
	senderName, receiverName uint64 // receiverName is 0 as long as it is unknown
	up                       bool   // the sender has received its own name from the receiver
}

const helloBytes = 17

func (h hello) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, h.senderName), h.receiverName)
	upByte := byte(0)
	if h.up {
		upByte = 1
	}
	return append(b, upByte)
}

func parseHello(b []byte) (h hello, ok bool) {
	if len(b) < helloBytes {
		return h, false
	}
	h = hello{senderName: binary.BigEndian.Uint64(b), receiverName: binary.BigEndian.Uint64(b[8:]), up: b[16] != 0}
	return h, h.senderName != 0
}

// tagOf returns the tag of packets from one end to the other in the session with these
// two names. It takes both names to compute it, and an attacker off the path knows
// neither.
func tagOf(from, to uint64) uint32 {
	b := []byte("cleat tunnel tag")
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, from), to)
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint32(sum[:])
}

// setPeerName sets the peer's name for the session, and thereby the tags of both
// directions. It is called with mu held.
func (t *Tunnel) setPeerName(name uint64) {
	s := &t.session
	s.peerName = name
	s.tag = tagOf(s.ownName, name)
	t.peerTag.Store(uint64(tagOf(name, s.ownName)))
}

// sendHellos sends a hello on all paths if it is due. It is called with mu held.
func (t *Tunnel) sendHellos(now time.Duration) {
	s := &t.session
	if t.cfg.Key != nil || t.cfg.Form == Compat || s.mpt {
		return // handshakes run in their own goroutine, and other peers don't understand hellos
	}
	if s.helloSentAt != 0 && now-s.helloSentAt < helloEvery || s.up && !s.compat && (now-s.heardAt < peerSilence || !t.peerMissed(now)) || s.compat && now-s.helloSentAt < peerSilence {
		return
	}
	s.helloSentAt = now
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 && p.mayAsk(now) {
			t.sendHello(p)
		}
	}
}

// sendHello sends a hello on a path. It may get lost, because it is repeated.
func (t *Tunnel) sendHello(p *path) {
	s := &t.session
	b := append(wire.AppendHello(nil), plainHello)
	_, _ = sys.SendNow(p.fd, hello{senderName: s.ownName, receiverName: s.peerName, up: s.up && !s.compat}.append(b), 0)
}

// handleHello processes a hello, which may be forged. One without our name does not
// change a session that is up: the answer lets the peer prove that it hears us.
// handleHello reports whether a new session has begun, for the receiving thread. It is
// called with mu held.
func (t *Tunnel) handleHello(now time.Duration, h hello, p *path) (started bool) {
	s := &t.session
	proven := h.receiverName == s.ownName
	newPeer := h.senderName != s.peerName
	isUp := s.up && !s.compat
	switch {
	case isUp && newPeer && (!proven || now-s.heardAt < restartSilence), s.compat && !proven:
		t.answerHello(now, p)
		return false
	case isUp && newPeer: // the peer counts from 0
		t.resetSession()
		t.emit(Event{Kind: Restarted})
	case s.compat: // both ends have counted in the other form
		t.resetSession()
		newPeer = true
	}
	if newPeer {
		t.setPeerName(h.senderName)
		started = true
	}
	switch {
	case proven && !isUp:
		s.up, s.compat, s.heardAt = true, false, now
		t.peerIsNative, t.mismatchReported, t.sender.Blind = true, false, false
		t.acceptCompat.Store(false)
		t.emit(Event{Kind: Established})
		wake(t.wakeOut)
		t.sendHello(p) // ahead of the first packet, which the peer can't accept before it
	case !proven || !h.up:
		t.answerHello(now, p)
	}
	return started
}

// answerHello sends a hello to a peer that needs our name, unless the path did so a
// moment ago. It is called with mu held.
func (t *Tunnel) answerHello(now time.Duration, p *path) {
	if p.helloSentAt != 0 && now-p.helloSentAt < helloAnswerInterval || p.fd < 0 {
		return
	}
	p.helloSentAt = now
	t.sendHello(p)
}

// reportMismatch reports once that the peer speaks another version of the native form. The
// packet may be forged, so nothing else follows from it.
func (t *Tunnel) reportMismatch(version int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session.up && !t.session.compat || t.mismatchReported {
		return
	}
	t.mismatchReported = true
	t.emit(Event{Kind: Mismatched, Err: fmt.Errorf("the other end speaks version %d of the native form, this end version %d", version, wire.Version)})
}

// resetSession forgets what was sent in the last session. It is called with mu held.
func (t *Tunnel) resetSession() {
	for t.resends.len() > 0 {
		t.arena.release(t.resends.first().e)
		t.resends.drop()
	}
	t.session.peer = wire.Receiver{} // another program may answer now
	t.resetDirect()
	t.sender.SetReportInterval(0)
	clear(t.controlSeqs[:])
	for id, p := range t.paths {
		t.sender.Reset(t.now(), id)
		if p == nil {
			continue
		}
		for p.unacked.len() > 0 {
			t.dropOldest(p)
		}
		p.carriedData, p.namedAt = false, 0
	}
	if t.out != nil {
		t.out.sessionChanged = true
	}
}

// dropOldest releases the oldest piece that a path has not acknowledged. It is called with
// mu held.
func (t *Tunnel) dropOldest(p *path) {
	t.arena.release(p.unacked.oldest().e)
	p.unacked.from++
}
