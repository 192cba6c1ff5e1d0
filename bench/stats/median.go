package stats

import (
	"fmt"
	"math"
	"slices"

	moremath "github.com/aclements/go-moremath/stats"
)

// Confidence is the level that intervals reach or exceed if there are enough values.
// 1 − Confidence is the level of significance.
const Confidence = 0.95

// MinForInterval is the smallest number of values for which a median has an interval
// of at least 95 %: 1 − 2·2⁻⁶ = 96.9 %; with five values it is 93.75 %.
const MinForInterval = 6

// Interval is a confidence interval in the unit of its values. Level is what it
// covers, from 0 to 1; it is below Confidence if there are too few values.
type Interval struct {
	Low, High, Level float64
}

// include widens the interval to hold x.
func (i Interval) include(x float64) Interval {
	i.Low, i.High = min(i.Low, x), max(i.High, x)
	return i
}

// LevelText returns the level that intervals of some levels reach at least, as a percentage or
// a range: "95 %", "50–95 %". Levels of 0 are of no interval. It is "" without an interval.
func LevelText(levels ...float64) string {
	lo, hi := 1.0, 0.0
	for _, l := range levels {
		if l = min(l, Confidence); l > 0 {
			lo, hi = min(lo, l), max(hi, l)
		}
	}
	percent := func(level float64) int { return int(level*100 + 1e-9) } // never more than it covers
	switch {
	case hi == 0:
		return ""
	case percent(lo) == percent(hi):
		return fmt.Sprintf("%d %%", percent(lo))
	}
	return fmt.Sprintf("%d–%d %%", percent(lo), percent(hi))
}

// Median returns the median of the values and its interval by order statistics.
// Without values it returns NaN and level 0.
func Median(values []float64) (float64, Interval) {
	n := len(values)
	if n == 0 {
		return math.NaN(), Interval{Low: math.NaN(), High: math.NaN()}
	}
	xs := slices.Sorted(slices.Values(values))
	k, level := orderStatistic(n)
	return middle(xs), Interval{Low: xs[k-1], High: xs[n-k], Level: level}
}

// orderStatistic returns the largest k ≥ 1 for which the interval from the k-th
// smallest to the k-th largest of n values holds the median with at least
// Confidence, and that probability. If there is none, k is 1.
func orderStatistic(n int) (k int, level float64) {
	outside := math.Pow(2, -float64(n)) // P(fewer than 1 value below the median)
	level = 1 - 2*outside
	k = 1
	for j := 1; 2*(j+1) <= n; j++ {
		outside += math.Exp(logBinomial(n, j) - float64(n)*math.Ln2)
		if 1-2*outside < Confidence {
			break
		}
		k, level = j+1, 1-2*outside
	}
	return k, max(level, 0)
}

// logBinomial returns the logarithm of n choose k, which overflows long before it does.
func logBinomial(n, k int) float64 {
	logFactorial := func(n int) float64 { l, _ := math.Lgamma(float64(n) + 1); return l }
	return logFactorial(n) - logFactorial(k) - logFactorial(n-k)
}

// middle returns the median of sorted values.
func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return sorted[n/2-1] + (sorted[n/2]-sorted[n/2-1])/2
}

// MeanStdErr returns the mean and its standard error (the sample's standard deviation
// over √n). The error is 0 for fewer than two values; the mean is NaN for none.
func MeanStdErr(values []float64) (mean, stderr float64) {
	xs := slices.Sorted(slices.Values(values)) // sums of floats depend on the order
	if n := len(xs); n > 1 {
		stderr = moremath.StdDev(xs) / math.Sqrt(float64(n))
	}
	return moremath.Mean(xs), stderr
}
