// Package spell finds the known word that somebody probably meant by an unknown
// one: for "unknown preset", "unknown network" and "unknown flag".
package spell

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Nearest is the word of known that differs from word by the fewest edits
// (insert, delete, replace, swap neighbours), the first of them where several
// do; "" when none is near enough to be worth suggesting: more than a third of
// the longer word would have to change. A word that another one begins with
// counts as near.
func Nearest(word string, known []string) string {
	word = strings.ToLower(word)
	best, bestEdits := "", -1
	for _, k := range known {
		e := edits(word, strings.ToLower(k))
		if bestEdits < 0 || e < bestEdits {
			best, bestEdits = k, e
		}
	}
	if bestEdits >= 0 && bestEdits <= max(len(word), len(best))/3 {
		return best
	}
	if len(word) >= 2 {
		for _, k := range known {
			if strings.HasPrefix(strings.ToLower(k), word) {
				return k
			}
		}
	}
	return ""
}

// Hint asks whether the nearest known word was meant, or lists all of them where
// none is near; "" when none is known.
func Hint(word string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	if n := Nearest(word, known); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "known: " + strings.Join(known, ", ")
}

// Order is a copy of known with the words that differ least from word first;
// words that are equally near keep their order.
func Order(word string, known []string) []string {
	word = strings.ToLower(word)
	out := slices.Clone(known)
	slices.SortStableFunc(out, func(a, b string) int {
		return cmp.Compare(edits(word, strings.ToLower(a)), edits(word, strings.ToLower(b)))
	})
	return out
}

// edits is the optimal string alignment distance of two words, in bytes.
func edits(a, b string) int {
	var before []int // the row for i-2
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
