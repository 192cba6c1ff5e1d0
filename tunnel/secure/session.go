package secure

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/flynn/noise"
)

// Labels for deriving material from a handshake (RFC 5869 section 3.2).
const (
	dataLabel = prologue + " data "
	idLabel   = prologue + " id "
	tagLabel  = prologue + " tag"
)

// nonceBytes is the length of a nonce of both ciphers (RFC 5116, RFC 8439).
const nonceBytes = 12

// ErrPacket is returned for a packet that the peer did not seal with this session, header
// and nonce.
var ErrPacket = errors.New("not an authentic packet")

// Nonce is a packet's number. A side must not seal two packets of a session with the same
// Nonce.
type Nonce struct {
	Space   uint32 // numbers a path or kind of packet apart
	Counter uint64
}

// ID identifies a session. Both sides know it, and nobody else until it is disclosed.
type ID [8]byte

// String returns the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Session holds the keys that a handshake made, one for each direction. Its methods are
// safe for concurrent use. It must not be copied.
type Session struct {
	id      ID
	cipher  Cipher
	out, in *direction
	nonces  sync.Pool // of *[nonceBytes]byte, which would escape for every packet
}

type direction struct {
	aead cipher.AEAD
	iv   [nonceBytes]byte
	tag  uint32
}

// newSession makes a session of the two keys that the handshake ends with, this side's
// and the peer's.
func newSession(c Cipher, transcript []byte, out, in *noise.CipherState, initiator bool) (*Session, error) {
	s := &Session{cipher: c, nonces: sync.Pool{New: func() any { return new([nonceBytes]byte) }}}
	first := out
	if !initiator {
		first = in
	}
	id, err := expand(first, idLabel+string(transcript), len(s.id))
	if err != nil {
		return nil, fmt.Errorf("derive session id: %w", err)
	}
	copy(s.id[:], id)
	if s.out, err = newDirection(c, out); err != nil {
		return nil, err
	}
	s.in, err = newDirection(c, in)
	return s, err
}

func newDirection(c Cipher, key *noise.CipherState) (*direction, error) {
	material, err := expand(key, dataLabel+c.String(), c.keyBytes()+nonceBytes)
	if err != nil {
		return nil, fmt.Errorf("derive key of %v: %w", c, err)
	}
	defer clear(material)
	d := &direction{}
	if d.aead, err = c.aead(material[:c.keyBytes()]); err != nil {
		return nil, fmt.Errorf("make %v: %w", c, err)
	}
	copy(d.iv[:], material[c.keyBytes():])
	tag, err := expand(key, tagLabel, 4)
	if err != nil {
		return nil, fmt.Errorf("derive tag: %w", err)
	}
	d.tag = binary.BigEndian.Uint32(tag)
	return d, nil
}

// expand is HKDF-Expand of one of the handshake's final keys.
func expand(from *noise.CipherState, label string, size int) ([]byte, error) {
	key := from.UnsafeKey()
	defer clear(key[:])
	return hkdf.Expand(sha256.New, key[:], label, size)
}

// ID returns the session's ID, which is the same on both sides. It does not reveal which
// keys made the session.
func (s *Session) ID() ID { return s.id }

// Tags returns the numbers that identify the session in packets: those that this side
// sends, and those that the peer sends. They are not secret, and don't reveal which keys
// made the session.
func (s *Session) Tags() (out, in uint32) { return s.out.tag, s.in.tag }

// Cipher returns the cipher that both sides agreed on.
func (s *Session) Cipher() Cipher { return s.cipher }

// String returns the session's ID and cipher.
func (s *Session) String() string { return fmt.Sprintf("session %v, %v", s.id, s.cipher) }

// Seal encrypts plaintext, authenticates it together with header, appends the result,
// which is Overhead bytes longer than the plaintext, to dst and returns that. It does not
// allocate if dst has capacity. The plaintext may lie exactly where its ciphertext goes,
// as in s.Seal(p[:n], p[:n], p[n:], nonce); any other overlap makes crypto/cipher panic.
// Cipher.SealLimit limits how often it may be called.
func (s *Session) Seal(dst, header, plaintext []byte, nonce Nonce) []byte {
	n := s.nonces.Get().(*[nonceBytes]byte)
	s.out.putNonce(n, nonce)
	dst = s.out.aead.Seal(dst, n[:], plaintext, header)
	s.nonces.Put(n)
	return dst
}

// Open authenticates header and ciphertext and appends the plaintext to dst. It returns
// ErrPacket if they are not authentic. The rules for dst are those of Seal. After
// ErrPacket the capacity of dst may be overwritten: a packet that is opened in place
// can't be tried with another session, so its header should identify the session.
func (s *Session) Open(dst, header, ciphertext []byte, nonce Nonce) ([]byte, error) {
	n := s.nonces.Get().(*[nonceBytes]byte)
	s.in.putNonce(n, nonce)
	dst, err := s.in.aead.Open(dst, n[:], ciphertext, header)
	s.nonces.Put(n)
	if err != nil {
		return nil, ErrPacket
	}
	return dst, nil
}

// putNonce writes the AEAD's nonce (RFC 9001 section 5.3).
func (d *direction) putNonce(to *[nonceBytes]byte, n Nonce) {
	binary.BigEndian.PutUint32(to[:4], n.Space)
	binary.BigEndian.PutUint64(to[4:], n.Counter)
	subtle.XORBytes(to[:], to[:], d.iv[:])
}
