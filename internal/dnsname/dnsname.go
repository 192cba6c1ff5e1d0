// Package dnsname compares domain names and writes them as printable text.
//
// # Theory of operation
//
// DNS compares names byte by byte and ignores the case of A to Z only (RFC 4343 section
// 3). The Unicode functions of package strings differ: they map U+212A KELVIN SIGN to k,
// and every byte that is not UTF-8 to U+FFFD, so names of different owners become equal.
// This package folds ASCII letters and leaves all other bytes alone.
//
// A label may hold any byte, including a line feed or an escape sequence. Of writes such
// bytes as \DDD (RFC 1035 section 5.1), so that the result is printable and different
// names have different text.
//
// # Limits
//
// The package does not check lengths and labels; golang.org/x/net/dns/dnsmessage does,
// and refuses labels that contain a dot. Internationalized names (RFC 5890) must be in
// their xn-- form.
//
// # Example
//
//	dnsname.Fold("WWW.Example.COM.")      // "www.example.com"
//	dnsname.Of("evil\x1b.example.")       // `evil\027.example`
package dnsname

import (
	"fmt"
	"strings"
)

// Lower returns s with A to Z in lower case.
func Lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// Fold returns name in lower case and without the final dot, as names appear in rules.
func Fold(name string) string { return Lower(strings.TrimSuffix(name, ".")) }

// Equal reports whether a and b are the same name. Both must have a final dot, or
// neither.
func Equal(a, b string) bool { return Lower(a) == Lower(b) }

// Of returns the folded form of a name with the raw labels in raw, separated by its dots.
// Bytes that are not visible ASCII characters, and backslashes, are written as \DDD.
func Of(raw string) string {
	name := Fold(raw)
	if !strings.ContainsFunc(name, escaped) {
		return name
	}
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; escaped(rune(c)) {
			fmt.Fprintf(&b, `\%03d`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func escaped(c rune) bool { return c <= ' ' || c >= 0x7f || c == '\\' }
