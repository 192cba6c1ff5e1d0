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

// Labels of what is derived from a handshake (RFC 5869 section 3.2).
const (
	labelData = prologue + " data "
	labelID   = prologue + " id "
	labelTag  = prologue + " tag"
)

// nonceBytes is the length of a nonce of both ciphers (RFC 5116, RFC 8439).
const nonceBytes = 12

// ErrPacket is returned for a packet that the peer did not seal with this
// session, header and nonce.
var ErrPacket = errors.New("not an authentic packet")

// Nonce is a packet's number. No two packets that one side seals in one session
// may have the same.
type Nonce struct {
	Space   uint32 // what counts for itself: a path, a kind of packet
	Counter uint64
}

// ID names a session. Both sides know it, and nobody else before it is shown.
type ID [8]byte

// String is the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Session holds the keys that a handshake made, one for each direction. All its
// methods may be used concurrently. It must not be copied.
type Session struct {
	id      ID
	cipher  Cipher
	out, in *direction
	nonces  sync.Pool // of *[nonceBytes]byte, which would escape for every packet
}

// direction is the key material of one direction.
type direction struct {
	aead cipher.AEAD
	iv   [nonceBytes]byte
	tag  uint32
}

// newSession makes a session of the two keys that the handshake ends with: this
// side's and the peer's.
func newSession(c Cipher, transcript []byte, out, in *noise.CipherState, initiator bool) (*Session, error) {
	s := &Session{cipher: c, nonces: sync.Pool{New: func() any { return new([nonceBytes]byte) }}}
	first := out
	if !initiator {
		first = in
	}
	id, err := expand(first, labelID+string(transcript), len(s.id))
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

// newDirection derives a cipher's key and initialisation vector.
func newDirection(c Cipher, key *noise.CipherState) (*direction, error) {
	material, err := expand(key, labelData+c.String(), c.keyBytes()+nonceBytes)
	if err != nil {
		return nil, fmt.Errorf("derive key of %v: %w", c, err)
	}
	defer clear(material)
	d := &direction{}
	if d.aead, err = c.aead(material[:c.keyBytes()]); err != nil {
		return nil, fmt.Errorf("make %v: %w", c, err)
	}
	copy(d.iv[:], material[c.keyBytes():])
	tag, err := expand(key, labelTag, 4)
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

// ID is the same on both sides, and another for each session. It tells nobody
// which keys made it.
func (s *Session) ID() ID { return s.id }

// Tags are numbers for packets to say which session they belong to: those that this side
// sends, and those that the peer sends. They are no secret, and hide which keys made the
// session.
func (s *Session) Tags() (out, in uint32) { return s.out.tag, s.in.tag }

// Cipher is what both sides agreed on.
func (s *Session) Cipher() Cipher { return s.cipher }

// String names the session and its cipher.
func (s *Session) String() string { return fmt.Sprintf("session %v, %v", s.id, s.cipher) }

// Seal encrypts plaintext, authenticates it together with header, appends
// Overhead bytes more than the plaintext to dst and returns that. With room for
// them behind dst nothing is allocated. The plaintext may lie exactly where its
// ciphertext is to go, as in s.Seal(p[:n], p[:n], p[n:], nonce); any other
// overlap is a mistake, for which crypto/cipher panics. How often it may be
// called says Cipher.SealLimit.
func (s *Session) Seal(dst, header, plaintext []byte, nonce Nonce) []byte {
	n := s.nonces.Get().(*[nonceBytes]byte)
	s.out.nonce(n, nonce)
	dst = s.out.aead.Seal(dst, n[:], plaintext, header)
	s.nonces.Put(n)
	return dst
}

// Open checks header and ciphertext and appends the plaintext to dst; what is not
// authentic is ErrPacket. Rules for dst are those of Seal. After ErrPacket the
// room behind dst may be overwritten: a packet that is opened in place cannot be
// tried with another session, so its header should say which one is meant.
func (s *Session) Open(dst, header, ciphertext []byte, nonce Nonce) ([]byte, error) {
	n := s.nonces.Get().(*[nonceBytes]byte)
	s.in.nonce(n, nonce)
	dst, err := s.in.aead.Open(dst, n[:], ciphertext, header)
	s.nonces.Put(n)
	if err != nil {
		return nil, ErrPacket
	}
	return dst, nil
}

// nonce writes the AEAD's nonce to to (RFC 9001 section 5.3).
func (d *direction) nonce(to *[nonceBytes]byte, n Nonce) {
	binary.BigEndian.PutUint32(to[:4], n.Space)
	binary.BigEndian.PutUint64(to[4:], n.Counter)
	subtle.XORBytes(to[:], to[:], d.iv[:])
}
