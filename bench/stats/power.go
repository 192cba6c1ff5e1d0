package stats

import (
	"math"
	"sort"

	moremath "github.com/aclements/go-moremath/stats"
)

// Power is the share of runs in which a difference must be found to count as one that is found.
const Power = 0.9

// mostBlocks bounds BlocksFor.
const mostBlocks = 100_000

// Spread returns the standard deviation of the logarithm of a cell's values, about its relative standard deviation. The
// effects of blocks are removed first, as CompareBlocks does. It comes from the median absolute deviation: a few values
// far off count no more than in a rank test. It is NaN with fewer than three values, or one that is not positive.
//
// The factor n/(n−0.8) corrects for few values: C. Croux and P. J. Rousseeuw, Time-efficient algorithms for two highly
// robust estimators of scale (1992).
func Spread(points []Point, others [][]Point) float64 {
	xs := removeEffects(points, blockEffects(others))
	if len(xs) < 3 || !positive(xs) {
		return math.NaN()
	}
	m, _ := Median(xs)
	for i, x := range xs {
		xs[i] = math.Abs(math.Log(x / m))
	}
	mad, _ := Median(xs)
	n := float64(len(xs))
	return normalMAD * mad * n / (n - 0.8)
}

// normalMAD is the standard deviation of a normal distribution over its median absolute deviation.
const normalMAD = 1.4826

// RatioFor returns the least ratio above 1 that the test of Compare finds in Power of all runs with n values a side, if it
// is the least significant of so many tests that Holm corrects. The values' logarithms are normal with the standard
// deviation spread. It is +Inf if no test of so few values can be significant.
//
// It is that of a t test of values with a variance π/3 times as large, which is the efficiency of the rank test: E. L.
// Lehmann, Nonparametrics (1975), chapter 2.
func RatioFor(n int, spread float64, tests int) float64 {
	if n < fewestForLevel(tests) {
		return math.Inf(1)
	}
	quantile := moremath.InvCDF(moremath.TDist{V: float64(2*n - 2)})
	both := quantile(1-(1-Confidence)/2/float64(max(1, tests))) + quantile(Power)
	few := 1 + 0.5/float64(n) // the levels of an exact test come in steps; found by simulation
	return math.Exp(spread * both * few * math.Sqrt(2/float64(n)*math.Pi/3))
}

// BlocksFor is the inverse of RatioFor: the least number of values a side that finds a ratio. It is 0 if the ratio is 1, or
// more than mostBlocks are needed.
func BlocksFor(ratio, spread float64, tests int) int {
	ratio = math.Exp(math.Abs(math.Log(ratio)))
	n := 1 + sort.Search(mostBlocks, func(i int) bool { return RatioFor(i+1, spread, tests) <= ratio })
	if n > mostBlocks || ratio == 1 {
		return 0
	}
	return n
}

// fewestForLevel returns the number of values a side below which no test can be significant.
func fewestForLevel(tests int) int {
	n := 2
	for float64(max(1, tests))*LeastP(n, n) >= 1-Confidence {
		n++
	}
	return n
}
