package secure

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/flynn/noise"
)

// prologue is what both sides must agree on before the first message: the protocol and
// its version (Noise section 6).
const prologue = "cleat tunnel 2"

const (
	// MaxPayload is how many bytes the caller may put into a handshake message. It is
	// meant for session parameters, and fits one datagram on any path.
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

// ErrHandshake is returned for a handshake message that the peer did not make for this
// handshake.
var ErrHandshake = errors.New("not an authentic handshake message")

// Handshake is a handshake that this side began and the peer has not answered. It is not
// safe for concurrent use.
type Handshake struct {
	state *noise.HandshakeState // nil once finished or abandoned
	offer Cipher
}

// side is one end of a handshake.
type side struct {
	private PrivateKey
	peer    PublicKey
	ciphers Cipher // the ciphers that this processor supports well
	random  io.Reader
}

func newSide(mine PrivateKey, peer PublicKey) side {
	return side{private: mine, peer: peer, ciphers: supportedCiphers(), random: rand.Reader}
}

// NewHandshake begins a handshake with the peer and returns the first message, which
// carries payload. Only the side that Initiates may call it. It returns ErrSameKey if
// both ends have the same key, and ErrKey if the private key is invalid.
func NewHandshake(mine PrivateKey, peer PublicKey, payload []byte) (*Handshake, []byte, error) {
	h, message, err := newSide(mine, peer).begin(payload)
	if err != nil {
		return nil, nil, fmt.Errorf("begin handshake: %w", err)
	}
	return h, message, nil
}

// Finish processes the responder's message and returns the session and the payload that
// came with the message. After ErrHandshake it may be called again with another message;
// after a session was made every message causes ErrHandshake.
func (h *Handshake) Finish(message []byte) (_ *Session, _ []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("finish handshake: %w", err)
		}
	}()
	switch {
	case h.state == nil:
		return nil, nil, fmt.Errorf("already finished: %w", ErrHandshake)
	case len(message) < minMessage2 || len(message) > minMessage2+MaxPayload:
		return nil, nil, fmt.Errorf("%d bytes: %w", len(message), ErrHandshake)
	// The library reverts the state after a message that does not decrypt, but not after
	// a multiplication that fails, so such a message must not reach it.
	case lowOrder(message[:KeyBytes]):
		return nil, nil, fmt.Errorf("a point of low order: %w", ErrHandshake)
	}
	plain, out, in, err := h.state.ReadMessage(nil, message)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %v", ErrHandshake, err)
	}
	defer h.Abandon()
	picked, payload := Cipher(plain[0]), plain[1:]
	if !picked.isKnown() || h.offer&picked == 0 {
		return nil, nil, fmt.Errorf("cipher %d was not offered: %w", plain[0], ErrHandshake)
	}
	s, err := newSession(picked, h.state.ChannelBinding(), out, in, true)
	if err != nil {
		return nil, nil, err
	}
	return s, payload, nil
}

// Abandon erases the ephemeral key of a handshake that will not be finished. It is not
// needed after Finish has returned a session.
func (h *Handshake) Abandon() {
	if h.state != nil {
		forget(h.state)
		h.state = nil
	}
}

// Respond processes the initiator's message and makes the answer and the session. It
// calls payload, if not nil, with the initiator's payload to get the payload of the
// answer, but only if the message is authentic, though perhaps a replay. It returns
// ErrHandshake for a message that the peer did not make for this side. The package
// documentation says what the caller must do about replays.
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
	if !Initiates(e.private.Public(), e.peer) {
		return nil, nil, fmt.Errorf("the side with key %s initiates", e.peer)
	}
	state, err := e.state(true)
	if err != nil {
		return nil, nil, err
	}
	plain, err := withCipher(e.ciphers, payload)
	if err != nil {
		return nil, nil, err
	}
	message, _, _, err := state.WriteMessage(nil, plain)
	if err != nil {
		return nil, nil, err
	}
	return &Handshake{state: state, offer: e.ciphers}, message, nil
}

func (e side) respond(message []byte, payload func(theirs []byte) []byte) ([]byte, *Session, []byte, error) {
	if err := e.check(); err != nil {
		return nil, nil, nil, err
	}
	if Initiates(e.private.Public(), e.peer) {
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
	picked, ok := offer.pick(e.ciphers)
	if !ok {
		return nil, nil, nil, fmt.Errorf("no cipher of offer %d is known: %w", plain[0], ErrHandshake)
	}
	answer, s, err := e.answer(state, picked, theirs, payload)
	return answer, s, theirs, err
}

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

// check checks the keys before any message is processed.
func (e side) check() error {
	switch {
	case e.private.s == nil:
		return fmt.Errorf("private key: %w", ErrKey)
	case e.private.Public() == e.peer:
		return ErrSameKey
	}
	return nil
}

// state returns Noise's state before the first message.
func (e side) state(initiator bool) (*noise.HandshakeState, error) {
	config := noise.Config{
		CipherSuite:   noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s),
		Random:        e.random,
		Pattern:       noise.HandshakeIK,
		Initiator:     initiator,
		Prologue:      []byte(prologue),
		StaticKeypair: noise.DHKey{Private: e.private.s.key[:], Public: e.private.s.public[:]},
	}
	if initiator {
		config.PeerStatic = e.peer[:]
	}
	return noise.NewHandshakeState(config)
}

// forget erases the ephemeral private key.
func forget(state *noise.HandshakeState) { clear(state.LocalEphemeral().Private) }

func withCipher(c Cipher, payload []byte) ([]byte, error) {
	if len(payload) > MaxPayload {
		return nil, fmt.Errorf("payload of %d bytes, want at most %d", len(payload), MaxPayload)
	}
	return append([]byte{byte(c)}, payload...), nil
}
