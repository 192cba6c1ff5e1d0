// Package dnsname compares domain names and writes them as printable text.
//
// # Theory of operation
//
// DNS compares names byte by byte and ignores the case of A to Z alone (RFC 4343
// section 3). The Unicode functions of package strings don't do that: they make k
// of U+212A KELVIN SIGN, and U+FFFD of every byte that is not UTF-8, so names of
// different owners become equal. This package folds ASCII letters and leaves all
// other bytes as they are.
//
// A label may hold any byte, a line feed or an escape sequence too. Of writes such
// bytes as \DDD (RFC 1035 section 5.1), so that the result can be printed and two
// different names never have the same text.
//
// # Limits
//
// The package does not check lengths and labels; golang.org/x/net/dns/dnsmessage
// does, and refuses labels that hold a dot. Names with other letters than ASCII
// (RFC 5890) must be in their xn-- form.
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
	for i := range len(s) {
		if isUpper(s[i]) {
			b := []byte(s)
			for ; i < len(b); i++ {
				b[i] = lower(b[i])
			}
			return string(b)
		}
	}
	return s
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }

func lower(c byte) byte {
	if isUpper(c) {
		return c + 'a' - 'A'
	}
	return c
}

// Fold returns name in lower case, without the final dot: the form in which rules
// have it.
func Fold(name string) string { return Lower(strings.TrimSuffix(name, ".")) }

// Equal reports whether a and b are the same name, both with a final dot or both
// without it.
func Equal(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

// Of returns the folded name whose labels hold the bytes of raw and are divided by
// its dots. Bytes that are no visible ASCII character, and backslashes, come out as
// \DDD.
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
