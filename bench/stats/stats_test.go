package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// upTo returns 1…n, shuffled with a fixed seed.
func upTo(n int) []float64 {
	xs := make([]float64, n)
	for i, p := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		xs[i] = float64(p + 1)
	}
	return xs
}

func TestMedian(t *testing.T) {
	// Levels are 1 − 2·P(Binomial(n, ½) < k).
	tests := []struct {
		name             string
		values           []float64
		median, low, top float64
		level            float64
	}{
		{"one", []float64{7}, 7, 7, 7, 0},
		{"two", []float64{4, 2}, 3, 2, 4, 0.5},
		{"four", upTo(4), 2.5, 1, 4, 0.875},
		{"five is below 95 %", upTo(5), 3, 1, 5, 0.9375},
		{"six is the first above", upTo(6), 3.5, 1, 6, 0.96875},
		{"eight", upTo(8), 4.5, 1, 8, 1 - 2.0/256},
		{"nine leaves out the ends", upTo(9), 5, 2, 8, 1 - 20.0/512},
		{"ten", upTo(10), 5.5, 2, 9, 1 - 22.0/1024},
		{"twenty", upTo(20), 10.5, 6, 15, 0.958610},
		{"ties", []float64{3, 3, 3, 3, 3, 3, 3, 9}, 3, 3, 9, 1 - 2.0/256},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, ci := Median(tt.values)
			near(t, "median", m, tt.median, 0)
			near(t, "low", ci.Low, tt.low, 0)
			near(t, "high", ci.High, tt.top, 0)
			near(t, "level", ci.Level, tt.level, 1e-6)
		})
	}
	m, ci := Median(nil)
	if !math.IsNaN(m) || !math.IsNaN(ci.Low) || ci.Level != 0 {
		t.Errorf("median of nothing = %v %v", m, ci)
	}
}

func TestMedianIntervalCovers(t *testing.T) {
	// Of skewed values (exponential, median ln 2), 8 at a time: 99.2 % expected.
	r := rand.New(rand.NewPCG(3, 4))
	covered := 0
	const runs = 4000
	for range runs {
		xs := make([]float64, 8)
		for i := range xs {
			xs[i] = r.ExpFloat64()
		}
		if _, ci := Median(xs); ci.Low <= math.Ln2 && math.Ln2 <= ci.High {
			covered++
		}
	}
	near(t, "coverage", float64(covered)/runs, 1-2.0/256, 0.006)
}

func TestMeanStdErr(t *testing.T) {
	mean, se := MeanStdErr([]float64{2, 4, 4, 4, 5, 5, 7, 9})
	near(t, "mean", mean, 5, 1e-12)
	near(t, "standard error", se, math.Sqrt(32.0/7/8), 1e-12)
	if mean, se := MeanStdErr([]float64{3}); mean != 3 || se != 0 {
		t.Errorf("of one value: %v ± %v", mean, se)
	}
}

func TestHolm(t *testing.T) {
	tests := []struct {
		name     string
		ps, want []float64
	}{
		{"textbook", []float64{0.01, 0.04, 0.03, 0.005}, []float64{0.03, 0.06, 0.06, 0.02}},
		{"one", []float64{0.04}, []float64{0.04}},
		{"capped", []float64{0.9, 0.8}, []float64{1, 1}},
		{"none", nil, []float64{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Holm(tt.ps)
			for i := range tt.want {
				near(t, "p", got[i], tt.want[i], 1e-12)
			}
		})
	}
}

