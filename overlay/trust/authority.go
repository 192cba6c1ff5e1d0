package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Validity of certificates.
const (
	early         = 24 * time.Hour
	hostValid     = 365 * 24 * time.Hour
	renewBefore   = hostValid / 3
	authorityLife = 100 * 365 * 24 * time.Hour // replaced with the cluster
)

// PeerName is a name in all certificates of hosts. The members of the registry verify it when they connect to
// each other, because the addresses of hosts may change.
const PeerName = "cleat-node"

// An Authority signs the certificates of a cluster's hosts.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority makes an authority for the cluster with an id.
func NewAuthority(cluster string, now time.Time) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "cleat cluster " + cluster}, NotBefore: now.Add(-early), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	cert, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the cluster's authority: %w", err)
	}
	return &Authority{cert, key}, nil
}

// ParseAuthority reads what Authority.PEM returned.
func ParseAuthority(text []byte) (*Authority, error) {
	cert, key, err := parsePair(text)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	if !cert.IsCA {
		return nil, errors.New("read the cluster's authority: the certificate is not that of an authority")
	}
	return &Authority{cert, key}, nil
}

// PEM returns the authority's certificate and key. It is a secret.
func (a *Authority) PEM() ([]byte, error) { return encodePair(a.Certificate, a.key) }

// Sign returns a certificate for a host's key, which the request has (Identity.Request). The name is the one
// given here, whatever the request says.
func (a *Authority) Sign(request []byte, host string, now time.Time) (*x509.Certificate, error) {
	csr, err := parseRequest(request)
	if err != nil {
		return nil, fmt.Errorf("read the certificate request of host %s: %w", host, err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: host}, NotBefore: now.Add(-early), NotAfter: now.Add(hostValid), DNSNames: []string{PeerName},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	cert, err := sign(template, a.Certificate, csr.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of host %s: %w", host, err)
	}
	return cert, nil
}

// Pin returns the pin of a certificate's key: a SHA-256 in hexadecimal digits.
func Pin(c *x509.Certificate) string { return pin(c.RawSubjectPublicKeyInfo) }

// RequestPin returns the pin of the key of a certificate request.
func RequestPin(request []byte) (string, error) {
	csr, err := parseRequest(request)
	if err != nil {
		return "", fmt.Errorf("read a certificate request: %w", err)
	}
	return pin(csr.RawSubjectPublicKeyInfo), nil
}

func pin(publicKeyInfo []byte) string {
	sum := sha256.Sum256(publicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// parseRequest reads a certificate request whose sender has its key. The key must be of the kind that newKey
// makes: checking signatures of other kinds can be made expensive by whoever sends them.
func parseRequest(der []byte) (*x509.CertificateRequest, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	if key, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the key is not one of the curve P-256")
	}
	return csr, csr.CheckSignature()
}

func newKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// serialBits is the length of serial numbers (RFC 5280 section 4.1.2.2 permits 159 bits).
const serialBits = 120

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Types of PEM blocks.
const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// keyOf reports whether a certificate is of a key.
func keyOf(key crypto.Signer, c *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(c.PublicKey)
}

func encodePair(c *x509.Certificate, key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw}), pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})...), nil
}

func parsePair(text []byte) (c *x509.Certificate, key crypto.Signer, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemCertificate:
			c, err = x509.ParseCertificate(block.Bytes)
		case pemKey:
			var any any
			any, err = x509.ParsePKCS8PrivateKey(block.Bytes)
			key, _ = any.(crypto.Signer)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if c == nil || key == nil {
		return nil, nil, errors.New("a certificate or its key is missing")
	}
	if !keyOf(key, c) {
		return nil, nil, errors.New("the certificate is of another key")
	}
	return c, key, nil
}
