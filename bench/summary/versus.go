package summary

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// Versus compares one network, the subject of an experiment, with the baseline
// and with its rivals: the other networks of its role. There is one Match for
// each metric and combination of factors. Nothing is recommended.
type Versus struct {
	Subject string
	Matches []Match
}

// Match is one metric under one combination of factors.
type Match struct {
	Metric    cell.Metric
	Cell      cell.Cell // of one of the lines: the factors of all, but for the network
	Title     string    // the factors that vary between matches of this metric
	Baseline  string    // what the ratios are to; "" where none was measured alike
	BestRival string    // the best network that is not the subject, and does not borrow the host's sockets; "" where none was measured
	Lines     []VersusLine
}

// VersusLine is one network's number in a match. The baseline's comes first, the
// others are in the order of the catalogue.
type VersusLine struct {
	Network    string
	Reason     string // why there is no number; the rest is zero then
	N          int
	Median     float64
	CILow      float64
	CIHigh     float64
	CILevel    float64
	ToBaseline Ratio
	ToRival    Ratio
	OfSubject  Ratio // the subject's median over this one, for rivals
}

// Ratio is one median over another. The zero Ratio is none.
type Ratio struct {
	Value     float64
	Low, High float64
	P         float64 // of being 1, corrected after Holm over all ratios of the table
}

// Told tells whether the ratio can be told apart from 1.
func (r Ratio) Told() bool { return r.P < 1-stats.Confidence }

// versusMetrics are those that a Versus has. The rest is in the other tables: a
// loss is bounded by the search for the rate, and few samples know a p99.9.
func versusMetrics() []cell.Metric {
	return slices.DeleteFunc(cell.Metrics(), func(m cell.Metric) bool { return m == cell.Loss || m == cell.LatencyP999 })
}

// Against makes the table for a subject; nil where the run has no number of it.
func Against(r Results, subject string) *Versus {
	role := catalog.RoleOf(subject)
	all := r.sets()
	v := &Versus{Subject: subject}
	measured := false
	for _, m := range versusMetrics() {
		same := slices.DeleteFunc(slices.Clone(all), func(s set) bool { return s.Metric != m })
		for _, part := range parts(same, role) {
			v.Matches = append(v.Matches, match(subject, part, same))
			measured = measured || slices.ContainsFunc(part, func(s set) bool { return s.Network == subject && s.Available })
		}
	}
	if !measured {
		return nil
	}
	v.correct()
	return v
}

// parts are the sets of a role that differ in nothing but the network.
func parts(same []set, role catalog.Role) [][]set {
	var out [][]set
	var cells []cell.Cell
	index := map[string]int{}
	for _, s := range same {
		if catalog.RoleOf(s.Network) != role {
			continue
		}
		cells = append(cells, s.Cell)
		key := s.Cell
		key.Network = ""
		i, seen := index[key.Key()]
		if !seen {
			i = len(out)
			index[key.Key()] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], s)
	}
	fs := varying(cells)
	slices.SortStableFunc(out, func(a, b []set) int { return compareMatches(fs, a[0].Cell, b[0].Cell) })
	return out
}

// compareMatches orders as people ask: TCP first, outbound before inbound, large
// MTUs first, few streams first.
func compareMatches(fs []cell.Factor, a, b cell.Cell) int {
	return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Streams, b.Streams), -cmp.Compare(a.MTU, b.MTU),
		-cmp.Compare(a.Direction, b.Direction), cell.Compare(fs, a, b), cmp.Compare(a.Key(), b.Key()))
}

// match compares the sets of one part with the baseline and with the best rival.
func match(subject string, part, same []set) Match {
	var cells []cell.Cell
	for _, s := range same {
		if catalog.RoleOf(s.Network) == catalog.RoleOf(subject) {
			cells = append(cells, s.Cell)
		}
	}
	m := Match{Metric: part[0].Metric, Cell: part[0].Cell, Title: titleOf(part[0].Metric, varying(cells), part[0].Cell)}
	slices.SortStableFunc(part, func(a, b set) int { return catalog.Compare(a.Network, b.Network) })
	lines := part
	baseline := slices.IndexFunc(same, func(s set) bool {
		return s.Available && catalog.RoleOf(s.Network) == catalog.Baseline && reference(part[0].Cell, s.Cell)
	})
	if baseline >= 0 {
		m.Baseline = same[baseline].Network
		lines = append([]set{same[baseline]}, part...)
	}
	rival, found := bestRival(subject, part)
	if found {
		m.BestRival = rival.Network
	}
	own := slices.IndexFunc(part, func(s set) bool { return s.Network == subject && s.Available })
	for _, s := range lines {
		l := VersusLine{Network: s.Network, Reason: s.Reason, N: s.N, Median: s.Median, CILow: s.CILow, CIHigh: s.CIHigh, CILevel: s.CILevel}
		if s.Available {
			l.Reason = ""
			if baseline >= 0 {
				l.ToBaseline = ratio(same[baseline], s, same)
			}
			if found && s.Network != m.Baseline {
				l.ToRival = ratio(rival, s, same)
			}
			if own >= 0 && s.Network != m.Baseline {
				l.OfSubject = ratio(s, part[own], same)
			}
		}
		m.Lines = append(m.Lines, l)
	}
	return m
}

