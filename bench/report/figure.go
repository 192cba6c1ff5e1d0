package report

import (
	"cmp"
	"maps"
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/internal/look"
)

// figure is a set of plots that belong together and share their axes.
type figure struct {
	Title   string
	Caption string // how to read it
	XLabel  string // with the unit
	YLabel  string
	Linear  bool // the x axis is never logarithmic
	Panels  []panel
	metric  cell.Metric
}

// panel is one plot: curves over one numeric factor.
type panel struct {
	Title  string // the conditions of the panel; may be empty
	Series []series
}

// series is one curve. Its points are in ascending order of X.
type series struct {
	Name     string
	Baseline bool // drawn as a reference
	Points   []point
}

// point is one number with its interval, in the units of the axes.
type point struct {
	X, Y, Low, High float64
	Label           string // the level of X as written
	N               int    // samples
}

const (
	minLevels  = 3 // of a numeric factor that is an x axis: through two points every curve is a line
	mostPanels = 8 // plots that a figure shows at once
)

// curves are the numbers of one metric that lie on curves: at least minLevels of
// them differ in the x axis only.
type curves struct {
	x     cell.Factor
	lines [][]cell.Summary // in the order of the report
}

// findCurves returns the curves of one metric. The x axis is the numeric factor
// with the most levels; ok is false if no curve has enough of them.
func findCurves(sums []cell.Summary) (c curves, ok bool) {
	fs := varying(sums)
	most := minLevels - 1
	for _, f := range fs {
		if n := levels(f, numeric(f, sums)); n > most {
			c.x, most = f, n
		}
	}
	if c.x.Of == nil {
		return c, false
	}
	for _, part := range partition(without(fs, c.isX), numeric(c.x, sums)) {
		for _, r := range rowsOf(part) {
			line := filter(part, func(s cell.Summary) bool { return s.Label() == r.label })
			if levels(c.x, line) >= minLevels {
				c.lines = append(c.lines, line)
			}
		}
	}
	return c, len(c.lines) > 0
}

// numeric returns the summaries whose level of f has a place on an axis.
func numeric(f cell.Factor, sums []cell.Summary) []cell.Summary {
	return filter(sums, func(s cell.Summary) bool {
		_, ok := f.Position(f.Of(s.Cell))
		return ok
	})
}

// figures returns the numbers of in as curves, in the order of metrics, and the marks
// of the numbers on them. A figure is one metric under the levels of the factors that
// part results; other conditions make panels. A curve is a network with its settings,
// or, where there is one such only, a level of another condition.
func (in Input) figures() (out []figure, drawn map[Mark]bool) {
	all := in.available()
	drawn = map[Mark]bool{}
	for _, m := range cell.MetricsIn(all) {
		c, ok := findCurves(ofMetric(all, m))
		if !ok || m == cell.Ideal {
			continue
		}
		for _, s := range slices.Concat(c.lines...) {
			drawn[markOf(s)], drawn[Mark{s.Key(), cell.Ideal}] = true, true
		}
		out = append(out, c.figures(m, all)...)
	}
	return out, drawn
}

// figures lays out the curves of a metric; all holds the summaries of every metric.
func (c curves) figures(m cell.Metric, all []cell.Summary) []figure {
	sums := slices.Concat(c.lines...)
	outer, inner := splitConditions(without(varying(sums), c.isX), sums)
	by := byLabel
	if f := longest(inner, sums); f.Of != nil && levels(byLabel, sums) == 1 {
		by = f
		inner = without(inner, func(g cell.Factor) bool { return g.Name == f.Name })
	}
	var out []figure
	for _, part := range partition(outer, sums) {
		scale := axisScale(m, part)
		f := figure{metric: m, Title: capital(m.Title()), XLabel: c.x.Axis(), YLabel: scale.Unit, Linear: c.x.IsLinear(), Caption: curveCaption(m, part)}
		if text := cell.Describe(outer, part[0].Cell); text != "" {
			f.Title += ": " + text
		}
		for _, shown := range panels(inner, by, part) {
			p := panel{Title: shown.title}
			if bound := c.bound(shown.sums, all, scale); m == cell.Throughput && len(bound.Points) > 0 {
				p.Series = append(p.Series, bound)
			}
			for _, line := range partition([]cell.Factor{by}, shown.sums) {
				p.Series = append(p.Series, c.line(by, line, scale))
			}
			f.Panels = append(f.Panels, p)
		}
		out = append(out, f)
	}
	return out
}

// byLabel makes a curve of each network with its settings.
var byLabel = cell.Factor{Name: labelFactor, Of: cell.Cell.Label}

// labelFactor is the name of factors whose levels are in catalogue order.
const labelFactor = "network"

func (c curves) isX(f cell.Factor) bool { return f.Name == c.x.Name }

