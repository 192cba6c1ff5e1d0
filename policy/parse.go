package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"cleat/internal/dnsname"
	"cleat/packet"

	"golang.org/x/net/idna"
)

const (
	wantRule  = "CIDR|name[:ports][/proto], like 192.0.2.0/24, example.com:443 or [2001:db8::/32]:80-90/tcp"
	wantPorts = "1 to 65535, a range like 80-90, a list like 80,443, or *"
	wantProto = "tcp, udp or icmp"
)

// ParseRule parses the value of --allow or --deny:
//
//	CIDR|name[:ports][/proto]
//
// A bare address is a network of one. "all" and "any" are every address. Ports are a
// port, a range, a list of both, or *. IPv6 needs brackets before ports:
// [2001:db8::1]:443, [2001:db8::/32]:443. The error is a *RuleError.
func ParseRule(allow bool, s string) (Rule, error) {
	r := Rule{Allow: allow}
	bad := func(part, want string) (Rule, error) { return Rule{}, &RuleError{s, part, want} }
	if s == "" || strings.ContainsFunc(s, notPrintable) {
		return bad(s, wantRule)
	}
	if scheme, name, ok := strings.Cut(s, "://"); ok {
		return bad(scheme+"://", "the name and a port without a scheme, like "+strings.TrimRight(name, "/")+":443")
	}
	rest := s
	if i := strings.LastIndexByte(s, '/'); i >= 0 && i+1 < len(s) && isLetter(s[i+1]) {
		proto, ok := protocols[dnsname.Lower(s[i+1:])]
		if !ok {
			return bad(s[i+1:], wantProto)
		}
		r.Protocol, rest = proto, s[:i]
	}
	dest, ports, hasPorts, want := splitPorts(rest)
	if want == "" {
		want = r.parseDestination(dest)
	}
	if want != "" {
		return bad(dest, want)
	}
	if !hasPorts {
		return r, nil
	}
	if r.Protocol == packet.ICMP {
		return bad(ports, "no ports: icmp has none")
	}
	if ports == "*" {
		return r, nil
	}
	list, wrong := parsePorts(ports)
	if list == nil {
		return bad(wrong, wantPorts)
	}
	r.Ports = list
	return r, nil
}

var protocols = map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP, "icmp": packet.ICMP}

func isLetter(c byte) bool     { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func notPrintable(c rune) bool { return c <= ' ' || c == 0x7f }
func isDigits(s string) bool   { return s != "" && strings.Trim(s, "0123456789") == "" }
func notASCII(c rune) bool     { return c > 0x7e }
func notNameLetter(c rune) bool {
	return !(c < 0x7f && isLetter(byte(c)) || '0' <= c && c <= '9' || c == '-' || c == '_')
}

// endsInNumber distinguishes IPv4 addresses, and what was meant as one, from names, which
// never end in a number.
func endsInNumber(s string) bool {
	s = strings.TrimSuffix(s, ".")
	return isDigits(s[strings.LastIndexByte(s, '.')+1:])
}

// splitPorts splits a rule without its protocol into destination and ports. On failure,
// want describes a valid form, and dest is the part that is wrong.
func splitPorts(s string) (dest, ports string, has bool, want string) {
	if inside, ok := strings.CutPrefix(s, "["); ok {
		inside, after, closed := strings.Cut(inside, "]")
		if !closed || strings.ContainsAny(inside+after, "[]") {
			return s, "", false, "one address in one pair of brackets"
		}
		bits, ports, has := strings.Cut(after, ":") // [2001:db8::]/32:443 is accepted, too
		if bits != "" && bits[0] != '/' {
			return bits, "", false, "ports after a colon"
		}
		if !strings.Contains(inside, ":") {
			return s, "", false, "brackets around IPv6 addresses only"
		}
		return inside + bits, ports, has, ""
	}
	if strings.Count(s, ":") < 2 {
		dest, ports, has = strings.Cut(s, ":")
		return dest, ports, has, ""
	}
	if i := strings.LastIndexByte(s, ':'); strings.Contains(s[:i], "/") {
		return s, "", false, "brackets before ports, [" + s[:i] + "]" + s[i:]
	}
	return s, "", false, ""
}

// parseDestination parses an address, a network or a name into r. On failure it returns a
// description of a valid form, else "".
func (r *Rule) parseDestination(s string) (want string) {
	switch dnsname.Lower(s) {
	case "":
		return wantRule
	case "all", "any":
		r.All = true
		return ""
	case "*", "all.", "any.": // these names would be confused with all addresses
		return `"all" for every address`
	}
	if strings.ContainsAny(s, ":/") || endsInNumber(s) {
		return r.parsePrefix(s)
	}
	return r.parseName(s)
}

func (r *Rule) parsePrefix(s string) (want string) {
	p, err := netip.ParsePrefix(s)
	if a, aerr := netip.ParseAddr(s); aerr == nil {
		if a.Zone() != "" {
			return "an address without a zone: a link-local address is the same on every link"
		}
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		if name, _, ok := strings.Cut(s, "/"); ok && !endsInNumber(name) && new(Rule).parseName(name) == "" {
			return "a name without a prefix length, or a network like 192.0.2.0/24"
		}
		return "an address, a network like 192.0.2.0/24 or 2001:db8::/32, or a name"
	}
	if a := p.Addr(); a.Is4In6() {
		if p.Bits() < 96 {
			return "IPv4 and IPv6 networks in separate rules"
		}
		return "plain IPv4: " + Rule{Prefix: netip.PrefixFrom(a.Unmap(), p.Bits()-96)}.String()
	}
	if p != p.Masked() {
		return p.Masked().String() + " for the network, or " + p.Addr().String() + " for the address"
	}
	r.Prefix = p
	return ""
}

// parseName parses a domain name, or one with "*." in front (RFC 1035 section 2.3.4:
// labels of 1 to 63 bytes, 253 in all; underscores as in RFC 8552).
func (r *Rule) parseName(s string) (want string) {
	name := dnsname.Fold(s)
	base := strings.TrimPrefix(name, "*.")
	switch {
	case strings.ContainsFunc(s, notASCII):
		return wantASCII(s)
	case strings.Contains(base, "*"):
		return "* only as the first label, like *.example.com"
	case len(name) > 253:
		return "a name of at most 253 bytes"
	}
	for label := range strings.SplitSeq(base, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, notNameLetter) {
			return "a name whose labels have 1 to 63 letters, digits, - or _"
		}
	}
	r.Name = name
	return ""
}

// wantASCII returns how DNS spells a name with letters beyond ASCII (RFC 5890). Such
// names are not converted silently: a letter may only look like what the reader of the
// rule expects.
func wantASCII(name string) string {
	base, wild := strings.CutPrefix(name, "*.")
	ascii, err := idna.Lookup.ToASCII(base)
	if err != nil || !utf8.ValidString(name) || strings.ContainsFunc(ascii, notASCII) || new(Rule).parseName(ascii) != "" {
		return "the ASCII form of the name, which begins with xn--"
	}
	if wild {
		ascii = "*." + ascii
	}
	return "the ASCII form of the name, " + ascii
}

// parsePorts parses a list of ports. On failure it returns nil and the part that is
// wrong.
func parsePorts(s string) (list []PortRange, wrong string) {
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, aok := parsePort(first)
		b, bok := parsePort(last)
		if !aok || !bok || a > b {
			return nil, part
		}
		list = append(list, PortRange{a, b})
	}
	return slices.Clip(sorted(list)), ""
}

func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && isDigits(s)
}
