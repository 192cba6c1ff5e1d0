package report

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
	"cleat/internal/columns"
)

// section is one table: the numbers measured under the same levels of the factors
// that part results (cell.Factor.PartsResults).
type section struct {
	title   string // those levels; "" where there is one section
	metrics []cell.Metric
	groups  []group
}

// group is the rows that are compared with each other.
type group struct {
	title    string
	roleOnly bool // the title is the role's alone
	rows     []row
}

// row is one line of a table: a network with its settings under the conditions of
// its group, with its number for each metric.
type row struct {
	label string
	role  catalog.Role
	at    cell.Cell
	by    map[cell.Metric]cell.Summary
}

// varying returns the conditions that tell cells apart within a metric.
func varying(sums []cell.Summary) []cell.Factor {
	parts := map[cell.Metric][]cell.Cell{}
	var all []cell.Cell
	for _, s := range sums {
		parts[s.Metric] = append(parts[s.Metric], s.Cell)
		all = append(all, s.Cell)
	}
	return cell.Varying(cell.Conditions(all), slices.Collect(maps.Values(parts))...)
}

// isRemarkable reports whether a level must be mentioned: it is not ordinary, and not
// implied by the work, the network, or the number of links.
func isRemarkable(f cell.Factor, level string) bool {
	return !f.Ordinary(level) && f.Name != "message_bytes" && f.Name != "direction" && level != "links"
}

// common describes the conditions that all of sums share, where they are remarkable.
func common(sums []cell.Summary) string {
	var cells []cell.Cell
	for _, s := range sums {
		cells = append(cells, s.Cell)
	}
	var parts []string
	for _, f := range cell.Conditions(cells) {
		level := f.Of(cells[0])
		if isRemarkable(f, level) && !slices.ContainsFunc(cells, func(c cell.Cell) bool { return f.Of(c) != level }) {
			parts = append(parts, f.Text(level))
		}
	}
	return strings.Join(parts, ", ")
}

// without returns the factors that drop does not report.
func without(fs []cell.Factor, drop func(cell.Factor) bool) []cell.Factor {
	return slices.DeleteFunc(slices.Clone(fs), drop)
}

// partition splits sums by their levels of factors, in order of the levels. Each
// part keeps the order of sums, and labels stay in that order.
func partition(fs []cell.Factor, sums []cell.Summary) [][]cell.Summary {
	index := map[string]int{}
	var out [][]cell.Summary
	for _, s := range sums {
		k := cell.Levels(fs, s.Cell)
		i, ok := index[k]
		if !ok {
			i = len(out)
			index[k] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], s)
	}
	fs = without(fs, func(f cell.Factor) bool { return f.Name == labelFactor })
	slices.SortStableFunc(out, func(a, b []cell.Summary) int { return cell.Compare(fs, a[0].Cell, b[0].Cell) })
	return out
}

// arrange lays out sums as tables.
func arrange(sums []cell.Summary) []section {
	fs := varying(sums)
	inner := without(fs, cell.Factor.PartsResults)
	outer := without(fs, func(f cell.Factor) bool { return !f.PartsResults() })
	var out []section
	for _, part := range partition(outer, sums) {
		s := section{title: capital(cell.Describe(outer, part[0].Cell)), metrics: cell.MetricsIn(part)}
		for _, role := range catalog.Roles() {
			own := filter(part, func(s cell.Summary) bool { return catalog.RoleOf(s.Network) == role })
			s.groups = append(s.groups, groupRole(role, inner, own, len(own) < len(part))...)
		}
		out = append(out, s)
	}
	return out
}

// groupRole makes the groups of one role, one for each combination of conditions.
// If none of several groups has two rows, they become one group whose rows name
// their conditions. A title begins with the role if several roles are shown.
func groupRole(role catalog.Role, conditions []cell.Factor, sums []cell.Summary, several bool) []group {
	var out []group
	one := group{title: role.Title(), roleOnly: true} // of all rows, which name their conditions
	most, widest := 0, 0
	for _, part := range partition(conditions, sums) {
		g := group{title: capital(cell.Describe(conditions, part[0].Cell)), rows: rowsOf(part)}
		switch {
		case g.title == "":
			g.title, g.roleOnly = role.Title(), true
		case several:
			g.title = role.Title() + ": " + cell.Describe(conditions, part[0].Cell)
		}
		most = max(most, len(g.rows))
		out = append(out, g)
		r := g.rows[0]
		r.label += ", " + cell.Describe(conditions, r.at)
		one.rows = append(one.rows, r)
		widest = max(widest, columns.Of(r.label))
	}
	if len(out) < 2 || most > 1 || widest > widestLabel {
		return out
	}
	return []group{one}
}

// widestLabel is the most columns that a row's label takes with its conditions:
// longer ones would take the room of numbers.
const widestLabel = 36

