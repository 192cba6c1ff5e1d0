package link

import (
	"cmp"
	"maps"
	"slices"
)

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// nearestFirst orders words by their likeness to word, equals as they were.
func nearestFirst(word string, words []string) []string {
	out := slices.Clone(words)
	slices.SortStableFunc(out, func(a, b string) int {
		return cmp.Compare(distance(word, a), distance(word, b))
	})
	return out
}

// distance is Levenshtein's: how many bytes to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
