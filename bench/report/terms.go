package report

import (
	"slices"

	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// terms explains the words of a report that do not explain themselves: metrics,
// and levels of factors.
func terms(sums []cell.Summary) []fact {
	var out []fact
	for _, m := range cell.Metrics() {
		if about := m.About(); about != "" && len(ofMetric(sums, m)) > 0 {
			out = append(out, fact{m.Title(), about})
		}
	}
	for _, term := range levelTerms() {
		if slices.ContainsFunc(sums, func(s cell.Summary) bool { return s.Factors[term.factor] == term.level }) {
			out = append(out, fact{term.factor + " " + term.level, term.about})
		}
	}
	return out
}

type levelTerm struct{ factor, level, about string }

func levelTerms() []levelTerm {
	out := []levelTerm{{"settings", "best", "the best settings that the program has for these links, instead of its defaults"}}
	for _, v := range multipath.Variants() {
		if v != multipath.Plain {
			out = append(out, levelTerm{"variant", v, multipath.Describe(v)})
		}
	}
	return out
}
