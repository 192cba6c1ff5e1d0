package trust_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"cleat/overlay/trust"
)

func addresses(all ...string) (a []netip.AddrPort) {
	for _, text := range all {
		a = append(a, netip.MustParseAddrPort(text))
	}
	return a
}

func newToken(t testing.TB, a *trust.Authority, at ...string) trust.Token {
	t.Helper()
	token, err := trust.NewToken(a.Certificate, addresses(at...))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokenRoundTrip(t *testing.T) {
	a := newAuthority(t)
	nine := strings.Fields(strings.Repeat("192.0.2.1:7790 ", 9))
	for name, tt := range map[string]struct{ in, out []string }{
		"IPv4":                  {[]string{"192.0.2.1:7790"}, []string{"192.0.2.1:7790"}},
		"IPv6":                  {[]string{"[2001:db8::1]:1"}, []string{"[2001:db8::1]:1"}},
		"both":                  {[]string{"192.0.2.1:65535", "[2001:db8::1]:7790"}, []string{"192.0.2.1:65535", "[2001:db8::1]:7790"}},
		"IPv4 in IPv6":          {[]string{"[::ffff:192.0.2.1]:7790"}, []string{"192.0.2.1:7790"}},
		"with a zone":           {[]string{"[fe80::1%eth0]:1", "192.0.2.1:1"}, []string{"192.0.2.1:1"}},
		"more than a token has": {nine, nine[:8]},
	} {
		t.Run(name, func(t *testing.T) {
			token := newToken(t, a, tt.in...)
			got, err := trust.ParseToken("  " + token.String() + "\n")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, token) || !reflect.DeepEqual(got.Addresses, addresses(tt.out...)) {
				t.Errorf("got %+v, want %+v at %v", got, token, tt.out)
			}
			if !got.IsOf(a.Certificate) || got.IsOf(newAuthority(t).Certificate) {
				t.Error("the token is of another cluster")
			}
		})
	}
}

func TestNewTokenWithoutAddress(t *testing.T) {
	_, err := trust.NewToken(newAuthority(t).Certificate, []netip.AddrPort{{}})
	wants(t, err, "no address")
}

// tokenOf returns the text of a token with any content.
func tokenOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "cleat1-" + base64.RawURLEncoding.EncodeToString(append(content, sum[0], sum[1]))
}

func TestParseTokenRefuses(t *testing.T) {
	good := newToken(t, newAuthority(t), "192.0.2.1:7790").String()
	head := make([]byte, 36)
	at := func(i int, c byte) string { return good[:i] + string(c) + good[i+1:] }
	change := func(i int) string {
		if good[i] == 'A' {
			return at(i, 'B')
		}
		return at(i, 'A')
	}
	with := func(rest ...byte) string { return tokenOf(append(head[:36:36], rest...)) }
	for name, tt := range map[string]struct{ text, want string }{
		"nothing":                 {"", "does not begin with cleat1-"},
		"a later version":         {strings.Replace(good, "cleat1-", "cleat2-", 1), "does not begin with cleat1-"},
		"the prefix alone":        {"cleat1-", "a part of it is missing"},
		"the first half":          {good[:len(good)/2], "missing"},
		"without the last":        {good[:len(good)-1], "missing"},
		"without the first":       {"cleat1-" + good[8:], "missing"},
		"one more":                {good + "A", "missing"},
		"mistyped at first":       {change(7), "mistyped"},
		"mistyped in the secret":  {change(20), "mistyped"},
		"mistyped in the address": {change(len(good) - 8), "mistyped"},
		"a character of no token": {at(20, '!'), "missing"},
		"a space in it":           {at(20, ' '), "missing"},
		"no address":              {with(), "it has 0 addresses"},
		"half an address":         {with(4, 192, 0), "an address in it is not valid"},
		"an address of 5 bytes":   {with(5, 1, 2, 3, 4, 5, 0, 1), "an address in it is not valid"},
		"no port":                 {with(4, 192, 0, 2, 1, 0), "an address in it is not valid"},
		"9 addresses":             {tokenOf(append(head[:36:36], []byte(strings.Repeat("\x04\xc0\x00\x02\x01\x1e\x6e", 9))...)), "it has 9 addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trust.ParseToken(tt.text)
			wants(t, err, tt.want)
			if !errors.As(err, new(*trust.TokenError)) {
				t.Errorf("error %T, want a *TokenError", err)
			}
			if len(tt.text) > 20 && strings.Contains(err.Error(), tt.text[7:]) {
				t.Error("the error shows the token")
			}
		})
	}
}

func TestProof(t *testing.T) {
	hash := newToken(t, newAuthority(t), "192.0.2.1:1").Hash()
	proof := trust.Proof(hash, trust.Joins, []byte("one connection"))
	for name, tt := range map[string]struct {
		proof   []byte
		hash    string
		side    trust.Side
		binding string
		want    bool
	}{
		"the same":           {proof, hash, trust.Joins, "one connection", true},
		"another connection": {proof, hash, trust.Joins, "another connection", false},
		"the other side":     {proof, hash, trust.Accepts, "one connection", false},
		"another secret":     {proof, "0" + hash[1:], trust.Joins, "one connection", hash[0] == '0'},
		"none":               {nil, hash, trust.Joins, "one connection", false},
		"a part":             {proof[:16], hash, trust.Joins, "one connection", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := trust.Proves(tt.proof, tt.hash, tt.side, []byte(tt.binding)); got != tt.want {
				t.Errorf("proves: %v, want %v", got, tt.want)
			}
		})
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(newToken(f, newAuthority(f), "192.0.2.1:7790", "[2001:db8::1]:1").String())
	f.Add(tokenOf(make([]byte, 43)))
	f.Add("cleat1-AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := trust.ParseToken(text)
		if err != nil {
			if !errors.As(err, new(*trust.TokenError)) {
				t.Errorf("error %T", err)
			}
			return
		}
		again, err := trust.ParseToken(token.String())
		if err != nil || !reflect.DeepEqual(again, token) {
			t.Errorf("a token that was read is %+v, and read again %+v, %v", token, again, err)
		}
	})
}
