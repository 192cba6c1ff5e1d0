package secure

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flynn/noise"
)

func TestHandshake(t *testing.T) {
	mine, peer := keysFrom(t, 1)
	h, message1, err := NewHandshake(mine, peer.Public(), []byte("what I want"))
	if err != nil {
		t.Fatal(err)
	}
	var asked string
	message2, responder, theirs, err := Respond(peer, mine.Public(), message1, func(p []byte) []byte {
		asked = string(p)
		return []byte("what you get")
	})
	if err != nil || asked != "what I want" || string(theirs) != asked {
		t.Fatalf("respond: request %q, payload %q, %v", asked, theirs, err)
	}
	initiator, got, err := h.Finish(message2)
	if err != nil || string(got) != "what you get" {
		t.Fatalf("finish: payload %q, %v", got, err)
	}
	checkTogether(t, initiator, responder)
	if _, _, err := h.Finish(message2); !errors.Is(err, ErrHandshake) {
		t.Errorf("finish a second time: %v", err)
	}
}

func TestCipherIsAgreedOn(t *testing.T) {
	both := ChaCha20Poly1305 | AES128GCM
	for _, c := range []struct {
		name                 string
		initiator, responder Cipher
		want                 Cipher
	}{
		{"both have AES", both, both, AES128GCM},
		{"the initiator has no AES", ChaCha20Poly1305, both, ChaCha20Poly1305},
		{"the responder has no AES", both, ChaCha20Poly1305, ChaCha20Poly1305},
		{"neither has AES", ChaCha20Poly1305, ChaCha20Poly1305, ChaCha20Poly1305},
		{"the initiator has an unknown cipher", both | 1<<6, both, AES128GCM},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := sidesFrom(t, 1, c.initiator, c.responder)
			h, message1, err := a.begin(nil)
			if err != nil {
				t.Fatal(err)
			}
			message2, responder, _, err := b.respond(message1, nil)
			if err != nil {
				t.Fatal(err)
			}
			initiator, _, err := h.Finish(message2)
			if err != nil {
				t.Fatal(err)
			}
			if responder.Cipher() != c.want {
				t.Errorf("cipher %v, want %v", responder.Cipher(), c.want)
			}
			checkTogether(t, initiator, responder)
		})
	}
}

