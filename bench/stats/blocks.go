package stats

import (
	"maps"
	"math"
	"slices"
)

// Point is one value and the block it was measured in.
type Point struct {
	Block int
	Value float64
}

// Values returns the values of points.
func Values(points []Point) []float64 {
	xs := make([]float64, len(points))
	for i, p := range points {
		xs[i] = p.Value
	}
	return xs
}

// minOthers is the least number of other cells that a block's effect is estimated
// from: the median of fewer follows the noise of a single cell.
const minOthers = 3

// CompareBlocks tests whether two cells of one run differ, as Compare does, but
// first removes the effect of each block, estimated from all other cells. others
// must hold neither of the two cells. With fewer than three others, or a value that
// is not positive, CompareBlocks is Compare.
func CompareBlocks(first, second []Point, others [][]Point) Difference {
	x, y := Values(first), Values(second)
	effects := blockEffects(others)
	if len(effects) == 0 || !positive(x) || !positive(y) {
		return Compare(x, y)
	}
	d := Compare(removeEffects(first, effects), removeEffects(second, effects))
	m1, _ := Median(x)
	m2, _ := Median(y)
	d.Ratio = m2 / m1
	d.Interval = d.Interval.include(d.Ratio)
	return d
}

// removeEffects divides each value by its block's effect.
func removeEffects(points []Point, effects map[int]float64) []float64 {
	xs := make([]float64, len(points))
	for i, p := range points {
		xs[i] = p.Value * math.Exp(-effects[p.Block])
	}
	return xs
}

// blockEffects estimates how much each block shifts the logarithm of all values. The
// estimate is the median, over the cells, of the departure from the cell's own
// median, shrunk by the share of its variance that is noise. It is nil if nothing
// remains.
func blockEffects(cells [][]Point) map[int]float64 {
	departures := map[int][]float64{}
	n := 0
	for _, points := range cells {
		xs := Values(points)
		if !positive(xs) {
			continue
		}
		n++
		m, _ := Median(xs)
		for _, p := range points {
			departures[p.Block] = append(departures[p.Block], math.Log(p.Value/m))
		}
	}
	if n < minOthers {
		return nil
	}
	effects := map[int]float64{}
	for block, ds := range departures {
		if len(ds) >= minOthers {
			effects[block], _ = Median(ds)
		}
	}
	share := signal(effects, departures)
	if share == 0 {
		return nil
	}
	for block := range effects {
		effects[block] *= share
	}
	return effects
}

// signal returns the share of the variance of the effects that noise does not
// explain, 0…1. The noise of a median of k values with variance s² is about
// π/2·s²/k. s is estimated by the median absolute deviation, so that a bimodal cell
// does not hide the effect.
func signal(effects map[int]float64, departures map[int][]float64) float64 {
	if len(effects) < 2 {
		return 0
	}
	var rest []float64
	var perBlock float64
	for _, block := range slices.Sorted(maps.Keys(effects)) {
		for _, d := range departures[block] {
			rest = append(rest, math.Abs(d-effects[block]))
		}
		perBlock += float64(len(departures[block])) / float64(len(effects))
	}
	mad, _ := Median(rest)
	s := normalMAD * mad
	noise := math.Pi / 2 * s * s / perBlock
	_, stderr := MeanStdErr(slices.Collect(maps.Values(effects)))
	variance := stderr * stderr * float64(len(effects))
	if variance <= noise {
		return 0
	}
	return 1 - noise/variance
}
