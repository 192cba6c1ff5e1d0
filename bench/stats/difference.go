package stats

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/aclements/go-moremath/mathx"
	moremath "github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"
)

// Difference is the result of comparing two sets of values.
type Difference struct {
	Ratio    float64  // median of the second over median of the first; NaN if either has a value ≤ 0
	Interval Interval // of the ratio; NaN if Ratio is
	P        float64  // two-sided; 1 if nothing could be tested
}

// Compare tests whether two independent sets of values differ.
func Compare(first, second []float64) Difference {
	d := Difference{P: mannWhitney(first, second), Ratio: math.NaN(), Interval: Interval{Low: math.NaN(), High: math.NaN()}}
	if !positive(first) || !positive(second) {
		return d
	}
	m1, _ := Median(first)
	m2, _ := Median(second)
	d.Ratio = m2 / m1
	d.Interval = ratioInterval(first, second).include(d.Ratio)
	return d
}

// mannWhitney returns the two-sided p value; 1 if a side is empty or all values are
// equal.
func mannWhitney(first, second []float64) float64 {
	t := benchmath.DefaultThresholds
	c := benchmath.AssumeNothing.Compare(
		benchmath.NewSample(slices.Clone(first), &t), benchmath.NewSample(slices.Clone(second), &t))
	return min(c.P, 1)
}

// positive reports whether there are values and all are finite and above zero, so
// that ratios and logarithms exist.
func positive(values []float64) bool {
	return len(values) > 0 && !slices.ContainsFunc(values, func(x float64) bool { return !(x > 0) || math.IsInf(x, 1) })
}

// ratioInterval inverts the Mann–Whitney test for the ratio second over first.
func ratioInterval(first, second []float64) Interval {
	return invert(first, second, func(x, y float64) float64 { return y / x })
}

// DifferenceInterval inverts the Mann–Whitney test for the difference second minus first, for
// values that may be zero. Without values it is NaN, with level 0.
func DifferenceInterval(first, second []float64) Interval {
	if len(first) == 0 || len(second) == 0 {
		return Interval{Low: math.NaN(), High: math.NaN()}
	}
	return invert(first, second, func(x, y float64) float64 { return y - x })
}

// invert inverts the Mann–Whitney test. The interval is the range of what change returns for
// all pairs, without the k−1 smallest and largest, where k is the largest number that keeps
// the level.
func invert(first, second []float64, change func(x, y float64) float64) Interval {
	changes := make([]float64, 0, len(first)*len(second))
	for _, x := range first {
		for _, y := range second {
			changes = append(changes, change(x, y))
		}
	}
	slices.Sort(changes)
	k, level := trimmedPairs(len(first), len(second))
	return Interval{Low: changes[k-1], High: changes[len(changes)-k], Level: level}
}

// trimmed has the results of trimmedPairs by its arguments: they take 40 ms for 24 values a side.
var trimmed sync.Map

type trimmedResult struct {
	k     int
	level float64
}

// trimmedPairs returns which of the sorted pairs bound the interval, counted
// from 1 from both ends, and the level of that interval. It is safe for concurrent use.
func trimmedPairs(n1, n2 int) (k int, level float64) {
	key := [2]int{n1, n2}
	if known, ok := trimmed.Load(key); ok {
		r := known.(trimmedResult)
		return r.k, r.level
	}
	k, level = searchTrimmed(n1, n2)
	trimmed.Store(key, trimmedResult{k, level})
	return k, level
}

func searchTrimmed(n1, n2 int) (k int, level float64) {
	below := uDistribution(n1, n2)
	k, level = 1, 1-2*below(0)
	for 2*(k+1) <= n1*n2 && 1-2*below(k) >= Confidence {
		level = 1 - 2*below(k)
		k++
	}
	return k, max(level, 0)
}

// uDistribution returns P(U ≤ u) under the null hypothesis without ties. It is exact
// up to 50 values a side, as the test is; beyond that it is the normal approximation.
func uDistribution(n1, n2 int) func(u int) float64 {
	if n1 <= moremath.MannWhitneyExactLimit && n2 <= moremath.MannWhitneyExactLimit {
		d := moremath.UDist{N1: n1, N2: n2}
		return func(u int) float64 { return d.CDF(float64(u)) }
	}
	pairs := float64(n1) * float64(n2)
	normal := moremath.NormalDist{Mu: pairs / 2, Sigma: math.Sqrt(pairs * float64(n1+n2+1) / 12)}
	return func(u int) float64 { return normal.CDF(float64(u) + 0.5) }
}

// LeastP returns the smallest p value that Compare can return for so many values without
// ties: that of two sets which don't overlap. It is 1 if a set is empty.
func LeastP(n1, n2 int) float64 {
	if n1 == 0 || n2 == 0 {
		return 1
	}
	return min(1, 2*uDistribution(n1, n2)(0))
}

// Estimate is a mean with its standard error, for values that were not kept.
type Estimate struct {
	Mean, StdErr float64
	N            int
}

// CompareEstimates tests two independent estimates by Welch's t test on the
// logarithms of the means, with the errors propagated to first order. It is for
// files that hold no values. Unlike Compare it assumes normal errors. The ratio is
// that of the means. P is 1 if a side has fewer than two values.
func CompareEstimates(first, second Estimate) Difference {
	d := Difference{P: 1, Ratio: math.NaN(), Interval: Interval{Low: math.NaN(), High: math.NaN()}}
	if !(first.Mean > 0) || !(second.Mean > 0) {
		return d
	}
	d.Ratio = second.Mean / first.Mean
	d.Interval = Interval{Low: d.Ratio, High: d.Ratio}
	if first.N < 2 || second.N < 2 {
		return d
	}
	v1 := math.Pow(first.StdErr/first.Mean, 2)
	v2 := math.Pow(second.StdErr/second.Mean, 2)
	shift, spread := math.Log(d.Ratio), math.Sqrt(v1+v2)
	if spread == 0 {
		if shift != 0 {
			d.P = 0
		}
		d.Interval.Level = 1
		return d
	}
	freedom := (v1 + v2) * (v1 + v2) / (v1*v1/float64(first.N-1) + v2*v2/float64(second.N-1))
	t := shift / spread
	d.P = mathx.BetaInc(freedom/(freedom+t*t), freedom/2, 0.5) // both tails of Student's t
	half := moremath.InvCDF(moremath.TDist{V: freedom})(1-(1-Confidence)/2) * spread
	d.Interval = Interval{Low: math.Exp(shift - half), High: math.Exp(shift + half), Level: Confidence}
	return d
}

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
