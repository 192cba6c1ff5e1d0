package summary

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// pathAdvice states the numbers of each path that existed before, one direction at
// a time. There is nothing to choose, so nothing is compared.
func pathAdvice(all []set) []Advice {
	var out []Advice
	var seen []string
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b set) int { return cmp.Compare(b.Direction, a.Direction) }) // outbound before inbound
	for _, s := range ordered {
		id := s.Network + "\x00" + s.Direction
		if s.Network != catalog.ExistingPath || !s.Available || slices.Contains(seen, id) {
			continue
		}
		seen = append(seen, id)
		a := newAdvice(catalog.Existing, s.Direction)
		a.Question, a.Sentence = "This path, "+s.Direction, pathSentence(all, s)
		out = append(out, a)
	}
	return out
}

// pathSentence returns what was measured of one path in one direction, under the
// plainest conditions of each metric.
func pathSentence(all []set, path set) string {
	best := map[cell.Metric]set{}
	for _, s := range all {
		if s.Network != path.Network || s.Direction != path.Direction || !s.Available {
			continue
		}
		if b, ok := best[s.Metric]; !ok || plainer(s.Cell, b.Cell) < 0 {
			best[s.Metric] = s
		}
	}
	var parts []string
	for _, m := range slices.SortedFunc(maps.Keys(best), cell.CompareMetrics) {
		s := best[m]
		text := m.Format(s.Median)
		switch m {
		case cell.Throughput:
			text = strings.ToUpper(s.Transport) + " " + text
			if s.CILevel >= stats.Confidence {
				text += " (" + m.ScaleFor(s.Median).Interval(s.CILow, s.CIHigh) + ")"
			}
		case cell.LatencyP50:
			text += " median round trip"
			if s.Rate > 0 {
				text += " at " + cell.Digits(s.Rate) + " requests a second"
			}
		case cell.LatencyP99:
			text = "p99 " + text
		case cell.LatencyP999:
			text = "p99.9 " + text
		case cell.ProcessorTime:
			text = cell.Digits(s.Median) + " cores per Gbit/s"
		default:
			text = m.Title() + " " + text
		}
		for _, w := range fewWarnings(s.Warnings) {
			text += " (" + w.Text + ")"
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%s: %s.", path.Direction, strings.Join(parts, ", "))
}
