package secure

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzRespond sends the responder arbitrary first messages: only the initiator's own is
// answered.
func FuzzRespond(f *testing.F) {
	a, b := sidesFrom(f, 1, supportedCiphers(), supportedCiphers())
	_, authentic, err := a.begin([]byte("payload"))
	if err != nil {
		f.Fatal(err)
	}
	addSeeds(f, authentic)
	f.Fuzz(func(t *testing.T, message []byte) {
		answer, s, _, err := b.respond(message, reply("payload"))
		if bytes.Equal(message, authentic) != (err == nil) || (s == nil) != (err != nil) || (answer == nil) != (err != nil) {
			t.Errorf("message %x: %v", message, err)
		}
		if err != nil && !errors.Is(err, ErrHandshake) {
			t.Errorf("message %x causes %v", message, err)
		}
	})
}

// FuzzFinish sends the initiator arbitrary second messages, and then the right one.
func FuzzFinish(f *testing.F) {
	a, b := sidesFrom(f, 1, supportedCiphers(), supportedCiphers())
	_, message1, err := a.begin(nil)
	if err != nil {
		f.Fatal(err)
	}
	authentic, _, _, err := b.respond(message1, reply("payload"))
	if err != nil {
		f.Fatal(err)
	}
	addSeeds(f, authentic)
	f.Fuzz(func(t *testing.T, message []byte) {
		a, _ := sidesFrom(t, 1, supportedCiphers(), supportedCiphers())
		h, _, err := a.begin(nil)
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := h.Finish(message)
		if bytes.Equal(message, authentic) != (err == nil) || (s == nil) != (err != nil) {
			t.Fatalf("message %x: %v", message, err)
		}
		if err == nil {
			return
		}
		if !errors.Is(err, ErrHandshake) {
			t.Errorf("message %x causes %v", message, err)
		}
		if _, _, err := h.Finish(authentic); err != nil {
			t.Errorf("the right message after %x: %v", message, err)
		}
	})
}

// FuzzOpen opens arbitrary packets.
func FuzzOpen(f *testing.F) {
	a, b := sessions(f, AES128GCM)
	header, nonce := []byte("header"), Nonce{Space: 1, Counter: 2}
	authentic := a.Seal(nil, header, []byte("plain"), nonce)
	f.Add(header, authentic, nonce.Space, nonce.Counter)
	f.Add([]byte{}, authentic[:Overhead-1], nonce.Space, nonce.Counter)
	f.Add(header, []byte{}, uint32(0), uint64(0))
	f.Fuzz(func(t *testing.T, h, packet []byte, space uint32, counter uint64) {
		n := Nonce{Space: space, Counter: counter}
		own := bytes.Equal(h, header) && bytes.Equal(packet, authentic) && n == nonce
		if _, err := b.Open(nil, h, packet, n); own != (err == nil) {
			t.Errorf("packet %x: %v", packet, err)
		}
	})
}

// FuzzKeys parses arbitrary texts: a parsed key must be written as it was read.
func FuzzKeys(f *testing.F) {
	private, _ := keysFrom(f, 1)
	for _, text := range []string{private.Text(), private.Public().String(), "", "A", private.Text()[:43]} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if key, err := ParsePublicKey(text); err == nil && key.String() != text {
			t.Errorf("public key %q is written as %v", text, key)
		}
		key, err := ParsePrivateKey(text)
		if err != nil {
			return
		}
		if key.Text() != text {
			t.Errorf("private key %q is written as %q", text, key.Text())
		}
		if _, err := ParsePublicKey(key.Public().String()); err != nil {
			t.Errorf("the public key of %q: %v", text, err)
		}
	})
}

// addSeeds adds a message, parts of it, and variants with other ephemeral keys.
func addSeeds(f *testing.F, message []byte) {
	f.Add(message)
	f.Add([]byte{})
	f.Add(message[:KeyBytes])
	f.Add(message[:len(message)-1])
	f.Add(append(bytes.Clone(message), 0))
	for _, point := range lowOrderPoints() {
		f.Add(append(point[:], message[KeyBytes:]...))
	}
}