// TestCipherByteIsChecked has an authentic peer send invalid cipher bytes.
func TestCipherByteIsChecked(t *testing.T) {
	for _, offer := range []Cipher{0, 1 << 6} {
		a, b := sidesFrom(t, 1, offer, ChaCha20Poly1305)
		_, message1, err := a.begin(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := b.respond(message1, nil); !errors.Is(err, ErrHandshake) {
			t.Errorf("offer %d: %v", byte(offer), err)
		}
	}
	for _, picked := range []Cipher{0, AES128GCM, 1 << 6, ChaCha20Poly1305 | AES128GCM} {
		a, b := sidesFrom(t, 1, ChaCha20Poly1305|1<<6, ChaCha20Poly1305)
		h, message1, err := a.begin(nil)
		if err != nil {
			t.Fatal(err)
		}
		state, err := b.state(false)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := state.ReadMessage(nil, message1); err != nil {
			t.Fatal(err)
		}
		message2, _, _, err := state.WriteMessage(nil, []byte{byte(picked)})
		if err != nil {
			t.Fatal(err)
		}
		if s, _, err := h.Finish(message2); !errors.Is(err, ErrHandshake) || s != nil {
			t.Errorf("picked %d: %v, %v", byte(picked), s, err)
		}
	}
}

func TestAltered1(t *testing.T) {
	a, b := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
	_, message1, err := a.begin([]byte("payload"))
	if err != nil {
		t.Fatal(err)
	}
	called := func([]byte) []byte { t.Error("the payload function was called"); return nil }
	for name, forged := range alterations(message1) {
		answer, s, theirs, err := b.respond(forged, called)
		if !errors.Is(err, ErrHandshake) || answer != nil || s != nil || theirs != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAltered2 also checks that a forged answer does not end the handshake.
func TestAltered2(t *testing.T) {
	a, b := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
	h, message1, err := a.begin(nil)
	if err != nil {
		t.Fatal(err)
	}
	message2, responder, _, err := b.respond(message1, reply("payload"))
	if err != nil {
		t.Fatal(err)
	}
	for name, forged := range alterations(message2) {
		if s, payload, err := h.Finish(forged); !errors.Is(err, ErrHandshake) || s != nil || payload != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	initiator, payload, err := h.Finish(message2)
	if err != nil || string(payload) != "payload" {
		t.Fatalf("the authentic answer after forged ones: %q, %v", payload, err)
	}
	checkTogether(t, initiator, responder)
}

// alterations returns a message with each bit inverted, truncated at each length, with
// extra bytes, and with each point of low order as its ephemeral key.
func alterations(message []byte) map[string][]byte {
	all := map[string][]byte{
		"nothing": nil, "an extra byte": append(bytes.Clone(message), 0),
		"far too long": append(bytes.Clone(message), make([]byte, 1<<16)...),
	}
	for i := range message {
		for bit := range 8 {
			b := bytes.Clone(message)
			b[i] ^= 1 << bit
			all[fmt.Sprintf("bit %d of byte %d", bit, i)] = b
		}
		all[fmt.Sprintf("truncated to %d bytes", i)] = bytes.Clone(message[:i])
	}
	for i, point := range lowOrderPoints() {
		b := bytes.Clone(message)
		copy(b, point[:])
		all[fmt.Sprintf("point %d of low order", i)] = b
	}
	return all
}

// lowOrderPoints are encodings of points whose shared secrets everybody knows.
func lowOrderPoints() [][KeyBytes]byte {
	zero, one, minusOne, p := [KeyBytes]byte{}, [KeyBytes]byte{1}, [KeyBytes]byte{}, [KeyBytes]byte{}
	for i := range minusOne {
		minusOne[i], p[i] = 0xff, 0xff
	}
	minusOne[0], minusOne[31], p[0], p[31] = 0xec, 0x7f, 0xed, 0x7f
	high := zero
	high[31] = 0x80 // ignored by the curve
	return [][KeyBytes]byte{zero, one, minusOne, p, high}
}

// TestAssumeNoise checks what handshake.go assumes about the library: a message that does
// not decrypt leaves its state unchanged, and one that does not multiply changes it.
func TestAssumeNoise(t *testing.T) {
	for _, c := range []struct {
		name     string
		forge    func(message []byte)
		survives bool
	}{
		{"altered payload", func(m []byte) { m[len(m)-1] ^= 1 }, true},
		{"altered ephemeral key", func(m []byte) { m[5] ^= 1 }, true},
		{"point of low order", func(m []byte) { clear(m[:KeyBytes]) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
			h, message1, err := a.begin(nil)
			if err != nil {
				t.Fatal(err)
			}
			message2, _, _, err := b.respond(message1, nil)
			if err != nil {
				t.Fatal(err)
			}
			forged := bytes.Clone(message2)
			c.forge(forged)
			if _, _, _, err := h.state.ReadMessage(nil, forged); err == nil {
				t.Fatal("the forged message was accepted")
			}
			if _, _, _, err := h.state.ReadMessage(nil, message2); (err == nil) != c.survives {
				t.Errorf("the authentic message afterwards: %v", err)
			}
		})
	}
}

func TestWrongKeys(t *testing.T) {
	mine, peer := keysFrom(t, 1)
	var before, after PrivateKey // strangers who do and do not initiate with the others
	for seed := uint64(200); before.s == nil || after.s == nil; seed++ {
		a, b := keysFrom(t, seed)
		if Initiates(a.Public(), mine.Public()) {
			before = a
		}
		if Initiates(peer.Public(), b.Public()) {
			after = b
		}
	}
	message1 := func(from PrivateKey, to PublicKey) []byte {
		_, m, err := NewHandshake(from, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, c := range []struct {
		name    string
		mine    PrivateKey
		peer    PublicKey
		message []byte
	}{
		{"a stranger initiates", peer, mine.Public(), message1(before, peer.Public())},
		{"for a stranger", peer, mine.Public(), message1(mine, after.Public())},
		{"another peer is expected", peer, before.Public(), message1(mine, peer.Public())},
		{"reflected", mine, peer.Public(), message1(mine, peer.Public())},
		{"from a stranger for a stranger", peer, mine.Public(), message1(before, after.Public())},
	} {
		if _, s, _, err := Respond(c.mine, c.peer, c.message, nil); !errors.Is(err, ErrHandshake) || s != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestRoles(t *testing.T) {
	mine, peer := keysFrom(t, 1)
	if _, _, err := NewHandshake(peer, mine.Public(), nil); err == nil || !strings.Contains(err.Error(), "initiates") {
		t.Errorf("the responder initiates: %v", err)
	}
	if _, _, err := NewHandshake(mine, mine.Public(), nil); !errors.Is(err, ErrSameKey) {
		t.Errorf("with itself: %v", err)
	}
	if _, _, _, err := Respond(mine, mine.Public(), make([]byte, minMessage1), nil); !errors.Is(err, ErrSameKey) {
		t.Errorf("respond to itself: %v", err)
	}
	h, message1, err := NewHandshake(mine, peer.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	message2, _, _, err := Respond(peer, mine.Public(), message1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Finish(message1); !errors.Is(err, ErrHandshake) {
		t.Errorf("the first message, reflected: %v", err)
	}
	if _, _, _, err := Respond(peer, mine.Public(), message2, nil); !errors.Is(err, ErrHandshake) {
		t.Errorf("the second message, reflected: %v", err)
	}
	if _, _, _, err := Respond(mine, peer.Public(), message2, nil); !errors.Is(err, ErrHandshake) {
		t.Errorf("the second message as a first one: %v", err)
	}
}

// TestPeerOutOfRole has an authentic peer act in the wrong role, or send payloads that
// are too large.
func TestPeerOutOfRole(t *testing.T) {
	a, b := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
	begin := func(from side, payload int) []byte {
		state, err := from.state(true)
		if err != nil {
			t.Fatal(err)
		}
		return writeMessage(t, state, payload)
	}
	if !refused(a.respond(begin(b, 0), nil)) {
		t.Error("the initiator answers a first message")
	}
	if !refused(b.respond(begin(a, MaxPayload+1), nil)) {
		t.Error("a first payload that is too large is accepted")
	}
	if refused(b.respond(begin(a, MaxPayload), nil)) {
		t.Error("the largest payload is refused")
	}

	h, message1, err := a.begin(nil)
	if err != nil {
		t.Fatal(err)
	}
	state, err := b.state(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := state.ReadMessage(nil, message1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Finish(writeMessage(t, state, MaxPayload+1)); !errors.Is(err, ErrHandshake) {
		t.Errorf("a second payload that is too large: %v", err)
	}
}

// writeMessage returns the next message of a handshake, with a payload of any size.
func writeMessage(t *testing.T, state *noise.HandshakeState, payload int) []byte {
	t.Helper()
	message, _, _, err := state.WriteMessage(nil, append([]byte{byte(ChaCha20Poly1305)}, make([]byte, payload)...))
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// refused reports whether a response was ErrHandshake and nothing else.
func refused(answer []byte, s *Session, theirs []byte, err error) bool {
	return errors.Is(err, ErrHandshake) && answer == nil && s == nil && theirs == nil
}

// TestPeerOfLowOrder uses a peer's key that no parser accepts.
func TestPeerOfLowOrder(t *testing.T) {
	_, mine := keysFrom(t, 1)
	for _, point := range lowOrderPoints() {
		peer := PublicKey(point)
		if Initiates(mine.Public(), peer) {
			if _, m, err := NewHandshake(mine, peer, nil); err == nil {
				t.Errorf("a handshake with %v: %x", peer, m)
			}
		} else if _, _, _, err := Respond(mine, peer, make([]byte, minMessage1), nil); err == nil {
			t.Errorf("a response to %v", peer)
		}
	}
}

func TestVersionIsBound(t *testing.T) {
	a, b := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
	w := newTwin(t, "cleat tunnel 1", b.private.s.key[:])
	ephemeral := bytes.Repeat([]byte{7}, KeyBytes)
	message := w.message1(a.private.s.key[:], ephemeral, b.private.s.key[:], []byte{byte(ChaCha20Poly1305)})
	if _, _, _, err := b.respond(message, nil); !errors.Is(err, ErrHandshake) {
		t.Errorf("message of another version: %v", err)
	}
	w = newTwin(t, prologue, b.private.s.key[:])
	message = w.message1(a.private.s.key[:], ephemeral, b.private.s.key[:], []byte{byte(ChaCha20Poly1305)})
	if _, _, _, err := b.respond(message, nil); err != nil {
		t.Errorf("message of this version: %v", err)
	}
}

// TestReplayOfTheFirstMessage checks that a replay makes a session with other keys.
func TestReplayOfTheFirstMessage(t *testing.T) {
	mine, peer := keysFrom(t, 1)
	h, message1, err := NewHandshake(mine, peer.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, responder, _, err := Respond(peer, mine.Public(), message1, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, replayed, _, err := Respond(peer, mine.Public(), message1, nil)
	if err != nil {
		t.Fatal(err)
	}
	initiator, _, err := h.Finish(first)
	if err != nil {
		t.Fatal(err)
	}
	checkTogether(t, initiator, responder)
	if replayed.ID() == responder.ID() || bytes.Equal(first, second) {
		t.Error("the replay made the same session")
	}
	sealed := initiator.Seal(nil, nil, []byte("plain"), Nonce{})
	if _, err := replayed.Open(nil, nil, sealed, Nonce{}); !errors.Is(err, ErrPacket) {
		t.Errorf("the replay's session opens the first one's packet: %v", err)
	}
}

// TestAnswersToOtherHandshakes gives a handshake the answer to an earlier one.
func TestAnswersToOtherHandshakes(t *testing.T) {
	mine, peer := keysFrom(t, 1)
	_, old, err := NewHandshake(mine, peer.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	stale, _, _, err := Respond(peer, mine.Public(), old, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, message1, err := NewHandshake(mine, peer.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Finish(stale); !errors.Is(err, ErrHandshake) {
		t.Errorf("the old answer: %v", err)
	}
	message2, responder, _, err := Respond(peer, mine.Public(), message1, nil)
	if err != nil {
		t.Fatal(err)
	}
	initiator, _, err := h.Finish(message2)
	if err != nil {
		t.Fatal(err)
	}
	checkTogether(t, initiator, responder)
}

func TestPayloadSizes(t *testing.T) {
	mine, peer := keysFrom(t, 1)
	largest, larger := bytes.Repeat([]byte("x"), MaxPayload), bytes.Repeat([]byte("x"), MaxPayload+1)
	if _, _, err := NewHandshake(mine, peer.Public(), larger); err == nil {
		t.Error("a first payload that is too large is sent")
	}
	h, message1, err := NewHandshake(mine, peer.Public(), largest)
	if err != nil || len(message1) != MaxMessage {
		t.Fatalf("first message of %d bytes, want %d, %v", len(message1), MaxMessage, err)
	}
	if _, _, _, err := Respond(peer, mine.Public(), message1, func([]byte) []byte { return larger }); err == nil || errors.Is(err, ErrHandshake) {
		t.Errorf("a second payload that is too large: %v", err)
	}
	message2, _, theirs, err := Respond(peer, mine.Public(), message1, func([]byte) []byte { return largest })
	if err != nil || !bytes.Equal(theirs, largest) {
		t.Fatal(err)
	}
	if _, got, err := h.Finish(message2); err != nil || !bytes.Equal(got, largest) {
		t.Errorf("finish: %v", err)
	}
}

// TestEphemeralKeysAreErased checks the library's state.
func TestEphemeralKeysAreErased(t *testing.T) {
	gone := func(how string, key []byte) {
		if len(key) != KeyBytes || slices.ContainsFunc(key, func(b byte) bool { return b != 0 }) {
			t.Errorf("%s: the ephemeral key is not erased", how)
		}
	}
	a, b := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
	h, message1, err := a.begin(nil)
	if err != nil {
		t.Fatal(err)
	}
	state, err := b.state(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := state.ReadMessage(nil, message1); err != nil {
		t.Fatal(err)
	}
	message2, _, err := b.answer(state, ChaCha20Poly1305, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	gone("respond", state.LocalEphemeral().Private)
	key := ephemeralOf(h.state)
	if _, _, err := h.Finish(message2); err != nil {
		t.Fatal(err)
	}
	gone("finish", key)

	h, _, err = a.begin(nil)
	if err != nil {
		t.Fatal(err)
	}
	key = ephemeralOf(h.state)
	h.Abandon()
	h.Abandon()
	gone("abandon", key)
	if _, _, err := h.Finish(message2); !errors.Is(err, ErrHandshake) {
		t.Errorf("finish an abandoned handshake: %v", err)
	}
}

func ephemeralOf(state *noise.HandshakeState) []byte { return state.LocalEphemeral().Private }
