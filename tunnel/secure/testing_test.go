package secure

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// keysFrom returns two private keys, the initiator's first, that depend only on the seed.
func keysFrom(t testing.TB, seed uint64) (initiator, responder PrivateKey) {
	t.Helper()
	random := bytesFrom(seed)
	a, b := keyOf(t, random), keyOf(t, random)
	if Initiates(a.Public(), b.Public()) {
		return a, b
	}
	return b, a
}

// keyOf makes a private key of the next 32 bytes.
func keyOf(t testing.TB, random *rand.ChaCha8) PrivateKey {
	t.Helper()
	var b [KeyBytes]byte
	_, _ = random.Read(b[:])
	key, err := newPrivateKey(&b)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// bytesFrom returns random bytes that depend only on the seed.
func bytesFrom(seed uint64) *rand.ChaCha8 {
	return rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
}

// sidesFrom returns both ends of a handshake that depends only on the seed.
func sidesFrom(t testing.TB, seed uint64, canInitiator, canResponder Cipher) (initiator, responder side) {
	t.Helper()
	a, b := keysFrom(t, seed)
	return side{private: a, peer: b.Public(), ciphers: canInitiator, random: bytesFrom(seed + 1)},
		side{private: b, peer: a.Public(), ciphers: canResponder, random: bytesFrom(seed + 2)}
}

// reply returns a payload function that ignores its argument.
func reply(text string) func([]byte) []byte {
	return func([]byte) []byte { return []byte(text) }
}

// sessions returns both ends of a session with the cipher.
func sessions(t testing.TB, c Cipher) (initiator, responder *Session) {
	t.Helper()
	a, b := sidesFrom(t, 1, c, c)
	h, message1, err := a.begin(nil)
	if err != nil {
		t.Fatal(err)
	}
	message2, responder, _, err := b.respond(message1, nil)
	if err != nil {
		t.Fatal(err)
	}
	initiator, _, err = h.Finish(message2)
	if err != nil {
		t.Fatal(err)
	}
	return initiator, responder
}

// eachCipher runs a test with every cipher.
func eachCipher(t *testing.T, test func(t *testing.T, c Cipher)) {
	for _, c := range []Cipher{ChaCha20Poly1305, AES128GCM} {
		t.Run(c.String(), func(t *testing.T) { test(t, c) })
	}
}

// checkTogether checks that two sessions open what the other seals.
func checkTogether(t *testing.T, a, b *Session) {
	t.Helper()
	if a.ID() != b.ID() || a.Cipher() != b.Cipher() {
		t.Errorf("the sides have %v and %v", a, b)
	}
	aOut, aIn := a.Tags()
	if bOut, bIn := b.Tags(); aOut != bIn || aIn != bOut || aOut == aIn {
		t.Errorf("the tags are %x, %x and %x, %x", aOut, aIn, bOut, bIn)
	}
	for _, pair := range [][2]*Session{{a, b}, {b, a}} {
		nonce := Nonce{Space: 7, Counter: 1 << 40}
		sealed := pair[0].Seal(nil, []byte("header"), []byte("plain"), nonce)
		if got, err := pair[1].Open(nil, []byte("header"), sealed, nonce); err != nil || !bytes.Equal(got, []byte("plain")) {
			t.Errorf("open the other's packet: %q, %v", got, err)
		}
	}
}
