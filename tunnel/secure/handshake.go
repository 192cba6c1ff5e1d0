package secure

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/flynn/noise"
)

// prologue is what both sides must agree on before the first message: the
// protocol and its version (Noise section 6).
const prologue = "cleat tunnel 2"

const (
	// MaxPayload is how many bytes the caller may put into a handshake message:
	// session parameters are meant, and one datagram on any path.
	MaxPayload = 200
	// MaxMessage is the length of the longest handshake message, in bytes.
	MaxMessage = minMessage1 + MaxPayload
)

// Lengths of messages with an empty payload: ephemeral key, encrypted static key,
// encrypted cipher byte.
const (
	minMessage1 = KeyBytes + KeyBytes + Overhead + 1 + Overhead
	minMessage2 = KeyBytes + 1 + Overhead
)

// ErrHandshake is returned for a handshake message that the peer did not make
// for this handshake.
var ErrHandshake = errors.New("not an authentic handshake message")

// Handshake is one begun by this side and not answered yet. It must not be used
// concurrently.
type Handshake struct {
	state *noise.HandshakeState // nil once finished or abandoned
	offer Cipher
}

// side is one end of a handshake.
type side struct {
	mine   PrivateKey
	peer   PublicKey
	can    Cipher // a set: what this processor does well
	random io.Reader
}

// newSide is this end, on this processor.
func newSide(mine PrivateKey, peer PublicKey) side {
	return side{mine: mine, peer: peer, can: able(), random: rand.Reader}
}

// NewHandshake begins a handshake with the peer and returns the first message,
// which carries payload. Only the side that Initiates may; both ends with the
// same key is ErrSameKey, a private key that is none ErrKey.
func NewHandshake(mine PrivateKey, peer PublicKey, payload []byte) (*Handshake, []byte, error) {
	h, message, err := newSide(mine, peer).begin(payload)
	if err != nil {
		return nil, nil, fmt.Errorf("begin handshake: %w", err)
	}
	return h, message, nil
}

// Finish reads the responder's message and returns the session and the payload
// that came with it. After ErrHandshake it may be called again, with another
// message; after a session was made every message is ErrHandshake.
func (h *Handshake) Finish(message []byte) (*Session, []byte, error) {
	s, payload, err := h.finish(message)
	if err != nil {
		return nil, nil, fmt.Errorf("finish handshake: %w", err)
	}
	return s, payload, nil
}

// Abandon erases the ephemeral key of a handshake that will not be finished. It
// is not needed after Finish has returned a session.
func (h *Handshake) Abandon() {
	if h.state != nil {
		forget(h.state)
		h.state = nil
	}
}

// Respond reads the initiator's message and makes the answer and the session.
// What payload makes of the initiator's payload goes into the answer; it is
// called only after the message was found to be authentic, though perhaps a
// replay, and may be nil. A message that the peer did not make for this side is
// ErrHandshake. The package comment says what the caller owes to a replay.
func Respond(mine PrivateKey, peer PublicKey, message []byte, payload func(theirs []byte) []byte) (answer []byte, s *Session, theirs []byte, err error) {
	answer, s, theirs, err = newSide(mine, peer).respond(message, payload)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("respond to handshake: %w", err)
	}
	return answer, s, theirs, nil
}

func (e side) begin(payload []byte) (*Handshake, []byte, error) {
	if err := e.check(); err != nil {
		return nil, nil, err
	}
	if !Initiates(e.mine.Public(), e.peer) {
		return nil, nil, fmt.Errorf("the side with key %s initiates", e.peer)
	}
	state, err := e.state(true)
	if err != nil {
		return nil, nil, err
	}
	plain, err := withCipher(e.can, payload)
	if err != nil {
		return nil, nil, err
	}
	message, _, _, err := state.WriteMessage(nil, plain)
	if err != nil {
		return nil, nil, err
	}
	return &Handshake{state: state, offer: e.can}, message, nil
}

