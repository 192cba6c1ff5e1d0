package summary

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// Versus compares one network, the subject of an experiment, with a baseline and
// with its rivals, the other networks of its role. There is one Match for each
// metric and combination of factors. It recommends nothing.
type Versus struct {
	Subject string
	Matches []Match
}

// Match is one metric under one combination of factors.
type Match struct {
	Metric   cell.Metric
	Cell     cell.Cell // of any line: all have its factors, except for the network
	Title    string    // the factors that vary between matches of this metric
	Baseline string    // what ToBaseline is relative to; "": no baseline was measured alike
	// BestRival is the best network that is no form of the subject and does not use the
	// host's own sockets (catalog.Entry.FormOf, Borrows); "": none was measured.
	BestRival string
	Lines     []VersusLine
}

// VersusLine is one network's number in a match. The baseline's line comes first,
// the others follow in catalogue order.
type VersusLine struct {
	Network    string
	Reason     string // why there is no number; the rest is zero
	N          int
	Median     float64
	CILow      float64
	CIHigh     float64
	CILevel    float64
	Few        cell.Warning // why a percentile has no interval; the zero Warning if it has one
	ToBaseline Ratio        // this median over the baseline's
	ToRival    Ratio        // this median over the best rival's
	OfSubject  Ratio        // the subject's median over this one
}

// Ratio is one median over another. The zero Ratio stands for no ratio.
type Ratio struct {
	Value     float64
	Low, High float64
	Level     float64 // what the interval covers
	P         float64 // that it is 1, corrected after Holm over all pairs of the table

	pair [2]string // the ids of the two sets, sorted: both ratios of a pair are one test
}

// Significant reports whether the ratio can be told apart from 1.
func (r Ratio) Significant() bool { return r.P < 1-stats.Confidence }

// Against compares a subject with its rivals; nil if the run has no number of it.
func Against(r Results, subject string) *Versus {
	role := catalog.RoleOf(subject)
	all := r.sets()
	v := &Versus{Subject: subject}
	measured := false
	for _, m := range cell.MetricsIn(summaries(all)) {
		if m == cell.Loss || m == cell.LatencyP999 {
			continue // the search for the rate bounds the loss, and a p99.9 needs more samples
		}
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

// summaries returns what sets are of.
func summaries(all []set) []cell.Summary {
	sums := make([]cell.Summary, len(all))
	for i, s := range all {
		sums[i] = s.Summary
	}
	return sums
}

// parts returns the sets of a role, those together that differ in the network only. One of a network that has a factor in
// no cell, since it means nothing to it, is in each part that differs in this factor.
func parts(same []set, role catalog.Role) [][]set {
	var out [][]set
	var cells []cell.Cell
	index := map[string]int{}
	for _, s := range same {
		if catalog.RoleOf(s.Network) != role {
			continue
		}
		cells = append(cells, s.Cell)
		i, seen := index[keyWithout(s.Cell)]
		if !seen {
			i = len(out)
			index[keyWithout(s.Cell)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], s)
	}
	out = shared(out, cells)
	fs := cell.Varying(cell.Factors(cells), cells)
	// The order in which readers ask: TCP first, few streams first, large MTUs first,
	// outbound before inbound.
	slices.SortStableFunc(out, func(x, y []set) int {
		a, b := x[0].Cell, y[0].Cell
		return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Streams, b.Streams), -cmp.Compare(a.MTU, b.MTU),
			-cmp.Compare(a.Direction, b.Direction), cell.Compare(fs, a, b), cmp.Compare(a.Key(), b.Key()))
	})
	return out
}

// shared puts sets of networks to which a factor means nothing into the parts that differ in it.
func shared(parts [][]set, cells []cell.Cell) (out [][]set) {
	var factors []string
	has := map[string]bool{} // by network and factor
	for _, c := range cells {
		for f := range c.Factors {
			has[c.Network+" "+f] = true
			if !slices.Contains(factors, f) {
				factors = append(factors, f)
			}
		}
	}
	lacking := func(network string) []string {
		return slices.DeleteFunc(slices.Clone(factors), func(f string) bool { return has[network+" "+f] })
	}
	joins := func(s set, part []set) bool {
		f := lacking(s.Network)
		return slices.ContainsFunc(f, func(f string) bool { return part[0].Factors[f] != "" }) && keyWithout(part[0].Cell, f...) == keyWithout(s.Cell)
	}
	for _, part := range parts {
		isElsewhere := func(s set) bool {
			return slices.ContainsFunc(parts, func(other []set) bool { return joins(s, other) })
		}
		if !slices.ContainsFunc(part, func(s set) bool { return !isElsewhere(s) }) {
			continue
		}
		joined := slices.Clone(part)
		for _, other := range parts {
			for _, s := range other {
				if joins(s, part) {
					joined = append(joined, s)
				}
			}
		}
		out = append(out, joined)
	}
	return out
}

// keyWithout is the key of a cell without its network and some factors.
func keyWithout(c cell.Cell, factors ...string) string {
	c.Network = ""
	c.Factors = maps.Clone(c.Factors)
	for _, f := range factors {
		delete(c.Factors, f)
	}
	return c.Key()
}

