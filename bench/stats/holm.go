package stats

import (
	"cmp"
	"slices"
)

// Holm corrects the p values of a family of tests (Holm 1979). Rejecting those whose
// corrected value is below α keeps the chance of any false rejection below α. The
// result has the order of ps; values are capped at 1.
func Holm(ps []float64) []float64 {
	order := make([]int, len(ps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ps[a], ps[b]) })
	adjusted := make([]float64, len(ps))
	floor := 0.0
	for rank, i := range order {
		floor = max(floor, min(1, float64(len(ps)-rank)*ps[i]))
		adjusted[i] = floor
	}
	return adjusted
}
