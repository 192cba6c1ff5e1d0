package summary

import (
	"strconv"
	"strings"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

// times returns a ratio for people.
func times(x float64) string {
	if x >= 0.1 && x < 100 {
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return cell.Digits(x)
}

// wrap wraps text to 80 columns. The first line begins with first, the others
// with rest.
func wrap(first, rest, text string) string { return columns.Paragraph(first, rest, text, 80) }

// enumerate joins words: "a", "a and b", "a, b and c".
func enumerate(words []string, conjunction string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
