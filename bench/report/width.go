package report

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// runeColumns is how many terminal columns r takes.
func runeColumns(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// columns is how many terminal columns s takes.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

// plain replaces what could move a terminal's cursor or switch its modes, and
// joins lines.
func plain(s string) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// clip shortens s to at most n columns, the last one an ellipsis.
func clip(s string, n int) string {
	if columns(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	used := 0
	for i, r := range s {
		if used+runeColumns(r) > n-1 {
			return s[:i] + "…"
		}
		used += runeColumns(r)
	}
	return s
}

// pad fills s with blanks to n columns, on the left when right is set.
func pad(s string, n int, right bool) string {
	blanks := strings.Repeat(" ", max(0, n-columns(s)))
	if right {
		return blanks + s
	}
	return s + blanks
}

// wrap breaks text between words into lines of at most n columns, the first of
// at most first; a word that is longer by itself is clipped.
func wrap(text string, first, n int) []string {
	var lines []string
	line, room := "", first
	for _, word := range strings.Fields(text) {
		if line != "" && columns(line)+1+columns(word) > room {
			lines = append(lines, line)
			line, room = "", n
		}
		if line != "" {
			line += " "
		}
		line += clip(word, room)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