func TestCompareKnown(t *testing.T) {
	low, high := upTo(8), make([]float64, 8)
	for i, x := range low {
		high[i] = 10 * x
	}
	tests := []struct {
		name          string
		first, second []float64
		p, ratio      float64
	}{
		// 2/C(16,8): completely apart.
		{"apart", []float64{1, 2, 3, 4, 5, 6, 7, 8}, []float64{9, 10, 11, 12, 13, 14, 15, 16}, 2.0 / 12870, 12.5 / 4.5},
		// U = 2 of 9: (1+1+2) of 20 arrangements a side.
		{"three and three", []float64{1, 2, 4}, []float64{3, 5, 6}, 0.2, 2.5},
		{"equal", []float64{5, 5, 5}, []float64{5, 5, 5}, 1, 1},
		{"one and one", []float64{5}, []float64{6}, 1, 1.2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Compare(tt.first, tt.second)
			near(t, "p", d.P, tt.p, 1e-9)
			near(t, "ratio", d.Ratio, tt.ratio, 1e-12)
			if !(d.Interval.Low <= d.Ratio && d.Ratio <= d.Interval.High) {
				t.Errorf("interval %v does not hold the ratio %v", d.Interval, d.Ratio)
			}
		})
	}
	if d := Compare(low, nil); d.P != 1 || !math.IsNaN(d.Ratio) {
		t.Errorf("against nothing: %+v", d)
	}
	if d := Compare([]float64{0, 0, 0}, []float64{1, 2, 3}); !math.IsNaN(d.Ratio) {
		t.Errorf("ratio over zero: %v", d.Ratio)
	}
}

func TestRatioIntervalLevel(t *testing.T) {
	// 1 − 2·P(U ≤ k−1), from the table of U for 8 and 8: P(U ≤ 13) = 0.0249 (k = 14).
	k, level := trimmedPairs(8, 8)
	if k != 14 {
		t.Errorf("k = %d, want 14", k)
	}
	near(t, "level", level, 0.9501, 0.001)
	if k, level := trimmedPairs(3, 3); k != 1 || math.Abs(level-0.9) > 1e-9 {
		t.Errorf("3 and 3: k = %d, level %v; want 1 and 0.9", k, level)
	}
	if _, level := trimmedPairs(60, 60); level < 0.95 || level > 0.952 {
		t.Errorf("60 and 60: level %v", level)
	}
}

// TestCompareProperties checks that neither the order nor the unit of the values
// matters, that scaling one side scales the ratio, and that swapping inverts it.
func TestCompareProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		a, b := normals(r, 8, 100, 0.05), normals(r, 7, 103, 0.05)
		d := Compare(a, b)
		shuffled := slices.Clone(a)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if Compare(shuffled, b) != d {
			t.Fatal("another order of the values gives another result")
		}
		unit := Compare(scaled(a, 8), scaled(b, 8)) // a power of two: exact
		if unit.P != d.P || unit.Ratio != d.Ratio || unit.Interval != d.Interval {
			t.Fatalf("in another unit: %+v, want %+v", unit, d)
		}
		double := Compare(a, scaled(b, 2))
		near(t, "ratio", double.Ratio, 2*d.Ratio, 1e-12)
		near(t, "low", double.Interval.Low, 2*d.Interval.Low, 1e-12)
		back := Compare(b, a)
		near(t, "p", back.P, d.P, 1e-12)
		near(t, "inverse ratio", back.Ratio, 1/d.Ratio, 1e-12)
	}
}

func TestCompareEstimates(t *testing.T) {
	d := CompareEstimates(Estimate{100, 1, 8}, Estimate{110, 1.1, 8})
	near(t, "ratio", d.Ratio, 1.1, 1e-12)
	// t = ln 1.1 / √0.0002 = 6.739 with 14 degrees of freedom.
	near(t, "p", d.P, 9.6e-6, 1e-6)
	if !(d.Interval.Low > 1.06 && d.Interval.High < 1.14) {
		t.Errorf("interval %v", d.Interval)
	}
	if d := CompareEstimates(Estimate{100, 0, 1}, Estimate{200, 0, 1}); d.P != 1 {
		t.Errorf("single values differ with p = %v", d.P)
	}
}

// normals returns n values with a relative deviation around the middle.
func normals(r *rand.Rand, n int, middle, deviation float64) []float64 {
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = middle * math.Exp(deviation*r.NormFloat64())
	}
	return xs
}

func scaled(xs []float64, k float64) []float64 {
	ys := make([]float64, len(xs))
	for i, x := range xs {
		ys[i] = k * x
	}
	return ys
}

