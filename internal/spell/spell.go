// Package spell suggests the known word that was probably meant by an unknown one, for
// errors such as "unknown preset", "unknown network" and "unknown flag".
package spell

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Nearest returns the word of known that differs from word by the fewest edits (insert,
// delete, replace, swap neighbours), the first one if there are several. It returns "" if
// more than a third of the longer word would have to change and no known word begins with
// word.
func Nearest(word string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	word = strings.ToLower(word)
	best := Order(word, known)[0]
	if edits(word, strings.ToLower(best)) <= max(len(word), len(best))/3 {
		return best
	}
	i := slices.IndexFunc(known, func(k string) bool { return strings.HasPrefix(strings.ToLower(k), word) })
	if i < 0 || len(word) < 2 {
		return ""
	}
	return known[i]
}

// Hint asks whether the nearest known word was meant. If none is near, it lists all known
// words, sorted unless they are numbers. It returns "" if known is empty.
func Hint(word string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	if n := Nearest(word, known); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	if !slices.ContainsFunc(known, startsWithDigit) {
		known = slices.Sorted(slices.Values(known))
	}
	return "known: " + strings.Join(known, ", ")
}

func startsWithDigit(s string) bool { return s != "" && '0' <= s[0] && s[0] <= '9' }

// Order returns a copy of known, sorted by the number of edits from word. Words that are
// equally near keep their order.
func Order(word string, known []string) []string {
	word = strings.ToLower(word)
	out := slices.Clone(known)
	slices.SortStableFunc(out, func(a, b string) int {
		return cmp.Compare(edits(word, strings.ToLower(a)), edits(word, strings.ToLower(b)))
	})
	return out
}

// edits returns the optimal string alignment distance of two words, in bytes.
func edits(a, b string) int {
	var before []int // row i-2
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
