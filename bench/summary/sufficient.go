package summary

import (
	"fmt"
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
	"cleat/internal/columns"
)

// whyInsufficient returns why the numbers support no recommendation; "" if they do. They are
// too few if no test of the best against another could be significant, whatever the values.
func (a Advice) whyInsufficient() string {
	if names := disturbed(append([]Standing{*a.Best}, a.Ties...)); len(names) > 0 {
		return "no sample of " + enumerate(names, "or") + " was undisturbed"
	}
	rivals := slices.Concat(a.Ties, a.Worse)
	pairs := float64(len(rivals)*(len(rivals)+1)) / 2
	if len(rivals) == 0 && a.Best.N > 1 || slices.ContainsFunc(rivals, func(s Standing) bool {
		return s.P < 1-stats.Confidence || pairs*stats.LeastP(a.Best.N, s.N) < 1-stats.Confidence
	}) {
		return ""
	}
	return a.counts() + ", too few to see any difference"
}

// disturbed returns the networks of which no sample was undisturbed, in catalogue order.
func disturbed(standings []Standing) []string {
	return networks(slices.SortedFunc(slices.Values(slices.DeleteFunc(slices.Clone(standings), func(s Standing) bool {
		return len(cell.Coded(s.Warnings, codeDisturbed)) == 0
	})), func(x, y Standing) int { return catalog.Compare(x.Network, y.Network) }))
}

// counts returns how many samples the compared networks have.
func (a Advice) counts() string {
	least, most := a.Best.N, a.Best.N
	for _, s := range slices.Concat(a.Ties, a.Worse) {
		least, most = min(least, s.N), max(most, s.N)
	}
	line := columns.Plural(most, "sample") + " each"
	if least < most {
		line = fmt.Sprintf("%d to %s", least, line)
	}
	return line
}

// repeats returns how many samples of each network it takes to see a difference.
func (a Advice) repeats() int {
	n := stats.MinForInterval
	for pairs := float64(a.Rivals()*(a.Rivals()+1)) / 2; pairs*stats.LeastP(n, n) >= 1-stats.Confidence; n++ {
	}
	return n
}