// titleOf lists a cell's levels. What moves data names its transport in any case.
func titleOf(m cell.Metric, fs []cell.Factor, c cell.Cell) string {
	fs = slices.DeleteFunc(slices.Clone(fs), func(f cell.Factor) bool { return f.Name == "transport" })
	title := describe(fs, c)
	if m != cell.Throughput && m != cell.ProcessorTime {
		return title
	}
	return strings.TrimSuffix(strings.ToUpper(c.Transport)+", "+title, ", ")
}

// bestRival is the best set of a network that is not the subject and has packets
// of its own to carry.
func bestRival(subject string, part []set) (best set, found bool) {
	for _, s := range part {
		e, _ := catalog.Lookup(s.Network)
		if !s.Available || s.Network == subject || e.Borrows {
			continue
		}
		if !found || s.Median != best.Median && s.Median < best.Median == s.Metric.LowerIsBetter() {
			best, found = s, true
		}
	}
	return best, found
}

// ratio is second over first; zero for a set over itself.
func ratio(first, second set, same []set) Ratio {
	if first.id() == second.id() {
		return Ratio{}
	}
	d := withinRun(first, second, same)
	return Ratio{Value: d.Ratio, Low: d.Interval.Low, High: d.Interval.High, P: d.P}
}

// correct corrects the p values of all ratios together.
func (v *Versus) correct() {
	var ratios []*Ratio
	var ps []float64
	for i := range v.Matches {
		for j := range v.Matches[i].Lines {
			l := &v.Matches[i].Lines[j]
			for _, r := range []*Ratio{&l.ToBaseline, &l.ToRival, &l.OfSubject} {
				if r.Value != 0 {
					ratios = append(ratios, r)
					ps = append(ps, r.P)
				}
			}
		}
	}
	for i, p := range stats.Holm(ps) {
		ratios[i].P = p
	}
}

// Heads are the heads of a match's columns; the baseline is named there.
func (m Match) Heads() []string {
	return []string{"network", "median", "[95 %]", "× " + cmp.Or(m.Baseline, "baseline"), "× best rival"}
}

// Heading is what the match is about, with the unit of its numbers.
func (m Match) Heading() string {
	name := m.Metric.Title()
	if m.Title != "" {
		name += ", " + m.Title
	}
	return strings.ToUpper(name[:1]) + name[1:] + ": " + m.Metric.Scale().Unit
}

// Samples says how many each number of the match is of; "" where one has none.
func (m Match) Samples() string {
	least, most := 0, 0
	for _, l := range m.Lines {
		if l.Reason != "" {
			continue
		}
		if least == 0 || l.N < least {
			least = l.N
		}
		most = max(most, l.N)
	}
	switch {
	case most == 0:
		return ""
	case least < most:
		return fmt.Sprintf(", n=%d–%d", least, most)
	}
	return fmt.Sprintf(", n=%d", most)
}

// Beside is how many times the subject's number another network's is in the cell of
// that key, as text; "" for the subject itself, for baselines, and for what the
// subject has no number beside.
func (v *Versus) Beside(network string, c cell.Cell, metric cell.Metric) string {
	if v == nil || network == v.Subject {
		return ""
	}
	c.Network = ""
	for _, m := range v.Matches {
		of := m.Cell
		of.Network = ""
		if m.Metric != metric || of.Key() != c.Key() {
			continue
		}
		if l, ok := m.line(network); ok && l.OfSubject.Value > 0 {
			return times(1/l.OfSubject.Value) + " ×"
		}
	}
	return ""
}

// Cells are a line's columns as text.
func (m Match) Cells(l VersusLine) []string {
	if l.Reason != "" {
		return []string{l.Network, cell.None, "", "", ""}
	}
	scale := m.Metric.Scale()
	out := []string{l.Network, scale.Of(l.Median), "", l.ToBaseline.text(), l.ToRival.text()}
	if l.N > 1 {
		out[2] = "[" + scale.Interval(l.CILow, l.CIHigh) + "]"
	}
	switch l.Network {
	case m.Baseline:
		out[3], out[4] = "1", ""
	case m.BestRival:
		out[4] = "1"
	}
	return out
}

// text writes a ratio with its interval, with ~ before one that can't be told
// apart from 1.
func (r Ratio) text() string {
	if r.Value == 0 {
		return ""
	}
	text := share(r.Value)
	if r.Low < r.High {
		text += " [" + share(r.Low) + "–" + share(r.High) + "]"
	}
	if !r.Told() {
		text = "~" + text
	}
	return text
}

// share writes a ratio in little room: two digits below 0.1.
func share(x float64) string {
	if x > 0 && x < 0.1 {
		return strconv.FormatFloat(x, 'g', 2, 64)
	}
	return times(x)
}
