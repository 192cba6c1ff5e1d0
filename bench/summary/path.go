package summary

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// paths says the numbers of each path that was there before, one direction at a
// time: there is nothing to choose, so nothing is compared. Of several sets of
// factors the plainest speaks.
func paths(all []set) []Advice {
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
		out = append(out, Advice{Role: catalog.Existing, Direction: s.Direction, Question: "This path, " + s.Direction,
			Sentence: pathSentence(all, s),
			Ties:     []Standing{}, Worse: []Standing{}, Reference: []Standing{},
			NotCompared: []Exclusion{}, Unavailable: []Exclusion{}, NotApplicable: []Exclusion{}, Trust: []string{}})
	}
	return out
}

// pathSentence is what was measured of one path in one direction.
func pathSentence(all []set, of set) string {
	best := map[cell.Metric]set{}
	for _, s := range all {
		if s.Network != of.Network || s.Direction != of.Direction || !s.Available {
			continue
		}
		if b, ok := best[s.Metric]; !ok || plainer(s.Cell, b.Cell) < 0 {
			best[s.Metric] = s
		}
	}
	var parts []string
	for _, m := range cell.Metrics() {
		s, ok := best[m]
		if !ok {
			continue
		}
		text := Format(m, s.Median)
		switch m {
		case cell.Throughput:
			text = strings.ToUpper(s.Transport) + " " + text
			if s.CILevel >= stats.Confidence {
				text += " (" + scaleOf(m, s.Median).Interval(s.CILow, s.CIHigh) + ")"
			}
		case cell.LatencyP50:
			text += " median round trip"
		case cell.LatencyP99:
			text = "p99 " + text
		case cell.LatencyP999:
			text = "p99.9 " + text
		case cell.ProcessorTime:
			text = cell.Digits(s.Median) + " cores per Gbit/s"
		default:
			text = m.Title() + " " + text
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%s: %s.", of.Direction, strings.Join(parts, ", "))
}
