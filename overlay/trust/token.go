package trust

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Token invites a host to a cluster. Whoever has its text can join.
type Token struct {
	ID        string           // names the token in the registry: 8 hexadecimal digits
	Secret    [16]byte         // known to the registry by its hash only
	Authority [16]byte         // the first half of the SHA-256 of the authority's key
	Addresses []netip.AddrPort // where hosts of the cluster accept new ones; at most 8
}

const (
	tokenPrefix  = "cleat1-" // the digit is the version of the format
	idBytes      = 4
	maxAddresses = 8
)

// NewToken makes a token for a cluster with the first addresses that are valid. It is an error if none is.
func NewToken(authority *x509.Certificate, addresses []netip.AddrPort) (Token, error) {
	t := Token{Authority: shortPin(authority)}
	for _, a := range addresses {
		if a.IsValid() && a.Addr().Zone() == "" && len(t.Addresses) < maxAddresses {
			t.Addresses = append(t.Addresses, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
		}
	}
	if len(t.Addresses) == 0 {
		return t, errors.New("make a token: the cluster has no address at which hosts can join")
	}
	var id [idBytes]byte
	if _, err := rand.Read(id[:]); err != nil {
		return t, fmt.Errorf("make a token: %w", err)
	}
	t.ID = hex.EncodeToString(id[:])
	if _, err := rand.Read(t.Secret[:]); err != nil {
		return t, fmt.Errorf("make a token: %w", err)
	}
	return t, nil
}

func shortPin(c *x509.Certificate) [16]byte {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return [16]byte(sum[:16])
}

// Hash returns what the registry has of the token's secret. A secret has 128 random bits, so nobody can guess it
// from its hash.
func (t Token) Hash() string {
	sum := sha256.Sum256(t.Secret[:])
	return hex.EncodeToString(sum[:])
}

// A Side is one end of a connection with which a host joins.
type Side string

// The host that joins, and the host that accepts it.
const (
	Joins   Side = "joins"
	Accepts Side = "accepts"
)

// Proof shows the other end of a connection that this end knows a token's secret, or the hash of it. The secret
// itself is never sent. binding is unique to the connection (gate.Binding), so whoever passes a proof on, over
// another connection, proves nothing.
func Proof(hash string, side Side, binding []byte) []byte {
	mac := hmac.New(sha256.New, []byte(hash))
	mac.Write([]byte(side))
	mac.Write([]byte{0})
	mac.Write(binding)
	return mac.Sum(nil)
}

// Proves reports whether a proof is that of a side. Its time does not depend on the proof.
func Proves(proof []byte, hash string, side Side, binding []byte) bool {
	return hmac.Equal(proof, Proof(hash, side, binding))
}

// IsOf reports whether the token is of the cluster with an authority.
func (t Token) IsOf(authority *x509.Certificate) bool { return t.Authority == shortPin(authority) }

// String returns the token as it is typed. It is a secret.
func (t Token) String() string {
	b := slices.Concat(t.idBytes(), t.Secret[:], t.Authority[:])
	for _, a := range t.Addresses {
		b = append(b, byte(a.Addr().BitLen()/8))
		b = append(b, a.Addr().AsSlice()...)
		b = binary.BigEndian.AppendUint16(b, a.Port())
	}
	sum := sha256.Sum256(b)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[0], sum[1])) // so that a typing error is one
}

func (t Token) idBytes() []byte {
	id, _ := hex.DecodeString(t.ID)
	return id
}

// TokenError means that a text is no token.
type TokenError struct{ Reason string }

func (e *TokenError) Error() string { return "this is no token: " + e.Reason }

// ParseToken reads the text of a token. The error is a *TokenError.
func ParseToken(text string) (Token, error) {
	var t Token
	bad := func(reason string) (Token, error) { return Token{}, &TokenError{reason} }
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok {
		return bad("it does not begin with " + tokenPrefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	const fixed = idBytes + len(t.Secret) + len(t.Authority)
	if err != nil || len(b) < fixed+2 {
		return bad("a part of it is missing")
	}
	b, check := b[:len(b)-2], b[len(b)-2:]
	if sum := sha256.Sum256(b); sum[0] != check[0] || sum[1] != check[1] {
		return bad("a part of it is missing or mistyped")
	}
	t.ID = hex.EncodeToString(b[:idBytes])
	copy(t.Secret[:], b[idBytes:])
	copy(t.Authority[:], b[idBytes+len(t.Secret):])
	for b = b[fixed:]; len(b) > 0; {
		n := int(b[0])
		if n != 4 && n != 16 || len(b) < 1+n+2 {
			return bad("an address in it is not valid")
		}
		a, _ := netip.AddrFromSlice(b[1 : 1+n])
		t.Addresses = append(t.Addresses, netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[1+n:])))
		b = b[1+n+2:]
	}
	if len(t.Addresses) == 0 || len(t.Addresses) > maxAddresses {
		return bad(fmt.Sprintf("it has %d addresses", len(t.Addresses)))
	}
	return t, nil
}
