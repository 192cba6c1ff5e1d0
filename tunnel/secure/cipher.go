package secure

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math/bits"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// Cipher is the AEAD that seals a session's packets. Its values are bits that also appear
// on the wire: an offer is a set of them.
type Cipher byte

const (
	// ChaCha20Poly1305 is the AEAD of RFC 8439, which every end supports.
	ChaCha20Poly1305 Cipher = 1 << iota
	// AES128GCM is AEAD_AES_128_GCM of RFC 5116.
	AES128GCM
)

// Overhead is the size of the seal in bytes, for every cipher.
const Overhead = 16

// The limits of one key, from RFC 9001 appendix B: an attacker's chance of success stays
// below 2^-57.
const (
	// BlockBytes is the unit of SealLimit.
	BlockBytes = aes.BlockSize

	gcmSealBlocks = 1 << 35 // appendix B.1.1: packets × blocks in each
	gcmOpen       = 1 << 52 // section 6.6: packets of any size
	chaChaSeal    = 1 << 62 // section 6.6: more than a QUIC connection has packets
	chaChaOpen    = 1 << 36 // section 6.6
)

const aes128KeyBytes = 16

// SealLimit returns how many blocks one direction of a session may seal, over all its
// spaces: with AES-GCM 512 GiB. Each packet counts its header and plaintext together,
// rounded up to whole blocks. A new session must replace this one by then.
func (c Cipher) SealLimit() uint64 {
	if c == AES128GCM {
		return gcmSealBlocks
	}
	return chaChaSeal
}

// Blocks returns how many blocks a packet counts, given the size of its header and
// plaintext together.
func Blocks(packetBytes int) uint64 { return (uint64(packetBytes) + BlockBytes - 1) / BlockBytes }

// OpenLimit returns how many forged packets one direction of a session may refuse. A new
// session must replace this one by then. (RFC 9001 section 6.6 counts over all keys of a
// connection, and then ends it. A tunnel has no end, and an attacker who sends it garbage
// must not be able to end it.)
func (c Cipher) OpenLimit() uint64 {
	if c == AES128GCM {
		return gcmOpen
	}
	return chaChaOpen
}

// String returns the cipher's name, as in "AES-128-GCM".
func (c Cipher) String() string {
	switch c {
	case ChaCha20Poly1305:
		return "ChaCha20-Poly1305"
	case AES128GCM:
		return "AES-128-GCM"
	}
	return fmt.Sprintf("cipher %d", byte(c))
}

// supportedCiphers returns the set of ciphers for which this processor has fast code.
func supportedCiphers() Cipher {
	// The requirements of Go's assembly for AES-GCM: crypto/internal/fips140/aes/gcm.
	amd64 := cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41 && cpu.X86.HasSSSE3
	arm64 := cpu.ARM64.HasAES && cpu.ARM64.HasPMULL
	if amd64 || arm64 {
		return ChaCha20Poly1305 | AES128GCM
	}
	return ChaCha20Poly1305
}

// isKnown reports whether c is exactly one cipher of this package.
func (c Cipher) isKnown() bool {
	return bits.OnesCount8(byte(c)) == 1 && c&(ChaCha20Poly1305|AES128GCM) != 0
}

// pick returns the best cipher that is in the offer and that this side supports. Unknown
// bits of an offer belong to later versions and are ignored.
func (c Cipher) pick(supported Cipher) (Cipher, bool) {
	for _, best := range []Cipher{AES128GCM, ChaCha20Poly1305} {
		if c&supported&best != 0 {
			return best, true
		}
	}
	return 0, false
}

func (c Cipher) keyBytes() int {
	if c == AES128GCM {
		return aes128KeyBytes
	}
	return chacha20poly1305.KeySize
}

// aead returns the cipher with a key of keyBytes bytes, which it copies.
func (c Cipher) aead(key []byte) (cipher.AEAD, error) {
	if c != AES128GCM {
		return chacha20poly1305.New(key)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
