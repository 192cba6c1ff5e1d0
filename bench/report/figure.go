package report

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// Figure is a set of plots that belong together and share their axes.
type Figure struct {
	Title   string // "Figure 5.1 Local TCP"
	Caption string // how to read it
	XLabel  string // with the unit
	YLabel  string
	Linear  bool // the x axis: never logarithmic
	Panels  []Panel
}

// Panel is one plot: curves over one numeric factor.
type Panel struct {
	Title  string // the levels that are the same for the whole panel; may be empty
	Series []Series
}

// Series is one curve. Its points are in ascending order of X.
type Series struct {
	Name     string
	Baseline bool // drawn as a reference
	Points   []Point
}

// Point is one measured number with its spread, in the units of the axes.
type Point struct {
	X, Y, Low, High float64
	Label           string // the level of X as written
	N               int    // samples
}

// leastLevels is how many levels a numeric factor needs to become an x axis:
// through two points every curve is a line.
const leastLevels = 3

// thesisOrder gives the thesis' figures their numbers.
var thesisOrder = map[string]string{
	"local tcp": "5.1", "local udp": "5.2", "switched tcp": "5.3", "switched udp": "5.4",
}

// Figures arranges the numbers of in as curves: the numeric factor with the most
// levels is the x axis, a line is a network (or, when only one network was
// measured, a level of the next factor), a figure is a metric with a topology
// and a transport, and the rest become panels. It returns nothing when no
// numeric factor has three levels.
func Figures(in Input) []Figure {
	if in.paper() {
		return paperFigures(in)
	}
	var out []Figure
	all := in.available()
	for _, m := range cell.Metrics() {
		if m == cell.Ideal {
			continue // computed, not measured
		}
		u := m.Scale()
		value := func(s cell.Summary) (y, lo, hi float64) {
			y, lo, hi = centre(s, in.thesis())
			return y / u.Per, lo / u.Per, hi / u.Per
		}
		out = append(out, curves(in, ofMetric(all, m), metricName(m), u.Unit, value)...)
	}
	slices.SortStableFunc(out, func(a, b Figure) int {
		if in.thesis() && strings.HasPrefix(a.Title, "Figure") && strings.HasPrefix(b.Title, "Figure") {
			return cmp.Compare(a.Title, b.Title)
		}
		return 0
	})
	return out
}

// costFigures are the curves of processor time per Gbit/s.
func costFigures(in Input) []Figure {
	value := func(s cell.Summary) (y, lo, hi float64) {
		y = s.CoresPerGbit.Total()
		return y, y, y
	}
	var sums []cell.Summary
	for _, s := range ofMetric(in.available(), cell.Throughput) {
		if s.CoresPerGbit.Total() > 0 {
			sums = append(sums, s)
		}
	}
	plain := in
	plain.Preset = "" // the thesis has no such figures, so they get no number
	return curves(plain, sums, "Processor time", "cores per Gbit/s", value)
}

func ofMetric(sums []cell.Summary, m cell.Metric) []cell.Summary {
	var out []cell.Summary
	for _, s := range sums {
		if s.Metric == m {
			out = append(out, s)
		}
	}
	return out
}

// xAxis picks the numeric factor with the most levels.
func xAxis(fs []cell.Factor, sums []cell.Summary) (cell.Factor, bool) {
	var best cell.Factor
	most := leastLevels - 1
	for _, f := range fs {
		vs := values(f, sums)
		n := 0
		for _, v := range vs {
			if _, ok := cell.Number(v); ok {
				n++
			}
		}
		if n > most {
			best, most = f, n
		}
	}
	return best, best.Of != nil
}

type valueFunc func(cell.Summary) (y, lo, hi float64)

func curves(in Input, sums []cell.Summary, name, yLabel string, value valueFunc) []Figure {
	fs := varying(sums)
	x, ok := xAxis(fs, sums)
	if !ok {
		return nil
	}
	line := cell.Factor{Name: "network", Of: func(c cell.Cell) string { return c.Network }}
	rest := without(fs, x)
	if count(line, sums) == 1 && len(rest) > 0 {
		line = slices.MaxFunc(rest, func(a, b cell.Factor) int { return cmp.Compare(count(a, sums), count(b, sums)) })
		rest = without(rest, line)
	}
	outer, inner := split(rest, sums)
	var out []Figure
	for _, group := range groups(outer, sums) {
		f := Figure{
			Title:  figureTitle(in, name, outer, group[0].Cell),
			XLabel: axis(x), YLabel: yLabel,
		}
		f.Caption = curveCaption(in, group, yLabel)
		for _, panel := range groups(inner, group) {
			p := Panel{Title: capital(describe(inner, panel[0].Cell))}
			for _, one := range groups([]cell.Factor{line}, panel) {
				if s := series(line, x, one, value); len(s.Points) > 0 {
					p.Series = append(p.Series, s)
				}
			}
			f.Panels = append(f.Panels, p)
		}
		out = append(out, f)
	}
	return out
}