func (h *Handshake) finish(message []byte) (*Session, []byte, error) {
	switch {
	case h.state == nil:
		return nil, nil, fmt.Errorf("it is over: %w", ErrHandshake)
	case len(message) < minMessage2 || len(message) > minMessage2+MaxPayload:
		return nil, nil, fmt.Errorf("%d bytes: %w", len(message), ErrHandshake)
	// The library takes back what a message did when it does not decrypt, but not
	// when a multiplication fails; so no message may get there that makes one fail.
	case lowOrder(message[:KeyBytes]):
		return nil, nil, fmt.Errorf("a point of low order: %w", ErrHandshake)
	}
	plain, out, in, err := h.state.ReadMessage(nil, message)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %v", ErrHandshake, err)
	}
	defer h.Abandon()
	picked, payload := Cipher(plain[0]), plain[1:]
	if !picked.single() || h.offer&picked == 0 {
		return nil, nil, fmt.Errorf("cipher %d was not offered: %w", plain[0], ErrHandshake)
	}
	s, err := newSession(picked, h.state.ChannelBinding(), out, in, true)
	return s, payload, err
}

func (e side) respond(message []byte, payload func(theirs []byte) []byte) ([]byte, *Session, []byte, error) {
	if err := e.check(); err != nil {
		return nil, nil, nil, err
	}
	if Initiates(e.mine.Public(), e.peer) {
		return nil, nil, nil, fmt.Errorf("this side initiates: %w", ErrHandshake)
	}
	if len(message) < minMessage1 || len(message) > MaxMessage {
		return nil, nil, nil, fmt.Errorf("%d bytes: %w", len(message), ErrHandshake)
	}
	state, err := e.state(false)
	if err != nil {
		return nil, nil, nil, err
	}
	plain, _, _, err := state.ReadMessage(nil, message)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%w: %v", ErrHandshake, err)
	}
	if PublicKey(state.PeerStatic()) != e.peer {
		return nil, nil, nil, fmt.Errorf("from another key: %w", ErrHandshake)
	}
	offer, theirs := Cipher(plain[0]), plain[1:]
	picked, ok := offer.pick(e.can)
	if !ok {
		return nil, nil, nil, fmt.Errorf("no cipher of offer %d is known: %w", plain[0], ErrHandshake)
	}
	answer, s, err := e.answer(state, picked, theirs, payload)
	return answer, s, theirs, err
}

// answer writes the second message and makes the session.
func (e side) answer(state *noise.HandshakeState, picked Cipher, theirs []byte, payload func(theirs []byte) []byte) ([]byte, *Session, error) {
	var ours []byte
	if payload != nil {
		ours = payload(theirs)
	}
	plain, err := withCipher(picked, ours)
	if err != nil {
		return nil, nil, err
	}
	defer forget(state)
	message, in, out, err := state.WriteMessage(nil, plain)
	if err != nil {
		return nil, nil, err
	}
	s, err := newSession(picked, state.ChannelBinding(), out, in, false)
	return message, s, err
}

// check finds what is wrong with the keys before any message is looked at.
func (e side) check() error {
	switch {
	case !e.mine.valid():
		return fmt.Errorf("private key: %w", ErrKey)
	case e.mine.Public() == e.peer:
		return ErrSameKey
	}
	return nil
}

// state is Noise's, before the first message.
func (e side) state(initiator bool) (*noise.HandshakeState, error) {
	config := noise.Config{
		CipherSuite:   noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s),
		Random:        e.random,
		Pattern:       noise.HandshakeIK,
		Initiator:     initiator,
		Prologue:      []byte(prologue),
		StaticKeypair: noise.DHKey{Private: e.mine.s.key[:], Public: e.mine.s.public[:]},
	}
	if initiator {
		config.PeerStatic = e.peer[:]
	}
	return noise.NewHandshakeState(config)
}

// forget erases the ephemeral private key.
func forget(state *noise.HandshakeState) { clear(state.LocalEphemeral().Private) }

// withCipher is a payload behind the byte that speaks of ciphers.
func withCipher(c Cipher, payload []byte) ([]byte, error) {
	if len(payload) > MaxPayload {
		return nil, fmt.Errorf("payload of %d bytes, at most %d fit", len(payload), MaxPayload)
	}
	return append([]byte{byte(c)}, payload...), nil
}
