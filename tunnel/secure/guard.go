package secure

import (
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// GuardOverhead is how many bytes a guarded message is longer than the plain one: a
// random nonce in front and an authenticator behind.
const GuardOverhead = chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead

const guardLabel = prologue + " guard "

// Guard keeps strangers' messages away from the handshake. It encrypts and authenticates
// each handshake message once more, with a key that only the two ends can compute. So a
// forged message costs its receiver a microsecond instead of a multiplication on
// Curve25519. A replayed message passes: see the package documentation. Its methods are
// safe for concurrent use.
type Guard struct{ out, in cipher.AEAD }

// NewGuard returns the Guard of the end with the private key mine. It computes one
// multiplication on Curve25519.
func NewGuard(mine PrivateKey, peer PublicKey) (_ *Guard, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("create guard: %w", err)
		}
	}()
	if err := (side{private: mine, peer: peer}).check(); err != nil {
		return nil, err
	}
	private, err := ecdh.X25519().NewPrivateKey(mine.s.key[:])
	if err != nil {
		return nil, err
	}
	public, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil {
		return nil, err
	}
	shared, err := private.ECDH(public)
	if err != nil {
		return nil, err
	}
	defer clear(shared)
	// The label names sender and receiver, in this order, so that an end's own message is
	// refused when it is reflected.
	own := mine.Public()
	out, err := guardKey(shared, own, peer)
	if err != nil {
		return nil, err
	}
	in, err := guardKey(shared, peer, own)
	if err != nil {
		return nil, err
	}
	return &Guard{out: out, in: in}, nil
}

func guardKey(shared []byte, from, to PublicKey) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, shared, nil, guardLabel+string(from[:])+string(to[:]), chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return chacha20poly1305.NewX(key)
}

// Seal encrypts message, authenticates it together with header, and appends the result to
// dst.
func (g *Guard) Seal(dst, header, message []byte) []byte {
	var nonce [chacha20poly1305.NonceSizeX]byte
	rand.Read(nonce[:]) // never fails
	return g.out.Seal(append(dst, nonce[:]...), nonce[:], message, header)
}

// Open authenticates header and sealed and returns the message, decrypted in place:
// sealed is overwritten in any case. It returns ErrHandshake if the peer did not seal the
// message.
func (g *Guard) Open(header, sealed []byte) ([]byte, error) {
	if len(sealed) < GuardOverhead {
		return nil, ErrHandshake
	}
	nonce, rest := sealed[:chacha20poly1305.NonceSizeX], sealed[chacha20poly1305.NonceSizeX:]
	message, err := g.in.Open(rest[:0], nonce, rest, header)
	if err != nil {
		return nil, ErrHandshake
	}
	return message, nil
}