func count(f cell.Factor, sums []cell.Summary) int { return len(values(f, sums)) }

func without(fs []cell.Factor, f cell.Factor) []cell.Factor {
	return slices.DeleteFunc(slices.Clone(fs), func(g cell.Factor) bool { return g.Name == f.Name })
}

// split tells factors that make a figure of their own from those that make a
// panel: topology and transport always do, others when the panels would become
// too many to be compared at a glance.
func split(fs []cell.Factor, sums []cell.Summary) (outer, inner []cell.Factor) {
	panels := 1
	for _, f := range slices.Backward(fs) {
		n := count(f, sums)
		if f.Name == "topology" || f.Name == "transport" || panels*n > mostPanels {
			outer = append(outer, f)
			continue
		}
		inner = append(inner, f)
		panels *= n
	}
	slices.Reverse(outer)
	slices.Reverse(inner)
	return outer, inner
}

// groups parts sums by their levels, in order of the levels; networks stay in
// catalogue order.
func groups(fs []cell.Factor, sums []cell.Summary) [][]cell.Summary {
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
	ordering := slices.DeleteFunc(slices.Clone(fs), func(f cell.Factor) bool { return f.Name == "network" })
	slices.SortStableFunc(out, func(a, b []cell.Summary) int {
		return cell.Compare(ordering, a[0].Cell, b[0].Cell)
	})
	return out
}

func series(line, x cell.Factor, sums []cell.Summary, value valueFunc) Series {
	c := sums[0].Cell
	s := Series{Name: c.Network, Baseline: catalog.RoleOf(c.Network) == catalog.Baseline}
	if line.Name != "network" {
		s = Series{Name: say(line, line.Of(c))}
	}
	for _, one := range sums {
		level := x.Of(one.Cell)
		at, ok := cell.Number(level)
		if !ok {
			continue
		}
		if isRate(x) {
			at /= 1e9
			level = tickText(at)
		}
		y, lo, hi := value(one)
		s.Points = append(s.Points, Point{X: at, Y: y, Low: lo, High: hi, Label: level, N: one.N})
	}
	slices.SortStableFunc(s.Points, func(a, b Point) int { return cmp.Compare(a.X, b.X) })
	return s
}

func figureTitle(in Input, name string, outer []cell.Factor, c cell.Cell) string {
	if n := thesisOrder[c.Topology+" "+c.Transport]; in.thesis() && name == metricName(cell.Throughput) && n != "" {
		return "Figure " + n + " " + capital(c.Topology) + " " + strings.ToUpper(c.Transport)
	}
	if len(outer) == 0 {
		return name
	}
	return name + ": " + describe(outer, c)
}

func curveCaption(in Input, sums []cell.Summary, yLabel string) string {
	if strings.HasPrefix(yLabel, "cores") {
		return "User, system and softirq time together, of the whole machine; less is better."
	}
	nat := ""
	what := "Points are medians"
	if level := levelText(sums); level != "" {
		what += ", bars their " + level + " intervals"
	}
	if in.thesis() {
		what = "Points are means, bars one standard error each way"
		if sums[0].Metric == cell.Throughput {
			nat = natSentence(sums)
		}
	}
	return what + ", of " + counts(sums) + "; " + better(sums[0].Metric) + "." + nat
}

// levelText is the interval's level as a percentage; when cells differ, as a
// range. A single sample has no interval and no say; "" when there are no others.
func levelText(sums []cell.Summary) string {
	lo, hi := 1.0, 0.0
	for _, s := range sums {
		if s.N > 1 {
			lo, hi = min(lo, s.CILevel), max(hi, s.CILevel)
		}
	}
	if hi == 0 {
		return ""
	}
	a, b := wholePercent(lo), wholePercent(hi)
	if a == b {
		return a + " %"
	}
	return a + "–" + b + " %"
}

// wholePercent rounds down: an interval never covers less than is said.
func wholePercent(level float64) string {
	return strconv.Itoa(int(level*100 + 1e-9))
}

// counts says how many samples stand behind each of sums.
func counts(sums []cell.Summary) string {
	lo, hi := sums[0].N, sums[0].N
	for _, s := range sums {
		lo, hi = min(lo, s.N), max(hi, s.N)
	}
	if lo == hi {
		return cell.Plural(lo, "sample") + " each"
	}
	return strconv.Itoa(lo) + " to " + cell.Plural(hi, "sample") + " each"
}

// capital makes the first letter a capital one.
func capital(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 || r == utf8.RuneError {
		return s
	}
	return string(unicode.ToUpper(r)) + s[n:]
}
