package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestBlocksFor plants differences in normal noise. With as many values as BlocksFor says, about nine runs in ten find
// them, and with much fewer clearly less.
func TestBlocksFor(t *testing.T) {
	const runs = 200
	r := rand.New(rand.NewPCG(7, 7))
	found := func(ratio, spread float64, n, tests int) float64 {
		got := 0
		for range runs {
			x, y := make([]float64, n), make([]float64, n)
			for i := range n {
				x[i], y[i] = math.Exp(spread*r.NormFloat64()), ratio*math.Exp(spread*r.NormFloat64())
			}
			if float64(tests)*Compare(x, y).P < 1-Confidence {
				got++
			}
		}
		return float64(got) / runs
	}
	for _, tt := range []struct {
		ratio, spread float64
		tests         int
	}{{0.95, 0.03, 1}, {1.1, 0.06, 6}, {0.95, 0.02, 45}, {0.8, 0.1, 3}} {
		n := BlocksFor(tt.ratio, tt.spread, tt.tests)
		if n < 4 || n > 200 {
			t.Fatalf("%+v: %d values", tt, n)
		}
		// With few values the test is exact and its level in steps, so that the formula is a little off.
		if share := found(tt.ratio, tt.spread, n, tt.tests); share < Power-0.08 {
			t.Errorf("%+v: %d values find it in %.2f of all runs", tt, n, share)
		}
		if share := found(tt.ratio, tt.spread, n/2, tt.tests); share > Power-0.1 {
			t.Errorf("%+v: %d values are too many: half of them find it in %.2f of all runs", tt, n, share)
		}
		if ratio := RatioFor(n, tt.spread, tt.tests); math.Abs(math.Log(ratio)) > math.Abs(math.Log(tt.ratio))*1.001 {
			t.Errorf("%+v: with %d values the least ratio is %v", tt, n, ratio)
		}
		if ratio := RatioFor(n-1, tt.spread, tt.tests); n-1 >= fewestForLevel(tt.tests) && math.Abs(math.Log(ratio)) < math.Abs(math.Log(tt.ratio)) {
			t.Errorf("%+v: with %d values the least ratio is %v", tt, n-1, ratio)
		}
	}
	if n := BlocksFor(1, 0.1, 1); n != 0 {
		t.Errorf("no difference is found with %d values", n)
	}
	if n := BlocksFor(1.05, math.NaN(), 1); n != 0 {
		t.Errorf("an unknown spread needs %d values", n)
	}
	if ratio := RatioFor(3, 0.01, 1); !math.IsInf(ratio, 1) {
		t.Errorf("three values find %v", ratio)
	}
}

// TestSpread checks the spread of normal noise, with effects of blocks that all cells share and values far off.
func TestSpread(t *testing.T) {
	const spread, cells, blocks = 0.04, 8, 40
	r := rand.New(rand.NewPCG(3, 3))
	all := make([][]Point, cells)
	for b := range blocks {
		effect := 0.3 * r.NormFloat64()
		for i := range cells {
			all[i] = append(all[i], Point{b, 1e9 * math.Exp(effect+spread*r.NormFloat64())})
		}
	}
	all[0][5].Value *= 5
	sum := 0.0
	for i := range cells {
		var others [][]Point
		for k := range cells {
			if k != i {
				others = append(others, all[k])
			}
		}
		sum += Spread(all[i], others) / cells
	}
	if sum < 0.8*spread || sum > 1.3*spread {
		t.Errorf("spread %.4f, want about %.4f", sum, spread)
	}
	for _, xs := range [][]Point{nil, {{1, 1}, {2, 1}}, {{1, 1}, {2, 0}, {3, 1}}} {
		if got := Spread(xs, nil); !math.IsNaN(got) {
			t.Errorf("%v: %v", xs, got)
		}
	}
}
