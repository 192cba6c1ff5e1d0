package secure

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"io"
	"testing"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

// twin is a second, plain implementation of Noise IK from revision 34 of the
// specification: both sides at once, from all four private keys.
type twin struct {
	t        testing.TB
	k, ck, h []byte
	n        uint64
}

func newTwin(t testing.TB, prologue string, responder []byte) *twin {
	h := make([]byte, blake2s.Size)
	if name := "Noise_IK_25519_ChaChaPoly_BLAKE2s"; len(name) > len(h) {
		sum := blake2s.Sum256([]byte(name))
		h = sum[:]
	}
	w := &twin{t: t, ck: h, h: h}
	w.mixHash([]byte(prologue))
	w.mixHash(public(t, responder))
	return w
}

// message1 writes e, es, s, ss.
func (w *twin) message1(static, ephemeral, responder, payload []byte) []byte {
	e := public(w.t, ephemeral)
	w.mixHash(e)
	w.mixKey(w.dh(ephemeral, public(w.t, responder)))
	s := w.seal(public(w.t, static))
	w.mixKey(w.dh(static, public(w.t, responder)))
	return bytes.Join([][]byte{e, s, w.seal(payload)}, nil)
}

// message2 writes e, ee, se.
func (w *twin) message2(ephemeral, static1, ephemeral1, payload []byte) []byte {
	e := public(w.t, ephemeral)
	w.mixHash(e)
	w.mixKey(w.dh(ephemeral, public(w.t, ephemeral1)))
	w.mixKey(w.dh(ephemeral, public(w.t, static1)))
	return append(e, w.seal(payload)...)
}

func (w *twin) mixHash(data []byte) {
	sum := blake2s.Sum256(append(bytes.Clone(w.h), data...))
	w.h = sum[:]
}

func (w *twin) mixKey(secret []byte) {
	w.ck, w.k = w.hkdf(secret)
	w.n = 0
}

// hkdf is HKDF of section 4.3 with two outputs.
func (w *twin) hkdf(input []byte) (first, second []byte) {
	temp := mac(w.ck, input)
	first = mac(temp, []byte{1})
	return first, mac(temp, append(bytes.Clone(first), 2))
}

// seal is EncryptAndHash of section 5.2.
func (w *twin) seal(plain []byte) []byte {
	aead, err := chacha20poly1305.New(w.k)
	if err != nil {
		w.t.Fatal(err)
	}
	var nonce [12]byte
	binary.LittleEndian.PutUint64(nonce[4:], w.n)
	w.n++
	sealed := aead.Seal(nil, nonce[:], plain, w.h)
	w.mixHash(sealed)
	return sealed
}

