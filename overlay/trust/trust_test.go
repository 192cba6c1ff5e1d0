package trust_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"cleat/overlay/trust"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newAuthority(t testing.TB) *trust.Authority {
	t.Helper()
	a, err := trust.NewAuthority("0123456789abcdef", now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newIdentity(t testing.TB, a *trust.Authority, host string, at time.Time) *trust.Identity {
	t.Helper()
	id, err := trust.NewIdentity(host)
	if err == nil {
		id, err = id.SignedBy(a, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// request returns a certificate request and its identity.
func request(t *testing.T, host string) ([]byte, *trust.Identity) {
	t.Helper()
	id, err := trust.NewIdentity(host)
	if err != nil {
		t.Fatal(err)
	}
	text, err := id.Request()
	if err != nil {
		t.Fatal(err)
	}
	return text, id
}

// wants fails the test unless err says want.
func wants(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
}

func TestAuthorityKeepsItsKey(t *testing.T) {
	a := newAuthority(t)
	text, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := trust.ParseAuthority(text)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Certificate.Equal(a.Certificate) {
		t.Error("the certificate has changed")
	}
	req, id := request(t, "a")
	cert, err := again.Sign(req, "a", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := id.Certified(cert, a.Certificate); err != nil {
		t.Errorf("certificate of the authority that was read: %v", err)
	}
}

func TestParseAuthorityRefuses(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	whole := func(x *trust.Authority) []byte {
		text, err := x.PEM()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const keyBegins = "-----BEGIN PRIVATE"
	certOf := func(text []byte) []byte { return text[:bytes.Index(text, []byte(keyBegins))] }
	keyOf := func(text []byte) []byte { return text[bytes.Index(text, []byte(keyBegins)):] }
	host, err := newIdentity(t, a, "a", now).PairPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		text []byte
		want string
	}{
		"nothing":              {nil, "missing"},
		"no key":               {certOf(whole(a)), "missing"},
		"no certificate":       {keyOf(whole(a)), "missing"},
		"another's key":        {append(certOf(whole(a)), keyOf(whole(b))...), "another key"},
		"a host's certificate": {host, "not that of an authority"},
		"damaged certificate":  {bytes.Replace(whole(a), []byte("MII"), []byte("MIA"), 1), "x509"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trust.ParseAuthority(tt.text)
			wants(t, err, tt.want)
		})
	}
}

func TestSign(t *testing.T) {
	a := newAuthority(t)
	req, _ := request(t, "liar")
	cert, err := a.Sign(req, "honest", now)
	if err != nil {
		t.Fatal(err)
	}
	if cert.Subject.CommonName != "honest" || cert.IsCA || len(cert.DNSNames) != 1 || cert.DNSNames[0] != trust.PeerName {
		t.Errorf("certificate of %s, authority %v, names %v", cert.Subject.CommonName, cert.IsCA, cert.DNSNames)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.Certificate)
	day := 24 * time.Hour
	for name, tt := range map[string]struct {
		at time.Time
		ok bool
	}{
		"now":                        {now, true},
		"a clock 23 hours late":      {now.Add(-23 * time.Hour), true},
		"a clock 25 hours late":      {now.Add(-25 * time.Hour), false},
		"on the last day":            {now.Add(364 * day), true},
		"a day after it has expired": {now.Add(366 * day), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: trust.PeerName, CurrentTime: tt.at})
			if (err == nil) != tt.ok {
				t.Errorf("verify: %v, want valid: %v", err, tt.ok)
			}
		})
	}
}

func TestSignRefuses(t *testing.T) {
	a := newAuthority(t)
	good, _ := request(t, "a")
	of := func(key any) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	for name, tt := range map[string]struct {
		request []byte
		want    string
	}{
		"nothing":              {nil, "read the certificate request of host a"},
		"a part":               {good[:len(good)/2], "read the certificate request of host a"},
		"not signed by itself": {forged, "read the certificate request of host a"},
		"another kind of key":  {of(weak), "not one of the curve P-256"},
		"another curve":        {of(other), "not one of the curve P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.Sign(tt.request, "a", now)
			wants(t, err, tt.want)
			if _, err := trust.RequestPin(tt.request); err == nil {
				t.Error("RequestPin accepts it")
			}
		})
	}
}

func TestCertifiedRefuses(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	mine, id := request(t, "a")
	others, _ := request(t, "a")
	sign := func(by *trust.Authority, req []byte, host string) *x509.Certificate {
		cert, err := by.Sign(req, host, now)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	host := newIdentity(t, a, "c", now)
	for name, tt := range map[string]struct {
		cert, authority *x509.Certificate
		want            string
	}{
		"another key":                 {sign(a, others, "a"), a.Certificate, "another key"},
		"another host":                {sign(a, mine, "b"), a.Certificate, "of host b, not of a"},
		"another authority":           {sign(b, mine, "a"), a.Certificate, "not signed by the cluster's authority"},
		"a host that is no signatory": {sign(a, mine, "a"), host.Certificate, "not signed by the cluster's authority"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := id.Certified(tt.cert, tt.authority)
			wants(t, err, tt.want)
		})
	}
}

func TestPin(t *testing.T) {
	a := newAuthority(t)
	id := newIdentity(t, a, "a", now)
	renewed, err := id.SignedBy(a, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	req, err := id.Request()
	if err != nil {
		t.Fatal(err)
	}
	ofRequest, err := trust.RequestPin(req)
	if err != nil {
		t.Fatal(err)
	}
	if id.Pin() != renewed.Pin() || id.Pin() != ofRequest || len(id.Pin()) != 64 {
		t.Errorf("pins %s, renewed %s, of the request %s: want the same 64 digits", id.Pin(), renewed.Pin(), ofRequest)
	}
	if other := newIdentity(t, a, "a", now); other.Pin() == id.Pin() {
		t.Error("two keys have one pin")
	}
}

func TestNeedsRenewal(t *testing.T) {
	id := newIdentity(t, newAuthority(t), "a", now)
	day := 24 * time.Hour
	for name, tt := range map[string]struct {
		at           time.Time
		needs, valid bool
	}{
		"new":                {now, false, true},
		"two thirds of life": {now.Add(243 * day), false, true},
		"a third is left":    {now.Add(244 * day), true, true},
		"expired":            {now.Add(366 * day), true, false},
		"not yet valid":      {now.Add(-2 * day), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := id.NeedsRenewal(tt.at); got != tt.needs {
				t.Errorf("needs renewal: %v", got)
			}
			if got := id.Valid(tt.at); got != tt.valid {
				t.Errorf("valid: %v", got)
			}
		})
	}
}

func TestIdentityKeepsItsKey(t *testing.T) {
	id := newIdentity(t, newAuthority(t), "a", now)
	text, err := id.PEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := trust.ParseIdentity(text)
	if err != nil {
		t.Fatal(err)
	}
	if again.Host != "a" || again.Pin() != id.Pin() || !again.Authority.Equal(id.Authority) || !again.Certificate.Equal(id.Certificate) {
		t.Errorf("identity of %s with pin %s", again.Host, again.Pin())
	}
}

func TestParseIdentityRefuses(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	id, other := newIdentity(t, a, "a", now), newIdentity(t, a, "a", now)
	parts := func(id *trust.Identity) (cert, key []byte) {
		text, err := id.PairPEM()
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(text, []byte("-----BEGIN PRIVATE"))
		return text[:at], text[at:]
	}
	cert, key := parts(id)
	_, othersKey := parts(other)
	ca, otherCA := id.AuthorityPEM(), newIdentity(t, b, "b", now).AuthorityPEM()
	join := func(all ...[]byte) []byte { return bytes.Join(all, nil) }
	for name, tt := range map[string]struct {
		text []byte
		want string
	}{
		"nothing":              {nil, "want the host's certificate"},
		"no key":               {join(cert, ca), "want the host's certificate"},
		"no authority":         {join(cert, key), "want the host's certificate"},
		"a third certificate":  {join(cert, key, ca, ca), "want the host's certificate"},
		"another's key":        {join(cert, othersKey, ca), "another key"},
		"another's authority":  {join(cert, key, otherCA), "not signed"},
		"in the wrong order":   {join(ca, key, cert), "another key"},
		"the key is no key":    {join(cert, bytes.Replace(key, []byte("MIG"), []byte("MIA"), 1), ca), "read the host's identity"},
		"the end is missing":   {join(cert, key, ca[:len(ca)-40]), "want the host's certificate"},
		"an authority's alone": {ca, "want the host's certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trust.ParseIdentity(tt.text)
			wants(t, err, tt.want)
		})
	}
}

func FuzzParseIdentity(f *testing.F) {
	id := newIdentity(f, newAuthority(f), "a", now)
	text, err := id.PEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, text []byte) {
		id, err := trust.ParseIdentity(text)
		if err != nil {
			return
		}
		again, err := id.PEM()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := trust.ParseIdentity(again); err != nil {
			t.Errorf("an identity that was read can't be read again: %v", err)
		}
	})
}
