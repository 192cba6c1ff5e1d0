package names

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// maxName is the longest name in wire format (RFC 1035 section 2.3.4).
const maxName = 255

var errName = errors.New("want labels of 1 to 63 visible characters, separated by dots, and at most 255 bytes")

// wireName returns a name in wire format (RFC 1035 section 3.1).
func wireName(name string) (string, error) {
	b := make([]byte, 0, len(name)+2)
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) {
			return "", errName
		}
		b = append(append(b, byte(len(label))), label...)
	}
	b = append(b, 0)
	if len(b) > maxName {
		return "", errName
	}
	return string(b), nil
}

func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '.' || c == '\\' })
}

// mustWire returns a name, which was checked, in wire format.
func mustWire(name string) string {
	w, err := wireName(name)
	if err != nil {
		panic("names: " + name + ": " + err.Error())
	}
	return w
}

// reverseName returns the name of an address in in-addr.arpa or ip6.arpa.
func reverseName(a netip.Addr) string {
	var b strings.Builder
	if a.Is4() {
		for _, n := range [4]byte(reversed(a)) {
			b.WriteString(strconv.Itoa(int(n)) + ".")
		}
		return b.String() + "in-addr.arpa"
	}
	for _, n := range reversed(a) {
		h := hex.EncodeToString([]byte{n})
		b.WriteString(h[1:] + "." + h[:1] + ".")
	}
	return b.String() + "ip6.arpa"
}

func reversed(a netip.Addr) []byte {
	b := a.AsSlice()
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return b
}

const (
	reverse4 = "\x07in-addr\x04arpa\x00"
	reverse6 = "\x03ip6\x04arpa\x00"
)

// reversePrefix returns the addresses that a name in wire format, in lower case, stands for.
// It reports whether there are any: the name is below in-addr.arpa or ip6.arpa.
func reversePrefix(name []byte) (netip.Prefix, bool) {
	var v4 []byte
	var v6 strings.Builder
	for at := 0; name[at] != 0; at += 1 + int(name[at]) {
		switch rest := string(name[at:]); rest {
		case reverse4:
			if len(v4) == 0 || len(v4) > 4 {
				return netip.Prefix{}, false
			}
			var b [4]byte
			for i, n := range v4 {
				b[len(v4)-1-i] = n
			}
			return netip.PrefixFrom(netip.AddrFrom4(b), 8*len(v4)), true
		case reverse6:
			return prefix6(v6.String())
		}
		label := string(name[at+1 : at+1+int(name[at])])
		if n, err := strconv.ParseUint(label, 10, 8); err == nil {
			v4 = append(v4, byte(n))
		}
		v6.WriteString(label)
	}
	return netip.Prefix{}, false
}

// prefix6 returns the prefix with these hexadecimal digits, the last one first.
func prefix6(digits string) (netip.Prefix, bool) {
	if digits == "" || len(digits) > 32 {
		return netip.Prefix{}, false
	}
	text := []byte(strings.Repeat("0", 32))
	for i := range len(digits) {
		text[len(digits)-1-i] = digits[i]
	}
	var b [16]byte
	if _, err := hex.Decode(b[:], text); err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), 4*len(digits)), true
}

// within reports whether a name in wire format is domain, or below it.
func within(name []byte, domain string) bool {
	for at := 0; at < len(name); at += 1 + int(name[at]) {
		if string(name[at:]) == domain {
			return true
		}
	}
	return false
}
