package trust

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// An Identity is a host's key and its certificate. It is never changed.
type Identity struct {
	Host        string            // its name
	Certificate *x509.Certificate // nil until the host has joined
	Authority   *x509.Certificate // that has signed it; nil until the host has joined
	// Clock is this host's clock, by which certificates are valid or not; nil: time.Now.
	Clock func() time.Time
	key   crypto.Signer
}

// Now returns the time of the clock.
func (i *Identity) Now() time.Time {
	if i.Clock == nil {
		return time.Now()
	}
	return i.Clock()
}

// NewIdentity makes a key for a host.
func NewIdentity(host string) (*Identity, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return &Identity{Host: host, key: key}, nil
}

// Request returns a certificate request for the key.
func (i *Identity) Request() ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{i.Host}}, i.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return der, nil
}

// Certified returns the identity with a certificate. The error says if the certificate is of another key or
// host, or not signed by the authority.
func (i *Identity) Certified(cert, authority *x509.Certificate) (*Identity, error) {
	switch {
	case !keyOf(i.key, cert):
		return nil, errors.New("the certificate is of another key")
	case cert.Subject.CommonName != i.Host:
		return nil, fmt.Errorf("the certificate is of host %s, not of %s", cert.Subject.CommonName, i.Host)
	}
	if err := cert.CheckSignatureFrom(authority); err != nil {
		return nil, fmt.Errorf("the certificate of host %s is not signed by the cluster's authority: %w", i.Host, err)
	}
	return &Identity{Host: i.Host, Certificate: cert, Authority: authority, Clock: i.Clock, key: i.key}, nil
}

// SignedBy returns the identity with a certificate of an authority that this host has.
func (i *Identity) SignedBy(a *Authority, now time.Time) (*Identity, error) {
	request, err := i.Request()
	if err != nil {
		return nil, err
	}
	cert, err := a.Sign(request, i.Host, now)
	if err != nil {
		return nil, err
	}
	return i.Certified(cert, a.Certificate)
}

// Pin returns the pin of the identity's key.
func (i *Identity) Pin() string { return Pin(i.Certificate) }

// Valid reports whether the certificate is valid at a time.
func (i *Identity) Valid(now time.Time) bool {
	return !now.Before(i.Certificate.NotBefore) && !now.After(i.Certificate.NotAfter)
}

// NeedsRenewal reports whether the certificate should be replaced by a new one.
func (i *Identity) NeedsRenewal(now time.Time) bool {
	return now.After(i.Certificate.NotAfter.Add(-renewBefore)) || now.Before(i.Certificate.NotBefore)
}

// TLS returns the certificate with its key, for package tls. The authority is part of it: hosts that join know
// the cluster by the authority's pin.
func (i *Identity) TLS() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{i.Certificate.Raw, i.Authority.Raw}, PrivateKey: i.key, Leaf: i.Certificate}
}

// Roots returns the pool of the cluster's authority.
func (i *Identity) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(i.Authority)
	return pool
}

// PEM returns the identity for ParseIdentity. It is a secret.
func (i *Identity) PEM() ([]byte, error) {
	text, err := i.PairPEM()
	return append(text, i.AuthorityPEM()...), err
}

// PairPEM returns the host's certificate and key. It is a secret.
func (i *Identity) PairPEM() ([]byte, error) { return encodePair(i.Certificate, i.key) }

// AuthorityPEM returns the authority's certificate. It is no secret.
func (i *Identity) AuthorityPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: i.Authority.Raw})
}

// ParseIdentity reads what Identity.PEM returned.
func ParseIdentity(text []byte) (*Identity, error) {
	i := &Identity{}
	fail := func(err error) (*Identity, error) { return nil, fmt.Errorf("read the host's identity: %w", err) }
	var certs []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemCertificate:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return fail(err)
			}
			certs = append(certs, c)
		case pemKey:
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return fail(err)
			}
			i.key, _ = key.(crypto.Signer)
		}
	}
	if len(certs) != 2 || i.key == nil {
		return fail(errors.New("want the host's certificate and key, and the authority's certificate"))
	}
	i.Host = certs[0].Subject.CommonName
	got, err := i.Certified(certs[0], certs[1])
	if err != nil {
		return fail(err)
	}
	return got, nil
}