// run simulates 8 blocks of cells with the given medians, with a block effect common
// to all cells and noise for each.
func run(r *rand.Rand, blockDeviation, noise float64, medians ...float64) [][]Point {
	cells := make([][]Point, len(medians))
	for block := 1; block <= 8; block++ {
		effect := blockDeviation * r.NormFloat64()
		for i, m := range medians {
			cells[i] = append(cells[i], Point{block, m * math.Exp(effect+noise*r.NormFloat64())})
		}
	}
	return cells
}

// TestBlockEffects checks that a known effect is found, that noise is not taken for an
// effect, and that two other cells are too few.
func TestBlockEffects(t *testing.T) {
	shifted := func(n int, shifts ...float64) [][]Point {
		var cells [][]Point
		for c := range n {
			var points []Point
			for block, shift := range shifts {
				wiggle := 0.001 * float64((block*7+c*5)%3-1)
				points = append(points, Point{block + 1, float64(10+c) * math.Exp(shift+wiggle)})
			}
			cells = append(cells, points)
		}
		return cells
	}
	effects := blockEffects(shifted(5, 0, 0.2, -0.2, 0.1, -0.1))
	for block, want := range map[int]float64{1: 0, 2: 0.2, 3: -0.2, 4: 0.1, 5: -0.1} {
		near(t, "effect", effects[block], want, 0.002)
	}
	if got := blockEffects(shifted(2, 0, 0.2, -0.2)); got != nil {
		t.Errorf("from two cells: %v", got)
	}
	r := rand.New(rand.NewPCG(15, 16))
	nothing := 0
	for range 200 {
		effects := blockEffects(run(r, 0, 0.02, 1, 2, 3, 4, 5, 6))
		if effects == nil {
			nothing++
		}
		for _, e := range effects {
			if math.Abs(e) > 0.03 {
				t.Errorf("noise of 2 %% counts as an effect of %.1f %%", 100*e)
			}
		}
	}
	if nothing < 60 {
		t.Errorf("no effect was found in only %d of 200 runs without one", nothing)
	}
}

// TestCompareBlocksHoldsItsLevel checks that two equal cells are called different in
// at most 5 % of runs, with and without block effects, for any number of other cells.
func TestCompareBlocksHoldsItsLevel(t *testing.T) {
	tests := []struct {
		name         string
		block, noise float64
		cells        int
	}{
		{"no block effect", 0, 0.02, 8},
		{"block effect as large as the noise", 0.02, 0.02, 8},
		{"block effect five times the noise", 0.10, 0.02, 8},
		{"few other cells", 0.05, 0.02, 5},
		{"no other cells", 0.05, 0.02, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 8))
			const runs = 2000
			found := 0
			for range runs {
				medians := make([]float64, tt.cells)
				for i := range medians {
					medians[i] = 10 * float64(1+i/2) // the first two are equal
				}
				cells := run(r, tt.block, tt.noise, medians...)
				if CompareBlocks(cells[0], cells[1], cells[2:]).P < 0.05 {
					found++
				}
			}
			rate := float64(found) / runs
			t.Logf("false differences: %.1f %%", 100*rate)
			if rate > 0.06 {
				t.Errorf("false differences: %.1f %% of runs, want at most 5 %% (and 1 %% of chance)", 100*rate)
			}
		})
	}
}

// TestCompareBlocksHasPower checks that a difference of 10 % is found despite block
// effects of 10 % in nearly all runs, at a level that survives Holm over 13
// comparisons. Without the blocks it is mostly missed.
func TestCompareBlocksHasPower(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	const runs = 500
	aligned, plain := 0, 0
	for range runs {
		cells := run(r, 0.10, 0.02, 10, 11, 20, 30, 40, 50, 60, 70)
		if CompareBlocks(cells[0], cells[1], cells[2:]).P < 0.05/13 {
			aligned++
		}
		if Compare(Values(cells[0]), Values(cells[1])).P < 0.05/13 {
			plain++
		}
	}
	t.Logf("found: aligned %d, plain %d of %d", aligned, plain, runs)
	if aligned < runs*95/100 {
		t.Errorf("aligned: found in %d of %d runs", aligned, runs)
	}
	if plain > runs/2 {
		t.Errorf("plain: found in %d of %d runs: alignment would not be needed", plain, runs)
	}
}