// levels returns how many levels of f there are among sums.
func levels(f cell.Factor, sums []cell.Summary) int { return len(partition([]cell.Factor{f}, sums)) }

// longest returns the factor with the most levels; the zero Factor of none.
func longest(fs []cell.Factor, sums []cell.Summary) (f cell.Factor) {
	if len(fs) > 0 {
		f = slices.MaxFunc(fs, func(a, b cell.Factor) int { return cmp.Compare(levels(a, sums), levels(b, sums)) })
	}
	return f
}

// splitConditions separates factors that make a figure of their own from those
// that make a panel. The former are those that part results, and others if the
// panels would become too many to compare at a glance.
func splitConditions(fs []cell.Factor, sums []cell.Summary) (outer, inner []cell.Factor) {
	count := 1
	for _, f := range slices.Backward(fs) {
		n := levels(f, sums)
		if f.PartsResults() || count*n > mostPanels {
			outer = append(outer, f)
			continue
		}
		inner = append(inner, f)
		count *= n
	}
	slices.Reverse(outer)
	slices.Reverse(inner)
	return outer, inner
}

type panelSums struct {
	title string
	sums  []cell.Summary
}

// panels splits the sums of a figure by conditions. If there are more curves than
// colours, a first panel compares the networks, each without settings or with the only
// ones that it has. Each network with several settings has a panel of its own, too.
func panels(conditions []cell.Factor, by cell.Factor, sums []cell.Summary) []panelSums {
	var out []panelSums
	crowded := levels(by, sums) > look.Series
	for _, part := range partition(conditions, sums) {
		title := capital(cell.Describe(conditions, part[0].Cell))
		if !crowded {
			out = append(out, panelSums{title, part})
			continue
		}
		all := panelSums{title: joinWords(title, "all networks")}
		var own []panelSums
		network := cell.Factor{Name: labelFactor, Of: func(c cell.Cell) string { return c.Network }}
		for _, one := range partition([]cell.Factor{network}, part) {
			several := levels(byLabel, one) > 1
			all.sums = append(all.sums, filter(one, func(s cell.Summary) bool { return !several || s.Label() == s.Network })...)
			if several {
				own = append(own, panelSums{joinWords(title, one[0].Network), one})
			}
		}
		out = append(append(out, all), own...)
	}
	return slices.DeleteFunc(out, func(p panelSums) bool { return len(p.sums) == 0 })
}

// joinWords joins two parts of a title, either of which may be empty.
func joinWords(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

func axisScale(m cell.Metric, sums []cell.Summary) cell.Scale {
	if m != cell.Throughput {
		return m.Scale()
	}
	top := 0.0
	for _, s := range sums {
		top = max(top, s.Median)
	}
	return m.ScaleFor(top / 20) // Mbit/s up to 2 Gbit/s: the small end of the axis counts as well
}

// line returns the curve of some numbers, named by their level of f.
func (c curves) line(f cell.Factor, sums []cell.Summary, scale cell.Scale) series {
	s := series{Name: f.Of(sums[0].Cell), Baseline: catalog.RoleOf(sums[0].Network) == catalog.Baseline}
	if f.Name != labelFactor {
		s = series{Name: f.Text(s.Name)}
	}
	for _, one := range sums {
		level := c.x.Of(one.Cell)
		x, _ := c.x.Position(level)
		if y, isNumber := cell.Number(level); isNumber && y != x { // the axis has another unit
			level = tickText(x)
		}
		s.Points = append(s.Points, point{X: x, Y: one.Median / scale.Per, Low: one.CILow / scale.Per, High: one.CIHigh / scale.Per, Label: level, N: one.N})
	}
	slices.SortStableFunc(s.Points, byX)
	return s
}

func byX(a, b point) int { return cmp.Compare(a.X, b.X) }

// bound returns the curve of the most that could be reached where sums were
// measured, as a reference. Where networks differ in it, it is the highest.
func (c curves) bound(sums, all []cell.Summary, scale cell.Scale) series {
	shown := map[string]bool{}
	for _, s := range sums {
		shown[s.Key()] = true
	}
	best := map[float64]point{}
	for _, s := range ofMetric(all, cell.Ideal) {
		level := c.x.Of(s.Cell)
		x, _ := c.x.Position(level)
		if y := s.Median / scale.Per; shown[s.Key()] && y > best[x].Y {
			best[x] = point{X: x, Y: y, Low: y, High: y, Label: level, N: s.N}
		}
	}
	return series{Name: cell.Ideal.Title(), Baseline: true, Points: slices.SortedFunc(maps.Values(best), byX)}
}

func curveCaption(m cell.Metric, sums []cell.Summary) string {
	text := capital(joinWords(m.About(), better(m))) + ". Points are medians"
	if level := levelText(sums); level != "" && m != cell.ProcessorTime {
		text += ", bars their " + level + " intervals"
	}
	return text + ", of " + counts(sums) + "."
}
