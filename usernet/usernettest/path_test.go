package usernettest

import (
	"net/netip"
	"strings"
	"testing"
)

func TestForwardAndRuleFlags(t *testing.T) {
	one := Forward{Proto: "tcp", Port: 80, To: 8080, Count: 1}
	some := Forward{Proto: "udp", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, To: 80, Count: 3}
	six := Forward{Proto: "tcp", Addr: netip.MustParseAddr("2001:db8::1"), Port: 80, To: 81, Count: 2}
	for _, c := range []struct{ name, got, want string }{
		{"cleat, one port", one.publishFlag(), "80-80:8080-8080/tcp"},
		{"cleat, a range on an address", some.publishFlag(), "192.0.2.1:80-82:80-82/udp"},
		{"cleat, IPv6", six.publishFlag(), "[2001:db8::1]:80-81:81-82/tcp"},
		{"pasta, one port", pastaPorts(one), "80-80:8080-8080"},
		{"pasta, a range on an address", pastaPorts(some), "192.0.2.1/80-82:80-82"},
		{"rule for all ports", Rule{Target: "192.0.2.0/24"}.ruleFlag(), "192.0.2.0/24"},
		{"rule for some ports", Rule{Target: "a.example", Ports: "1-2", Proto: "udp"}.ruleFlag(), "a.example:1-2/udp"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
}

func TestCaseNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if seen[c.Name] {
			t.Errorf("two cases are called %s", c.Name)
		}
		seen[c.Name] = true
		if c.Conditions != (Conditions{}) && !c.Alone {
			t.Errorf("%s has Conditions, and is not Alone", c.Name)
		}
	}
}

func TestIPv6CasesNeedIPv6(t *testing.T) {
	for _, c := range Cases() {
		if !strings.Contains(c.Name+"/", "/v6/") {
			continue
		}
		p := Path{Lacks: map[Ability]string{IPv6: "none"}}
		if p.missing(c.Needs) == "" {
			t.Errorf("%s runs without IPv6", c.Name)
		}
	}
}
