package secure

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
)

// KeyBytes is the length of a private and of a public key (RFC 7748).
const KeyBytes = 32

// keyText is the length of a key's text: base64 of 32 bytes, with padding.
const keyText = 44

// ErrKey is returned for an invalid key.
var ErrKey = errors.New("not a usable key")

// ErrSameKey is returned if both ends of a tunnel have the same key, because neither
// could be distinguished from the other.
var ErrSameKey = errors.New("both ends have the same key")

// PublicKey is a Curve25519 public key. Its zero value is not a key. It is comparable.
type PublicKey [KeyBytes]byte

// ParsePublicKey parses a public key as String writes it, without surrounding space. It
// returns ErrKey for a wrong length, for a point of low order, whose shared secrets
// everybody knows, and for a point that is not written in its one canonical form.
func ParsePublicKey(text string) (PublicKey, error) {
	b, err := parseKey(text)
	if err != nil {
		return PublicKey{}, fmt.Errorf("parse public key: %w", err)
	}
	key := PublicKey(b)
	switch {
	case key == PublicKey{}:
		return PublicKey{}, fmt.Errorf("parse public key: all zeros: %w", ErrKey)
	case !canonical(b):
		return PublicKey{}, fmt.Errorf("parse public key: beyond 2^255-20: %w", ErrKey)
	case lowOrder(b[:]):
		return PublicKey{}, fmt.Errorf("parse public key: point of low order: %w", ErrKey)
	}
	return key, nil
}

// String returns the key in base64, as WireGuard writes it.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// PrivateKey is a Curve25519 private key. Its zero value is not a key. It never prints
// itself: see Text.
type PrivateKey struct {
	s *secret
}

// secret holds the key behind a second pointer. In an unexported field of another struct,
// fmt can't call methods and, given an unsuitable verb, follows one pointer.
type secret struct {
	key    *[KeyBytes]byte
	public PublicKey
}

// GenerateKey returns a new random key.
func GenerateKey() (PrivateKey, error) {
	var b [KeyBytes]byte
	if _, err := rand.Read(b[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("generate key: %w", err)
	}
	// Set the bits that Curve25519 ignores, as WireGuard does (RFC 7748 section 5).
	b[0] &= 248
	b[31] = b[31]&127 | 64
	return newPrivateKey(&b)
}

// ParsePrivateKey parses a private key as Text writes it, without surrounding space. It
// returns ErrKey for a wrong length and for zeros. No error contains the text.
func ParsePrivateKey(text string) (PrivateKey, error) {
	b, err := parseKey(text)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("parse private key: %w", err)
	}
	if b == [KeyBytes]byte{} {
		return PrivateKey{}, fmt.Errorf("parse private key: all zeros: %w", ErrKey)
	}
	key, err := newPrivateKey(&b)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("parse private key: %w", err)
	}
	return key, nil
}

// newPrivateKey takes ownership of b.
func newPrivateKey(b *[KeyBytes]byte) (PrivateKey, error) {
	key, err := ecdh.X25519().NewPrivateKey(b[:])
	if err != nil {
		return PrivateKey{}, err
	}
	return PrivateKey{&secret{key: b, public: PublicKey(key.PublicKey().Bytes())}}, nil
}

// Public returns the public key of k, or the zero PublicKey if k is not a key.
func (k PrivateKey) Public() PublicKey {
	if k.s == nil {
		return PublicKey{}
	}
	return k.s.public
}

// Text returns the key itself in base64, as WireGuard writes it. It is meant for key
// files only.
func (k PrivateKey) Text() string {
	if k.s == nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k.s.key[:])
}

// String always returns "(private)".
func (PrivateKey) String() string { return "(private)" }

// Format writes "(private)" for every verb.
func (k PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// Initiates reports whether the side with the key mine initiates the handshake: the one
// whose key's bytes sort first. It is false for two equal keys, which make no session.
func Initiates(mine, theirs PublicKey) bool { return bytes.Compare(mine[:], theirs[:]) < 0 }

func parseKey(text string) (b [KeyBytes]byte, err error) {
	if len(text) != keyText {
		return b, fmt.Errorf("%d characters, want %d (32 bytes in base64): %w", len(text), keyText, ErrKey)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != KeyBytes {
		return b, fmt.Errorf("not base64 of 32 bytes: %w", ErrKey)
	}
	copy(b[:], raw)
	clear(raw)
	return b, nil
}

// canonical reports whether b, a little-endian number, is below 2^255-19. RFC 7748
// reduces others modulo that, but the handshake compares keys by their bytes.
func canonical(b [KeyBytes]byte) bool {
	if b[31] != 0x7f {
		return b[31] < 0x7f
	}
	for _, c := range b[1:31] {
		if c != 0xff {
			return true
		}
	}
	return b[0] < 0xed
}

// lowOrder reports whether multiplying the point gives zero: the zero scalar is clamped
// to 2^254, a multiple of every low order and of no other (RFC 7748 sections 5 and 6.1).
func lowOrder(point []byte) bool {
	var scalar [KeyBytes]byte
	private, err := ecdh.X25519().NewPrivateKey(scalar[:])
	if err != nil {
		return true
	}
	public, err := ecdh.X25519().NewPublicKey(point)
	if err != nil {
		return true
	}
	_, err = private.ECDH(public)
	return err != nil
}
