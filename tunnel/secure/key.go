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

// ErrKey is in the error for what is no usable key.
var ErrKey = errors.New("not a usable key")

// ErrSameKey is returned where both ends of a tunnel have the same key: neither
// could be told from the other.
var ErrSameKey = errors.New("both ends have the same key")

// PublicKey is a Curve25519 public key. Its zero value is no key. It may be
// compared, and be the key of a map.
type PublicKey [KeyBytes]byte

// ParsePublicKey reads a public key as String writes it, without space around
// it. It returns ErrKey for another length, a point of low order, whose secrets
// everybody knows, and a point that is not written in the one way String would.
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
		return PublicKey{}, fmt.Errorf("parse public key: a point of low order: %w", ErrKey)
	}
	return key, nil
}

// String is the key in base64, as WireGuard writes it.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// PrivateKey is a Curve25519 private key. Its zero value is no key. Copies share
// one secret, which Erase overwrites. It never prints itself: see Text.
type PrivateKey struct {
	s *secret
}

// secret holds the key behind a second pointer: where fmt can't call methods, in
// an unexported field of somebody's struct, and is given a verb that does not
// suit, it looks through one pointer.
type secret struct {
	key    *[KeyBytes]byte
	public PublicKey
}

// GenerateKey makes a new key from the system's random numbers.
func GenerateKey() (PrivateKey, error) {
	var b [KeyBytes]byte
	if _, err := rand.Read(b[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("generate key: %w", err)
	}
	// As WireGuard writes keys: the bits that Curve25519 ignores, RFC 7748 section 5.
	b[0] &= 248
	b[31] = b[31]&127 | 64
	return newPrivateKey(&b)
}

// ParsePrivateKey reads a private key as Text writes it, without space around
// it. It returns ErrKey for another length and for zeros. No error repeats the
// text.
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

// newPrivateKey takes over b.
func newPrivateKey(b *[KeyBytes]byte) (PrivateKey, error) {
	key, err := ecdh.X25519().NewPrivateKey(b[:])
	if err != nil {
		return PrivateKey{}, err
	}
	return PrivateKey{&secret{key: b, public: PublicKey(key.PublicKey().Bytes())}}, nil
}

// Public is the public key that belongs to k, or the zero PublicKey if k is no
// key.
func (k PrivateKey) Public() PublicKey {
	if k.s == nil {
		return PublicKey{}
	}
	return k.s.public
}

// Text is the key itself in base64, as WireGuard writes it: for a key file, and
// for nothing else.
func (k PrivateKey) Text() string {
	if k.s == nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k.s.key[:])
}

// Erase overwrites the key: it, and every copy of it, is then no key, and a
// Handshake begun with it can't be finished. It must not run at the same time as
// anything else that uses the key.
func (k PrivateKey) Erase() {
	if k.s != nil {
		clear(k.s.key[:])
		k.s.public = PublicKey{}
	}
}

// String is always "(private)".
func (PrivateKey) String() string { return "(private)" }

// Format writes "(private)", whatever the verb.
func (k PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// valid tells whether k is a key that has not been erased.
func (k PrivateKey) valid() bool { return k.Public() != PublicKey{} }

// Initiates tells whether the side with the key mine initiates the handshake:
// the one whose key's bytes sort first. It is false for two equal keys, which
// make no session.
func Initiates(mine, theirs PublicKey) bool { return bytes.Compare(mine[:], theirs[:]) < 0 }

// parseKey reads base64 of 32 bytes.
func parseKey(text string) (b [KeyBytes]byte, err error) {
	if len(text) != keyText {
		return b, fmt.Errorf("%d characters, want the %d of 32 bytes in base64: %w", len(text), keyText, ErrKey)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != KeyBytes {
		return b, fmt.Errorf("not base64 of 32 bytes: %w", ErrKey)
	}
	copy(b[:], raw)
	clear(raw)
	return b, nil
}

// canonical tells whether b, a little-endian number, is below 2^255-19. RFC 7748
// takes others modulo that, but the handshake compares keys by their bytes.
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

// lowOrder tells whether multiplying the point gives zero: the zero scalar is
// clamped to 2^254, a multiple of every low order and of no other (RFC 7748
// sections 5 and 6.1).
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
