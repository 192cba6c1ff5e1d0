package columns

import (
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// ofRune returns the number of terminal columns that r occupies.
func ofRune(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Of returns the number of terminal columns that s occupies.
func Of(s string) int {
	n := 0
	for _, r := range s {
		n += ofRune(r)
	}
	return n
}

// Clip shortens s to at most n columns, the last of which is an ellipsis.
func Clip(s string, n int) string {
	if Of(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	used := 0
	for i, r := range s {
		if used+ofRune(r) > n-1 {
			return s[:i] + "…"
		}
		used += ofRune(r)
	}
	return s
}

// Pad fills s with blanks to n columns, on the left if right is set.
func Pad(s string, n int, right bool) string {
	blanks := strings.Repeat(" ", max(0, n-Of(s)))
	if right {
		return blanks + s
	}
	return s + blanks
}

// Wrap breaks text between words into lines of at most n columns, the first of at most
// first. A longer word is clipped.
func Wrap(text string, first, n int) []string { return wrap(text, first, n, Clip) }

// Break breaks text between words into lines of at most n columns. A longer word stays
// whole, so that it can be pasted.
func Break(text string, n int) []string { return wrap(text, n, n, whole) }

// whole is a fit function that never shortens a word.
func whole(word string, _ int) string { return word }

func wrap(text string, first, n int, fit func(word string, room int) string) []string {
	var lines []string
	line, room := "", first
	for _, word := range strings.Fields(text) {
		if line != "" && Of(line)+1+Of(word) > room {
			lines = append(lines, line)
			line, room = "", n
		}
		if line != "" {
			line += " "
		}
		line += fit(word, room)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Plural returns a count and its noun: "1 link", "3 links".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