func (w *twin) dh(private, public []byte) []byte {
	w.t.Helper()
	a, err := ecdh.X25519().NewPrivateKey(private)
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := ecdh.X25519().NewPublicKey(public)
	if err != nil {
		w.t.Fatal(err)
	}
	secret, err := a.ECDH(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return secret
}

func public(t testing.TB, private []byte) []byte {
	t.Helper()
	key, err := ecdh.X25519().NewPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return key.PublicKey().Bytes()
}

func mac(key, data []byte) []byte {
	m := hmac.New(func() hash.Hash {
		h, err := blake2s.New256(nil)
		if err != nil {
			panic(err)
		}
		return h
	}, key)
	m.Write(data)
	return m.Sum(nil)
}

// TestTwin checks the twin with a test vector that Noise libraries share.
func TestTwin(t *testing.T) {
	static1 := unhex(t, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	static2 := unhex(t, "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20")
	ephemeral1 := unhex(t, "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f")
	ephemeral2 := unhex(t, "4142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f60")
	w := newTwin(t, "", static2)
	message1 := w.message1(static1, ephemeral1, static2, []byte("test_msg_0"))
	message2 := w.message2(ephemeral2, static1, ephemeral1, []byte("test_msg_1"))
	if got, want := hex.EncodeToString(message1), "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254c9f0dff42c86abe5677abe74f6c87301577dbc1f3ffb2213827ca694a057fdbbff7f7350265fe61102c24d7d7a7e960b7316fcb3b0687be852fd2fba8969816fbfaa8b459d0b59e8a42f"; got != want {
		t.Errorf("first message %s, want %s", got, want)
	}
	if got, want := hex.EncodeToString(message2), "64b101b1d0be5a8704bd078f9895001fc03e8e9f9522f188dd128d9846d484667f1d8bd2b9b659695f9077e7062bb0b9e7c08fd627913be183c3"; got != want {
		t.Errorf("second message %s, want %s", got, want)
	}
}

// TestAgainstTwin compares all messages and packets with the twin, byte for byte.
func TestAgainstTwin(t *testing.T) {
	eachCipher(t, func(t *testing.T, c Cipher) {
		for seed := range uint64(10) {
			compareWithTwin(t, seed*10, c)
		}
	})
}

func compareWithTwin(t *testing.T, seed uint64, c Cipher) {
	t.Helper()
	a, b := sidesFrom(t, seed, c, c)
	static1, static2 := a.private.s.key[:], b.private.s.key[:]
	ephemeral1, ephemeral2 := make([]byte, KeyBytes), make([]byte, KeyBytes)
	_, _ = io.ReadFull(bytesFrom(seed+1), ephemeral1)
	_, _ = io.ReadFull(bytesFrom(seed+2), ephemeral2)

	h, message1, err := a.begin([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	message2, responder, _, err := b.respond(message1, reply("welcome"))
	if err != nil {
		t.Fatal(err)
	}
	initiator, _, err := h.Finish(message2)
	if err != nil {
		t.Fatal(err)
	}

	w := newTwin(t, "cleat tunnel 2", static2)
	if want := w.message1(static1, ephemeral1, static2, append([]byte{byte(c)}, "hello"...)); !bytes.Equal(message1, want) {
		t.Errorf("first message %x, want %x", message1, want)
	}
	if want := w.message2(ephemeral2, static1, ephemeral1, append([]byte{byte(c)}, "welcome"...)); !bytes.Equal(message2, want) {
		t.Errorf("second message %x, want %x", message2, want)
	}
	forth, back := w.hkdf(nil)
	id, _ := hkdf.Expand(sha256.New, forth, "cleat tunnel 2 id "+string(w.h), 8)
	if got := initiator.ID(); !bytes.Equal(got[:], id) {
		t.Errorf("session %v, want %x", got, id)
	}
	nonce := Nonce{Space: 0x01020304, Counter: 0x05060708090a0b0c}
	for _, s := range []struct {
		name string
		s    *Session
		key  []byte
	}{{"initiator", initiator, forth}, {"responder", responder, back}} {
		got := s.s.Seal(nil, []byte("header"), []byte("plain"), nonce)
		if want := packetTwin(t, c, s.key, []byte("header"), []byte("plain")); !bytes.Equal(got, want) {
			t.Errorf("packet of the %s %x, want %x", s.name, got, want)
		}
	}
}

// packetTwin seals a packet with space 0x01020304 and counter 0x05060708090a0b0c.
func packetTwin(t *testing.T, c Cipher, key, header, plain []byte) []byte {
	t.Helper()
	size, name := 32, "ChaCha20-Poly1305"
	if c == AES128GCM {
		size, name = 16, "AES-128-GCM"
	}
	material, _ := hkdf.Expand(sha256.New, key, "cleat tunnel 2 data "+name, size+12)
	aead, err := chacha20poly1305.New(append(bytes.Clone(material[:size]), make([]byte, 32-size)...))
	if c == AES128GCM {
		block, _ := aes.NewCipher(material[:size])
		aead, err = cipher.NewGCM(block)
	}
	if err != nil {
		t.Fatal(err)
	}
	nonce := material[size:]
	for i := range nonce {
		nonce[i] ^= byte(i + 1)
	}
	return aead.Seal(nil, nonce, plain, header)
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
