package stats

import (
	"math"
	"slices"
)

// The gates of Bimodal. The tests hold the false alarms that come of them:
// for 8 values at most 0.5 % if they are uniform, the worst case for this test
// among distributions without a long tail.
const (
	bimodalAlpha = 0.005
	bimodalMin   = 6    // values; with five a gap of 0.88 of the range would be needed
	modeMin      = 2    // values in each mode, and a fifth of all: a few stray values are no mode
	modeRatio    = 1.10 // between the modes' medians: below it a reader loses nothing by the median
)

// Modes are the two clusters of values that Bimodal found.
type Modes struct {
	Low, High   float64 // their medians, in the unit of the values
	NLow, NHigh int     // how many values are in each
	P           float64 // chance of such a gap in values without modes, at most
}

// Bimodal tells whether values fall into two clusters with nothing between. The
// statistic is the largest gap between neighbours (of logarithms, if all values
// are positive) that has at least two values and a fifth of all on either side,
// as a share g of the whole range. Of n values that are uniform over their range the chance of such a
// gap is at most m·(1−g)ⁿ⁻², with m the number of gaps looked at (Pyke 1965, and
// the union bound). It says yes when that is below 0.5 % and the modes are at
// least 10 % apart. It looks for modes that are clearly apart, as those of a
// sender and a receiver that share a processor or not; it does not see modes
// that overlap, nor a mode of few values. Fewer than six values: always no.
func Bimodal(values []float64) (Modes, bool) {
	n := len(values)
	if n < bimodalMin {
		return Modes{}, false
	}
	xs := slices.Sorted(slices.Values(values))
	at := xs
	if positive(xs) {
		at = make([]float64, n)
		for i, x := range xs {
			at[i] = math.Log(x)
		}
	}
	split, gap, least := 0, 0.0, max(modeMin, (n+4)/5)
	for i := least; i <= n-least; i++ {
		if g := at[i] - at[i-1]; g > gap {
			split, gap = i, g
		}
	}
	span := at[n-1] - at[0]
	if gap == 0 || span == 0 {
		return Modes{}, false
	}
	looked := float64(n - 2*least + 1)
	m := Modes{Low: middle(xs[:split]), High: middle(xs[split:]), NLow: split, NHigh: n - split,
		P: min(1, looked*math.Pow(1-gap/span, float64(n-2)))}
	return m, m.P < bimodalAlpha && m.High >= m.Low+(modeRatio-1)*math.Abs(m.Low)
}