// match compares the sets of one part with the baseline and the best rival.
func match(subject string, part, same []set) Match {
	var cells []cell.Cell
	for _, s := range same {
		if catalog.RoleOf(s.Network) == catalog.RoleOf(subject) {
			cells = append(cells, s.Cell)
		}
	}
	m := Match{Metric: part[0].Metric, Cell: part[0].Cell, Title: titleOf(part[0].Metric, cell.Varying(cell.Factors(cells), cells), part[0].Cell)}
	slices.SortStableFunc(part, func(a, b set) int { return catalog.Compare(a.Network, b.Network) })
	lines := part
	baseline := slices.IndexFunc(same, func(s set) bool {
		return s.Available && catalog.RoleOf(s.Network) == catalog.Baseline && isReference(m.Cell, s.Cell)
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
		if few := fewWarnings(s.Warnings); len(few) > 0 {
			l.Few = few[0] // a summary has one percentile
		}
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

// titleOf lists a cell's levels. A metric of moving data always names its transport.
func titleOf(m cell.Metric, fs []cell.Factor, c cell.Cell) string {
	title := cell.Describe(slices.DeleteFunc(slices.Clone(fs), func(f cell.Factor) bool { return f.Name == "transport" }), c)
	if m != cell.Throughput && m != cell.ProcessorTime {
		return title
	}
	return strings.TrimSuffix(strings.ToUpper(c.Transport)+", "+title, ", ")
}

// bestRival returns the best set of a network that is not the subject or another form of
// it, and does not use the host's own sockets.
func bestRival(subject string, part []set) (best set, found bool) {
	own, _ := catalog.Lookup(subject)
	for _, s := range part {
		e, _ := catalog.Lookup(s.Network)
		sameForm := cmp.Or(e.FormOf, s.Network) == cmp.Or(own.FormOf, subject)
		if !s.Available || sameForm || e.Borrows {
			continue
		}
		if !found || s.Median != best.Median && s.Median < best.Median == s.Metric.LowerIsBetter() {
			best, found = s, true
		}
	}
	return best, found
}

// ratio returns second over first; zero for a set over itself.
func ratio(first, second set, same []set) Ratio {
	if first.id() == second.id() {
		return Ratio{}
	}
	d := withinRun(first, second, same)
	return Ratio{Value: d.Ratio, Low: d.Interval.Low, High: d.Interval.High, Level: d.Interval.Level, P: d.P,
		pair: [2]string{min(first.id(), second.id()), max(first.id(), second.id())}}
}

// correct corrects the p values of all ratios together. A pair that has several ratios, such
// as both ways or in several matches, is tested once.
func (v *Versus) correct() {
	var ratios []*Ratio
	var ps []float64
	index := map[[2]string]int{} // of a pair in ps
	for i := range v.Matches {
		for j := range v.Matches[i].Lines {
			l := &v.Matches[i].Lines[j]
			for _, r := range []*Ratio{&l.ToBaseline, &l.ToRival, &l.OfSubject} {
				if r.Value == 0 {
					continue
				}
				ratios = append(ratios, r)
				if _, seen := index[r.pair]; !seen {
					index[r.pair] = len(ps)
					ps = append(ps, r.P)
				}
			}
		}
	}
	corrected := stats.Holm(ps)
	for _, r := range ratios {
		r.P = corrected[index[r.pair]]
	}
}

// Heads returns the heads of a match's columns, which name the level of the intervals and the
// baseline.
func (m Match) Heads() []string {
	var levels []float64
	for _, l := range m.Lines {
		if l.N > 1 {
			levels = append(levels, l.CILevel)
		}
	}
	level := stats.LevelText(levels...)
	if level != "" {
		level = "[" + level + "]"
	}
	return []string{"network", "median", level, "× " + cmp.Or(m.Baseline, "baseline"), "× best rival"}
}

// Heading returns the metric and conditions of the match, with the unit of its numbers.
func (m Match) Heading() string {
	name := m.Metric.Title()
	if m.Title != "" {
		name += ", " + m.Title
	}
	return strings.ToUpper(name[:1]) + name[1:] + ": " + m.Metric.Scale().Unit
}

// Samples returns how many samples are behind the numbers of the match: ", n=8",
// or "" without numbers.
func (m Match) Samples() string {
	least, most := 0, 0
	for _, l := range m.Lines {
		if l.N > 0 && (least == 0 || l.N < least) {
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

// Note returns which networks' percentiles have no interval, and why; "" if all have one.
func (m Match) Note() string {
	var names []string
	var few []cell.Warning
	for _, l := range m.Lines {
		if l.Few.Text != "" {
			names, few = append(names, l.Network), append(few, l.Few)
		}
	}
	if len(few) == 0 {
		return ""
	}
	return strings.Join(names, ", ") + ": " + cell.Merge(few...)
}

// Beside returns a network's number in c as a multiple of the subject's, as text.
// It returns "" for the subject itself, for baselines, and where the subject has
// no number. v may be nil.
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

// Cells returns a line's columns as text.
func (m Match) Cells(l VersusLine) []string {
	if l.Reason != "" {
		return []string{l.Network, cell.None, "", "", ""}
	}
	scale := m.Metric.Scale()
	out := []string{l.Network, scale.Of(l.Median), "", l.ToBaseline.text(), l.ToRival.text()}
	if l.N > 1 && l.Few.Text == "" {
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

// text returns a ratio with its interval, unless that covers too little; ~ marks a ratio
// that can't be told apart from 1.
func (r Ratio) text() string {
	if r.Value == 0 {
		return ""
	}
	text := short(r.Value)
	if r.Low < r.High && r.Level >= stats.Confidence {
		text += " [" + short(r.Low) + "–" + short(r.High) + "]"
	}
	if !r.Significant() {
		text = "~" + text
	}
	return text
}

// short returns a ratio in little room: two digits below 0.1.
func short(x float64) string {
	if x > 0 && x < 0.1 {
		return strconv.FormatFloat(x, 'g', 2, 64)
	}
	return times(x)
}