// rowsOf makes rows of sums under the same conditions, in catalogue order.
func rowsOf(sums []cell.Summary) []row {
	var rows []row
	for _, s := range sums {
		label := s.Label()
		i := slices.IndexFunc(rows, func(r row) bool { return r.label == label })
		if i < 0 {
			i = len(rows)
			rows = append(rows, row{label: label, role: catalog.RoleOf(s.Network), at: s.Cell, by: map[cell.Metric]cell.Summary{}})
		}
		rows[i].by[s.Metric] = s
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(catalog.Compare(a.at.Network, b.at.Network), cmp.Compare(len(a.label), len(b.label)), cmp.Compare(a.label, b.label))
	})
	return rows
}

func allRows(sections []section) []row {
	var rows []row
	for _, s := range sections {
		for _, g := range s.groups {
			rows = append(rows, g.rows...)
		}
	}
	return rows
}

// samples returns the range of n over the row's metrics: "8", or "7–8".
func (r row) samples() string {
	lo, hi := -1, -1
	for _, s := range r.by {
		if lo < 0 || s.N < lo {
			lo = s.N
		}
		hi = max(hi, s.N)
	}
	if lo == hi {
		return strconv.Itoa(hi)
	}
	return strconv.Itoa(lo) + "–" + strconv.Itoa(hi)
}

// bad returns the number of samples that were disturbed or failed. The metrics
// of one measurement share their samples, so the largest count is the row's.
func (r row) bad() int {
	n := 0
	for _, s := range r.by {
		n = max(n, s.BadSamples)
	}
	return n
}

// note is the warnings of one code, of one row or of several, with the metrics
// that they concern.
type note struct {
	code     string
	warnings []cell.Warning
	metrics  []cell.Metric
	partly   bool // some row has a metric that the note does not concern
	rows     int
}

// notes returns the notes of rows in order of first use.
func notes(rows ...row) []note {
	var out []note
	for _, r := range rows {
		own := map[string]int{} // metrics of the row that a note concerns
		measured := 0
		for _, m := range slices.SortedFunc(maps.Keys(r.by), cell.CompareMetrics) {
			s := r.by[m]
			if m == cell.ProcessorTime {
				continue
			}
			measured++
			for _, code := range cell.Codes(s.Warnings) {
				i := slices.IndexFunc(out, func(n note) bool { return n.code == code })
				if i < 0 {
					i = len(out)
					out = append(out, note{code: code})
				}
				out[i].warnings = append(out[i].warnings, cell.Coded(s.Warnings, code)...)
				if !slices.Contains(out[i].metrics, m) {
					out[i].metrics = append(out[i].metrics, m)
				}
				own[code]++
			}
		}
		for i := range out {
			if n := own[out[i].code]; n > 0 {
				out[i].rows++
				out[i].partly = out[i].partly || n < measured
			}
		}
	}
	return out
}

// text returns the note, with its metrics unless it concerns all.
func (n note) text() string {
	text := cell.Merge(n.warnings...)
	if !n.partly {
		return text
	}
	latencies := slices.DeleteFunc(slices.Clone(n.metrics), func(m cell.Metric) bool { return !m.IsLatency() })
	var names []string
	for _, m := range slices.SortedFunc(slices.Values(n.metrics), cell.CompareMetrics) {
		name := m.Title()
		if len(latencies) > 2 {
			name = kind(m)
		}
		names = append(names, name)
	}
	return capital(strings.Join(slices.Compact(names), ", ")) + ": " + text
}

// kind returns the metric's title, the same for all latencies.
func kind(m cell.Metric) string {
	if m.IsLatency() {
		return "latency"
	}
	return m.Title()
}

// better returns the direction in which a metric improves.
func better(m cell.Metric) string {
	if m.LowerIsBetter() {
		return "less is better"
	}
	return "more is better"
}

// intervalOf returns the interval of a summary, or "" for a single sample and for a percentile
// above which too few transactions lie.
func intervalOf(s cell.Summary) string {
	if s.N < 2 || s.CILevel == 0 || s.Metric == cell.Ideal || s.Metric == cell.ProcessorTime {
		return ""
	}
	return s.Metric.Scale().Interval(s.CILow, s.CIHigh)
}

// levelText returns the level of the intervals of sums as a percentage, or a range
// of them; "" if no summary has an interval. The level is the one that intervals
// reach at least: a median's covers 95 % or a little more where the number of
// samples allows.
func levelText(sums []cell.Summary) string {
	var levels []float64
	for _, s := range sums {
		if s.N > 1 && s.CILevel > 0 {
			levels = append(levels, s.CILevel)
		}
	}
	return stats.LevelText(levels...)
}

// counts returns how many samples each of sums has.
func counts(sums []cell.Summary) string {
	lo, hi := sums[0].N, sums[0].N
	for _, s := range sums {
		lo, hi = min(lo, s.N), max(hi, s.N)
	}
	if lo == hi {
		return columns.Plural(lo, "sample") + " each"
	}
	return strconv.Itoa(lo) + " to " + columns.Plural(hi, "sample") + " each"
}

func capital(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 || r == utf8.RuneError {
		return s
	}
	return string(unicode.ToUpper(r)) + s[n:]
}