func TestCompareBlocksInterval(t *testing.T) {
	// The interval covers the true ratio in at least 95 % of runs.
	r := rand.New(rand.NewPCG(11, 12))
	const runs = 1000
	covered := 0
	for range runs {
		cells := run(r, 0.05, 0.03, 10, 12, 20, 30, 40, 50)
		if d := CompareBlocks(cells[0], cells[1], cells[2:]); d.Interval.Low <= 1.2 && 1.2 <= d.Interval.High {
			covered++
		}
	}
	if covered < runs*94/100 {
		t.Errorf("covered the true ratio in %d of %d runs", covered, runs)
	}
}

func TestBimodal(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   bool
	}{
		{"one core or two", []float64{11.2, 36.1, 11.9, 35.2, 34.8, 11.4, 36.5, 11.0}, true},
		{"two of eight", []float64{36, 36.4, 35.7, 36.1, 11.2, 36.3, 11.5, 36.2}, true},
		{"a stray value is no mode", []float64{36, 36.4, 35.7, 36.1, 11.2, 36.3, 36.5, 36.2}, false},
		{"steps of the histogram", []float64{1000, 1000, 1000, 1000, 1001, 1001, 1001, 1001}, false},
		{"all equal", []float64{5, 5, 5, 5, 5, 5, 5, 5}, false},
		{"evenly spread", upTo(8), false},
		{"too few", []float64{1, 1, 2, 2, 2}, false},
		{"losses of none and much", []float64{0, 0, 0, 0.2, 0.21, 0.2, 0, 0.2}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, got := Bimodal(tt.values)
			if got != tt.want {
				t.Errorf("%v, %+v", got, m)
			}
			if got && m.NLow+m.NHigh != len(tt.values) {
				t.Errorf("modes of %d and %d", m.NLow, m.NHigh)
			}
		})
	}
}

// TestBimodalFalseAlarms checks how often values without modes are called bimodal: at
// most 0.5 % of those that are uniform or normal on either scale, and 1 % with a long
// tail.
func TestBimodalFalseAlarms(t *testing.T) {
	tests := []struct {
		name string
		draw func(r *rand.Rand) float64
		most float64
	}{
		{"uniform on the log scale", func(r *rand.Rand) float64 { return math.Exp(r.Float64()) }, 0.0065},
		{"normal, 2 %", func(r *rand.Rand) float64 { return 1 + 0.02*r.NormFloat64() }, 0.0001},
		{"normal, 30 % on the log scale", func(r *rand.Rand) float64 { return math.Exp(0.3 * r.NormFloat64()) }, 0.005},
		{"exponential", func(r *rand.Rand) float64 { return 1 + r.ExpFloat64() }, 0.01},
		{"Student t, 3 degrees of freedom", func(r *rand.Rand) float64 { return 100 + 10*student3(r) }, 0.01},
	}
	for _, tt := range tests {
		for _, n := range []int{8, 10, 20} {
			r := rand.New(rand.NewPCG(13, uint64(n)))
			const runs = 20000
			alarms := 0
			xs := make([]float64, n)
			for range runs {
				for i := range xs {
					xs[i] = tt.draw(r)
				}
				if _, ok := Bimodal(xs); ok {
					alarms++
				}
			}
			rate := float64(alarms) / runs
			t.Logf("%s, n = %d: %.2f %%", tt.name, n, 100*rate)
			if rate > tt.most {
				t.Errorf("%s, n = %d: %.2f %% false alarms, want at most %.2f %%", tt.name, n, 100*rate, 100*tt.most)
			}
		}
	}
}

func student3(r *rand.Rand) float64 {
	z := r.NormFloat64()
	a, b, c := r.NormFloat64(), r.NormFloat64(), r.NormFloat64()
	return z / math.Sqrt((a*a+b*b+c*c)/3)
}
