package spec

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// Key is what encrypts a tunnel.
type Key struct {
	File    string // where the private key is
	Private PrivateKey
	Peer    PublicKey // of the other end
}

// PublicKey is an X25519 public key (RFC 7748).
type PublicKey [32]byte

// String is the key in base64, as in a tunnel file and in WireGuard's.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// PrivateKey is an X25519 private key. Its zero value is no key. It never prints
// itself: see Text.
type PrivateKey struct{ key *ecdh.PrivateKey }

// String is always "(private)".
func (PrivateKey) String() string { return "(private)" }

// GoString is always "(private)".
func (k PrivateKey) GoString() string { return k.String() }

// Text is the key itself in base64: for its file, and for nothing else.
func (k PrivateKey) Text() string { return base64.StdEncoding.EncodeToString(k.key.Bytes()) }

// Public is the key for the other end.
func (k PrivateKey) Public() PublicKey { return PublicKey(k.key.PublicKey().Bytes()) }

// ErrKey is in the error for what is no key.
var ErrKey = errors.New("not a key")

// ErrKeyMode is in the error for a key file that others may read.
var ErrKeyMode = errors.New("group or others may read it")

// wantKey says what a key looks like.
const wantKey = "32 bytes in base64, which are 44 characters"

// GenerateKey makes a key out of the system's random numbers.
func GenerateKey() (PrivateKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("generate key: %w", err)
	}
	return PrivateKey{key}, nil
}

// ParsePublicKey reads a key as PublicKey.String writes it. The error, ErrKey,
// does not repeat the text: it may be a private key in the wrong place.
func ParsePublicKey(text string) (PublicKey, error) {
	b, err := decodeKey([]byte(text))
	if err != nil {
		return PublicKey{}, err
	}
	if b == [32]byte{} {
		return PublicKey{}, fmt.Errorf("all zeros: %w", ErrKey)
	}
	return b, nil
}

// ParsePrivateKey reads a key as PrivateKey.Text writes it, with space around
// it. The error, ErrKey, does not repeat the text.
func ParsePrivateKey(text []byte) (PrivateKey, error) {
	b, err := decodeKey(bytes.TrimSpace(text))
	if err != nil {
		return PrivateKey{}, err
	}
	key, err := ecdh.X25519().NewPrivateKey(b[:])
	if err != nil {
		return PrivateKey{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return PrivateKey{key}, nil
}

// decodeKey reads the text of either kind of key.
func decodeKey(text []byte) ([32]byte, error) {
	b, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil || len(b) != 32 || len(text) != base64.StdEncoding.EncodedLen(32) {
		return [32]byte{}, fmt.Errorf("%w: want %s", ErrKey, wantKey)
	}
	return [32]byte(b), nil
}

// Opener opens a file and tells its mode, of the very file that it opened.
type Opener func(path string) (io.ReadCloser, fs.FileMode, error)

// maxKeyFile is in bytes: a key, and some space around it.
const maxKeyFile = 1024

// ReadKey reads a private key from a file. ErrKeyMode is in the error when others
// may read it, ErrKey when it has no key; any other is open's.
func ReadKey(path string, open Opener) (PrivateKey, error) {
	f, mode, err := open(path)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("read key: %w", err)
	}
	defer f.Close()
	switch {
	case !mode.IsRegular():
		return PrivateKey{}, fmt.Errorf("read key %s: %w: it is not a regular file", path, ErrKey)
	case mode.Perm()&0o077 != 0:
		return PrivateKey{}, fmt.Errorf("read key %s: mode %04o: %w", path, mode.Perm(), ErrKeyMode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	defer clear(text)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("read key %s: %w", path, err)
	}
	key, err := ParsePrivateKey(text)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

// KeyHint is what to type where a key file could not be read or made, "" where
// err says enough.
func KeyHint(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "make one: cleat tunnel key " + shellWord(path)
	case errors.Is(err, fs.ErrExist):
		return "a key is never overwritten; its public half: cleat tunnel key --public " + shellWord(path)
	case errors.Is(err, ErrKeyMode):
		return "chmod go= " + shellWord(path)
	}
	return ""
}

// shellWord is a word as a shell takes it.
func shellWord(word string) string {
	if nameText.MatchString(strings.ReplaceAll(word, "/", "")) && !strings.HasPrefix(word, "-") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
