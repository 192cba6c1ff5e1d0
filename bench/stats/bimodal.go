package stats

import (
	"math"
	"slices"
)

// The thresholds of Bimodal. Tests bound the false alarms that they cause: for 8
// values at most 0.5 % if they are uniform, the worst case for this test among
// distributions without a long tail.
const (
	bimodalAlpha = 0.005
	bimodalMin   = 6    // values; five would need a gap of 0.88 of the range
	modeMin      = 2    // values in each mode, and a fifth of all: a few stray values are not a mode
	modeRatio    = 1.10 // between the modes' medians: below it the median stands for both
)

// Modes are two clusters of values.
type Modes struct {
	Low, High   float64 // their medians, in the unit of the values
	NLow, NHigh int     // how many values are in each
	P           float64 // upper bound on the chance of such a gap in values without modes
}

// Bimodal reports whether values fall into two clusters with nothing between.
//
// The statistic is the largest gap between neighbours (of logarithms, if all values
// are positive) with at least two values and a fifth of all on either side, as a
// share g of the whole range. For n values that are uniform over their range, the
// chance of such a gap is at most m·(1−g)ⁿ⁻², where m is the number of gaps
// considered (Pyke 1965, and the union bound). Bimodal reports true if that is below
// 0.5 % and the modes are at least 10 % apart.
//
// It finds modes that are clearly apart, as those of a sender and a receiver that
// share a processor or not. It misses modes that overlap and modes of few values.
// For fewer than six values it reports false.
func Bimodal(values []float64) (Modes, bool) {
	n := len(values)
	if n < bimodalMin {
		return Modes{}, false
	}
	xs := slices.Sorted(slices.Values(values))
	position := slices.Clone(xs)
	if positive(xs) {
		for i, x := range xs {
			position[i] = math.Log(x)
		}
	}
	split, gap, least := 0, 0.0, max(modeMin, (n+4)/5)
	for i := least; i <= n-least; i++ {
		if g := position[i] - position[i-1]; g > gap {
			split, gap = i, g
		}
	}
	span := position[n-1] - position[0]
	if gap == 0 || span == 0 {
		return Modes{}, false
	}
	considered := float64(n - 2*least + 1)
	m := Modes{Low: middle(xs[:split]), High: middle(xs[split:]), NLow: split, NHigh: n - split,
		P: min(1, considered*math.Pow(1-gap/span, float64(n-2)))}
	return m, m.P < bimodalAlpha && m.High >= m.Low+(modeRatio-1)*math.Abs(m.Low)
}
