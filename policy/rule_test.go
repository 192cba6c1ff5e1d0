package policy

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cleat/packet"
)

func TestParseRule(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"address", "192.0.2.1", "192.0.2.1"},
		{"network", "192.0.2.0/24", "192.0.2.0/24"},
		{"network of one", "192.0.2.1/32", "192.0.2.1"},
		{"everything of IPv4", "0.0.0.0/0", "0.0.0.0/0"},
		{"all", "all", "all"},
		{"any", "ANY", "all"},
		{"all ports", "192.0.2.1:*", "192.0.2.1"},
		{"port", "192.0.2.1:443", "192.0.2.1:443"},
		{"range", "192.0.2.1:80-90", "192.0.2.1:80-90"},
		{"range of one", "192.0.2.1:80-80", "192.0.2.1:80"},
		{"list", "192.0.2.1:443,80-90,22", "192.0.2.1:22,80-90,443"},
		{"list that overlaps", "192.0.2.1:80-90,85-95,96", "192.0.2.1:80-96"},
		{"the last port twice", "192.0.2.1:65535,65535", "192.0.2.1:65535"},
		{"every port by number", "192.0.2.1:1-65535", "192.0.2.1:1-65535"},
		{"protocol", "192.0.2.1/udp", "192.0.2.1/udp"},
		{"network, port and protocol", "192.0.2.0/24:443/TCP", "192.0.2.0/24:443/tcp"},
		{"icmp", "192.0.2.0/24/icmp", "192.0.2.0/24/icmp"},
		{"all, port and protocol", "all:53/udp", "all:53/udp"},
		{"IPv6 address", "2001:db8::1", "2001:db8::1"},
		{"IPv6 that ends like a port", "2001:db8::1:443", "2001:db8::1:443"},
		{"IPv6 network", "2001:db8::/32", "2001:db8::/32"},
		{"IPv6 everything", "::/0", "::/0"},
		{"IPv6 and protocol", "2001:db8::1/tcp", "2001:db8::1/tcp"},
		{"IPv6 and port", "[2001:db8::1]:443", "[2001:db8::1]:443"},
		{"IPv6 in brackets for nothing", "[2001:db8::1]", "2001:db8::1"},
		{"IPv6 network and port", "[2001:db8::/32]:443/tcp", "[2001:db8::/32]:443/tcp"},
		{"IPv6 network behind brackets", "[2001:db8::]/32:443", "[2001:db8::/32]:443"},
		{"IPv6 upper case", "2001:DB8::A", "2001:db8::a"},
		{"name", "example.com", "example.com"},
		{"name, upper case, final dot", "Example.COM.", "example.com"},
		{"name and port", "example.com:443", "example.com:443"},
		{"name, ports, protocol", "example.com:80,443/tcp", "example.com:80,443/tcp"},
		{"wildcard", "*.example.com:443", "*.example.com:443"},
		{"wildcard of a top-level domain", "*.com", "*.com"},
		{"one label", "intranet", "intranet"},
		{"underscore", "_dmarc.example.com", "_dmarc.example.com"},
		{"digits in front", "3com.example.com", "3com.example.com"},
		{"punycode", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"label of 63", strings.Repeat("a", 63) + ".example", strings.Repeat("a", 63) + ".example"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := ParseRule(true, c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.String(); got != c.want {
				t.Errorf("%q is read as %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func TestParseRuleErrors(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", "CIDR|name"},
		{"space", "192.0.2.1 :80", "CIDR|name"},
		{"control character", "example.com\x00", "CIDR|name"},
		{"only ports", ":80", "CIDR|name"},
		{"only a protocol", "/tcp", "CIDR|name"},
		{"star", "*", `"all"`},
		{"star and port", "*:80", `"all"`},
		{"host bits", "192.0.2.1/24", "192.0.2.0/24 for the network, or 192.0.2.1"},
		{"host bits of IPv6", "2001:db8::1/32", "2001:db8::/32 for the network"},
		{"prefix too long", "192.0.2.0/33", "an address, a network"},
		{"no prefix length", "192.0.2.0/", "an address, a network"},
		{"prefix length of a name", "example.com/24", "a name without a prefix length"},
		{"five numbers", "192.0.2.1.5", "an address, a network"},
		{"three numbers", "192.0.2", "an address, a network"},
		{"leading zero", "192.0.2.010", "an address, a network"},
		{"number too big", "192.0.2.256", "an address, a network"},
		{"zone", "fe80::1%eth0", "without a zone"},
		{"zone in brackets", "[fe80::1%eth0]:80", "without a zone"},
		{"mapped", "::ffff:192.0.2.1", "plain IPv4: 192.0.2.1"},
		{"mapped network", "::ffff:192.0.2.0/120", "plain IPv4: 192.0.2.0/24"},
		{"network around the mapped", "::ffff:0:0/90", "separate rules"},
		{"IPv6 network and port without brackets", "2001:db8::/32:443", "[2001:db8::/32]:443"},
		{"brackets around IPv4", "[192.0.2.1]:80", "IPv6 addresses only"},
		{"brackets around a name", "[example.com]:80", "IPv6 addresses only"},
		{"open bracket", "[2001:db8::1:80", "one pair of brackets"},
		{"two brackets", "[[2001:db8::1]]:80", "one pair of brackets"},
		{"something behind brackets", "[2001:db8::1]80", "after a colon"},
		{"two prefix lengths", "[2001:db8::/32]/48:443", "an address, a network"},
		{"port 0", "192.0.2.1:0", "1 to 65535"},
		{"port too big", "192.0.2.1:65536", "1 to 65535"},
		{"port by name", "192.0.2.1:http", "1 to 65535"},
		{"no port", "192.0.2.1:", "1 to 65535"},
		{"range backwards", "192.0.2.1:90-80", "1 to 65535"},
		{"open range", "192.0.2.1:80-", "1 to 65535"},
		{"range of three", "192.0.2.1:80-85-90", "1 to 65535"},
		{"sign", "192.0.2.1:+80", "1 to 65535"},
		{"empty in a list", "192.0.2.1:80,,90", "1 to 65535"},
		{"star in a list", "192.0.2.1:80,*", "1 to 65535"},
		{"port behind the protocol", "192.0.2.1/tcp:80", "tcp, udp or icmp"},
		{"protocol unknown", "192.0.2.1/sctp", "tcp, udp or icmp"},
		{"icmp with a port", "192.0.2.1:80/icmp", "no ports"},
		{"icmp with all ports", "192.0.2.1:*/icmp", "no ports"},
		{"star inside", "www.*.example.com", "only as the first label"},
		{"star in a label", "w*.example.com", "only as the first label"},
		{"two stars", "*.*.example.com", "only as the first label"},
		{"star and dot alone", "*.", "only as the first label"},
		{"empty label", "example..com", "labels"},
		{"dot in front", ".example.com", "labels"},
		{"dot alone", ".", "labels"},
		{"long label", strings.Repeat("a", 64) + ".example", "labels"},
		{"long name", strings.Repeat("a.", 127) + "aa", "253 bytes"},
		{"letters beyond ASCII", "bücher.example", "xn--"},
		{"letters beyond ASCII, in the protocol", "example.com/\u0130cmp", "a name without a prefix length"},
		{"digits beyond ASCII", "192.0.2.\u0661", "xn--"},
		{"all with a final dot", "all.", `"all" for every address`},
		{"URL", "https://example.com/", "like example.com:443"},
		{"user", "user@example.com", "labels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := ParseRule(true, c.in)
			var bad *RuleError
			if !errors.As(err, &bad) {
				t.Fatalf("%q is read as %q, %v", c.in, r, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not say %q", err, c.want)
			}
		})
	}
}

func TestHandMadeRule(t *testing.T) {
	net24 := netip.MustParsePrefix("192.0.2.0/24")
	for _, c := range []struct {
		name string
		rule Rule
		want string // "": an error
	}{
		{"zero", Rule{}, ""},
		{"two destinations", Rule{All: true, Name: "example.com"}, ""},
		{"host bits", Rule{Prefix: netip.MustParsePrefix("192.0.2.1/24")}, ""},
		{"a protocol that rules don't know", Rule{Prefix: net24, Protocol: 47}, ""},
		{"such a protocol, read as a prefix length", Rule{Prefix: netip.MustParsePrefix("2001:db8::/128"), Protocol: 47}, ""},
		{"a port in the name", Rule{Name: "example.com:80"}, ""},
		{"an address as name", Rule{Name: "192.0.2.1"}, ""},
		{"all as name", Rule{Name: "all"}, ""},
		{"port 0", Rule{All: true, Ports: []PortRange{{0, 80}}}, ""},
		{"ports out of order", Rule{All: true, Ports: []PortRange{{90, 91}, {80, 80}}}, "all:80,90-91"},
		{"no ports, but a list", Rule{All: true, Ports: []PortRange{}}, "all"},
		{"ICMPv6", Rule{All: true, Protocol: packet.ICMPv6}, "all/icmp"},
		{"upper case", Rule{Name: "Example.com."}, "example.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := c.rule.checked()
			switch {
			case err != nil && c.want != "":
				t.Fatal(err)
			case err == nil && r.String() != c.want:
				t.Errorf("taken as %q, want %q", r, c.want)
			}
		})
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"all", "192.0.2.0/24:80-90,443/tcp", "[2001:db8::/32]:443", "*.example.com/icmp", "[2001:db8::]/32:1", "10.1:0", "::ffff:1.2.3.4/97", "[::1]/tcp"} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, s string, allow bool) {
		r, err := ParseRule(allow, s)
		if err != nil {
			return
		}
		again, err := ParseRule(allow, r.String())
		if err != nil || !again.equal(r) {
			t.Fatalf("%q is read as %q, which is read as %q, %v", s, r, again, err)
		}
		text, err := Rules{Rules: []Rule{r}}.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if file, err := Parse("f", bytes.NewReader(text)); err != nil || len(file.Rules) != 1 || !file.Rules[0].equal(r) {
			t.Fatalf("%q is read as %v, %v", text, file, err)
		}
	})
}
