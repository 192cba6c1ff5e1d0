package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cleat/usernet"
)

// Names that Unicode considers equal to bank.example, or to each other, but DNS does not
// (RFC 4343 folds A to Z only).
var lookAlikes = []string{
	"ban\u212a.example", // KELVIN SIGN, whose lower case is k
	"BAN\u212a.EXAMPLE",
	"bank.example\u0000",
	"bank\\.example",
	"bank.example..",
	".bank.example",
	"bank..example",
}

func TestNamesFoldOnlyASCII(t *testing.T) {
	for _, name := range lookAlikes {
		p := newPolicy(t, Config{Rules: rules(t, "+bank.example")})
		if p.MayAsk(name) {
			t.Errorf("MayAsk(%q) with only bank.example allowed", name)
		}
		p.Learn(name, addrs("192.0.2.1"), time1m)
		if v := p.Judge(flow(t, "192.0.2.1:443")); v.Action != usernet.Refuse {
			t.Errorf("an answer for %q is credited to bank.example", name)
		}
	}
	p := newPolicy(t, Config{})
	p.Learn("\xfe.example", addrs("192.0.2.1"), time1m)
	p.Learn("\xff.example", addrs("192.0.2.1"), time1m)
	if got := p.Names(netip.MustParseAddr("192.0.2.1")); len(got) != 2 {
		t.Errorf("two names are known as %q", got)
	}
}

// A rule with letters beyond ASCII is refused, and the error contains the name that DNS
// would be asked for.
func TestRulesWithOtherLetters(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"bücher.example", "xn--bcher-kva.example"},
		{"*.bücher.example:443/tcp", "*.xn--bcher-kva.example"},
		{"ban\u212a.example", "bank.example"},
		{"faß.example", "xn--fa-hia.example"},
		{"日本語.example", "xn--wgv71a119e.example"},
		{"\u2488.example", "which begins with xn--"}, // IDNA has no form for it
		{"a\u3002example", "a.example"},              // an ideographic full stop
		{"\xff.example", "which begins with xn--"},
	} {
		r, err := ParseRule(true, c.in)
		var bad *RuleError
		if !errors.As(err, &bad) || !strings.Contains(bad.Want, c.want) {
			t.Errorf("%q is read as %v, %v; want an error with %s", c.in, r, err, c.want)
		}
	}
}
