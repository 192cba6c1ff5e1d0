package summary

import (
	"fmt"
	"math"
	"strconv"

	"cleat/bench/cell"
	"cleat/bench/stats"
)

const (
	smallDifference = 0.05 // users ask about such ones
	mostRepeats     = 200  // nobody waits for more
)

// power returns which differences between the best of the chosen sets and another one n samples each can show; "" if that
// is not known. same are all sets of their metric. The spread is the median one of these pairs: a network that varies
// much more is told apart less well.
func power(best set, chosen, same []set, n int) string {
	var spreads []float64
	for _, s := range chosen {
		if s.id() == best.id() {
			continue
		}
		others := besides(same, best, s)
		a, b := stats.Spread(best.points, others), stats.Spread(s.points, others)
		if spread := math.Sqrt((a*a + b*b) / 2); !math.IsNaN(spread) {
			spreads = append(spreads, spread)
		}
	}
	if len(spreads) == 0 {
		return ""
	}
	spread, _ := stats.Median(spreads)
	tests := len(chosen) * (len(chosen) - 1) / 2
	found := stats.RatioFor(n, spread, tests) - 1
	blocks := stats.BlocksFor(1+smallDifference, spread, tests)
	takes := ""
	if blocks > 0 && blocks <= mostRepeats && found > smallDifference {
		takes = fmt.Sprintf("%s %% takes about %d samples each", percentage(smallDifference), blocks)
	}
	switch {
	case math.IsInf(found, 1) && takes == "":
		return ""
	case math.IsInf(found, 1):
		return "to find a difference of " + takes
	case found >= 1:
		return fmt.Sprintf("only differences of more than a factor of %s are found in 9 of 10 runs like this", cell.Digits(found+1))
	}
	text := fmt.Sprintf("differences of %s %% and more are found in 9 of 10 runs like this", percentage(found))
	if takes != "" {
		text += "; " + takes
	}
	return text
}

// percentage returns a share in percent, rounded up to a tenth, or to a whole number from 10 on.
func percentage(share float64) string {
	if share >= 0.0995 {
		return strconv.FormatFloat(math.Ceil(share*100-1e-6), 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Ceil(share*1000-1e-6)/10, 'f', -1, 64)
}
