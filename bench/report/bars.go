package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// barFigure is a set of horizontal plots with one row per network. All
// horizontal places are percentages of the plot's width, as text.
type barFigure struct {
	ID, Title, Caption string
	Keys               []key
	Unit               string
	Panels             []barPanel
}

// mostPanels is how many plots a figure shows at once; the rest is folded away.
const mostPanels = 8

// Open are the panels shown at once, Folded the rest.
func (f barFigure) Open() []barPanel   { return f.Panels[:min(mostPanels, len(f.Panels))] }
func (f barFigure) Folded() []barPanel { return f.Panels[min(mostPanels, len(f.Panels)):] }

// key explains one colour or sign.
type key struct{ Class, Text string }

type barPanel struct {
	Title  string
	Unit   string
	Axis   []tick
	Groups []barGroup
}

type barGroup struct {
	Title string
	Rows  []barRow
}

// tick is a number on an axis; the Class "minor" lets narrow plots leave it out.
type tick struct{ At, Text, Anchor, Class string }

type barRow struct {
	Name, Title, Sign string
	Class             string // "best", "base" or ""
	Label             string // everything the row shows, in words
	Value, Sub        string
	Grid              []tick
	Ref               string // where the reference line is; "" for none
	Segments          []segment
	Dots              []dot
	Spans             []span
}

type segment struct{ X, W, Class, Tip string }

type dot struct {
	X   string
	Y   int // pixels below the row's upper edge
	Tip string
}

// span is a mark with its interval; Shape is a path around the mark's place.
type span struct{ X, Low, High, Class, Shape, Tip string }

// Shapes of marks in rows.
const (
	stroke  = "M0-8V8"
	disc    = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z"
	square  = "M-4-4h8v8h-8z"
	diamond = "M0-5.5L5.5 0L0 5.5L-5.5 0z"
)

// rowMiddle is the middle of a row's plot, in pixels: half of the height that
// the template gives it.
const rowMiddle = 13

func percent(x float64) string { return strconv.FormatFloat(x*100, 'f', 2, 64) + "%" }

// Distances between two numbers on an axis, as parts of its width: closer than
// crowded on a wide screen they would touch, closer than tight on a telephone.
const (
	crowded = 0.07
	tight   = 0.16
)

func tickMarks(s scale) []tick {
	out := make([]tick, len(s.ticks))
	wide, narrow := 2.0, 2.0 // the places of the nearest numbers to the right
	for i := len(s.ticks) - 1; i >= 0; i-- {
		at := s.at(s.ticks[i])
		t := tick{At: percent(at), Text: tickText(s.ticks[i]), Anchor: "middle"}
		switch i {
		case 0:
			t.Anchor = "start"
		case len(s.ticks) - 1:
			t.Anchor = "end"
		}
		switch {
		case wide-at < crowded:
			t.Text = ""
		case narrow-at < tight:
			t.Class = "minor"
			wide = at
		default:
			wide, narrow = at, at
		}
		out[i] = t
	}
	return out
}

// tickText writes a tick without needless zeros.
func tickText(x float64) string {
	if x >= 10000 {
		return strconv.FormatFloat(x/1000, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(x, 'g', 5, 64)
}

// barPanels parts sums by the factors that vary, or by the conditions over several
// links, and each part into roles.
func barPanels(in Input, sums []cell.Summary, make func(panel []cell.Summary) barPanel) []barPanel {
	fs, title := varying(sums), describe
	if in.paper() {
		fs, title = conditions(sums), sayConditions
	}
	var out []barPanel
	for _, part := range groups(fs, sums) {
		p := make(part)
		p.Title = capital(title(fs, part[0].Cell))
		out = append(out, p)
	}
	return out
}

// byRole puts the rows of one panel under their roles; within a role the best
// comes first, except for baselines, which keep the catalogue's order. Where there
// is no other role than that of several links it needs no title.
func byRole(in Input, sums []cell.Summary, row func(cell.Summary) barRow) []barGroup {
	parts := map[catalog.Role][]cell.Summary{}
	for _, s := range sums {
		parts[catalog.RoleOf(s.Network)] = append(parts[catalog.RoleOf(s.Network)], s)
	}
	var out []barGroup
	for _, role := range catalog.Roles() {
		part := parts[role]
		if len(part) == 0 {
			continue
		}
		if role != catalog.Baseline {
			slices.SortStableFunc(part, func(a, b cell.Summary) int {
				if a.Metric.LowerIsBetter() {
					return cmp.Compare(a.Median, b.Median)
				}
				return cmp.Compare(b.Median, a.Median)
			})
		}
		g := barGroup{Title: role.Title()}
		if in.paper() {
			g.Title = ""
		}
		for _, s := range part {
			g.Rows = append(g.Rows, row(s))
		}
		out = append(out, g)
	}
	return out
}

// reference is the number of loopback in the panel, for the line through all
// rows.
func reference(sums []cell.Summary) (cell.Summary, bool) {
	for _, name := range []string{"loopback", "host-loopback"} {
		for _, s := range sums {
			if s.Network == name {
				return s, true
			}
		}
	}
	return cell.Summary{}, false
}

// plotBars shows one metric by network: a bar to the median, the interval, and
// each sample as a dot.
func plotBars(in Input, m cell.Metric, signs map[Mark]string) barFigure {
	sums := ofMetric(in.available(), m)
	u := m.Scale()
	dots := samplesOf(in, m)
	top := 0.0
	for _, s := range sums {
		_, _, hi := centre(s, in.thesis())
		top = max(top, hi, s.Median)
		for _, x := range dots[s.Key()] {
			top = max(top, x)
		}
	}
	sc := linear(top/u.Per, 5)
	f := barFigure{ID: string(m), Title: metricName(m), Unit: u.Unit, Caption: barCaption(in, sums, len(dots) > 0)}
	f.Keys = barKeys(sums, m, signs)
	f.Panels = barPanels(in, sums, func(panel []cell.Summary) barPanel {
		p := barPanel{Axis: tickMarks(sc), Unit: f.Unit}
		ref := ""
		if r, ok := reference(panel); ok {
			y, _, _ := centre(r, in.thesis())
			ref = percent(sc.at(y / u.Per))
		}
		p.Groups = byRole(in, panel, func(s cell.Summary) barRow {
			r := newRow(s, signs[Mark{s.Key(), m}], p.Axis, ref)
			r.Name = in.rowName(s.Cell)
			y, lo, hi := centre(s, in.thesis())
			r.Value, r.Sub = u.Of(y), intervalOf(s, u.Interval(lo, hi))
			r.Label = r.Name + ": " + r.Value + " " + u.Unit
			if r.Sub != "" {
				r.Label += ", interval " + r.Sub
			}
			if beside := in.Versus.Beside(s.Network, s.Cell, m); beside != "" {
				r.Sub = strings.TrimSpace(r.Sub + " " + beside)
				r.Label += ", " + beside + " " + in.Versus.Subject
			}
			r.Segments = []segment{{"0%", percent(sc.at(y / u.Per)), "bar", r.Label}}
			r.Spans = []span{{percent(sc.at(y / u.Per)), percent(sc.at(lo / u.Per)), percent(sc.at(hi / u.Per)), "median", stroke, r.Label}}
			for i, x := range dots[s.Key()] {
				r.Dots = append(r.Dots, dot{percent(sc.at(x / u.Per)), rowMiddle + [...]int{0, -3, 3}[i%3], u.Of(x) + " " + u.Unit})
			}
			return r
		})
		return p
	})
	return f
}

func newRow(s cell.Summary, sign string, axis []tick, ref string) barRow {
	e, _ := catalog.Lookup(s.Network)
	r := barRow{Name: s.Network, Title: e.Title, Sign: sign, Grid: axis, Ref: ref}
	switch {
	case e.Role == catalog.Baseline:
		r.Class = "base"
	case sign != "":
		r.Class = "best"
	}
	return r
}

// samplesOf collects the values that count, by cell.
func samplesOf(in Input, m cell.Metric) map[string][]float64 {
	out := map[string][]float64{}
	for _, s := range in.Samples {
		if v, ok := s.Values[m]; ok && !s.Warmup() && s.Bad == "" && s.Error == "" {
			out[s.Key()] = append(out[s.Key()], v)
		}
	}
	return out
}

func barCaption(in Input, sums []cell.Summary, dots bool) string {
	what := "A bar ends at the median"
	if level := levelText(sums); level != "" {
		what += ", the whisker is its " + level + " interval"
	}
	if in.thesis() {
		what = "A bar ends at the mean, the whisker is one standard error each way"
	}
	if dots {
		what += ", each dot a sample"
	}
	text := capital(better(sums[0].Metric)) + ". "
	if m := meaning(sums[0].Metric); m != "" {
		text = capital(m) + "; " + better(sums[0].Metric) + ". "
	}
	text += what + "; " + counts(sums) + "."
	if slices.ContainsFunc(sums, func(s cell.Summary) bool { return in.Versus.Beside(s.Network, s.Cell, s.Metric) != "" }) {
		text += " ×: how many times the number of " + in.Versus.Subject + "."
	}
	if sums[0].Metric == cell.SteadyOfIdeal {
		text += " " + steadyText(in)
	}
	return text
}

// barKeys explains the signs that really occur.
func barKeys(sums []cell.Summary, m cell.Metric, signs map[Mark]string) []key {
	var out []key
	has := func(sign string) bool {
		return slices.ContainsFunc(sums, func(s cell.Summary) bool { return signs[Mark{s.Key(), m}] == sign })
	}
	switch best, tie := has("*"), has("~"); {
	case best && tie:
		out = append(out, key{"k-best", "best of its group (*), or can’t be told apart from it (~)"})
	case best:
		out = append(out, key{"k-best", "best of its group (*)"})
	case tie:
		out = append(out, key{"k-best", "can’t be told apart from the best of its group (~)"})
	}
	if r, ok := reference(sums); ok && m != cell.ProcessorTime {
		out = append(out, key{"k-ref", r.Network})
	}
	return out
}

// plotCPU shows the processor time per data moved, split by where it was spent.
// Where a numeric factor has many levels, only its lowest is shown.
func plotCPU(in Input, signs map[Mark]string) (barFigure, bool) {
	var sums []cell.Summary
	top := 0.0
	for _, s := range ofMetric(in.available(), cell.Throughput) {
		if s.CoresPerGbit.Total() > 0 {
			sums = append(sums, s)
		}
	}
	f := barFigure{ID: "cpu", Title: "Processor time per Gbit/s", Unit: "cores per Gbit/s",
		Keys:    []key{{"k-user", "user"}, {"k-system", "system"}, {"k-softirq", "softirq"}},
		Caption: "Less is better. What the whole machine spent, both ends together: 0.1 means that 10 Gbit/s keep one processor busy."}
	if x, ok := xAxis(varying(sums), sums); ok {
		level := ""
		sums, level = lowest(x, sums)
		f.Caption += " Here with " + say(x, level) + "."
	}
	if len(sums) == 0 {
		return f, false
	}
	for _, s := range sums {
		top = max(top, s.CoresPerGbit.Total())
	}
	f.Keys = append(f.Keys, barKeys(sums, cell.ProcessorTime, signs)...)
	sc := linear(top, 5)
	f.Panels = barPanels(in, sums, func(panel []cell.Summary) barPanel {
		p := barPanel{Axis: tickMarks(sc), Unit: f.Unit}
		p.Groups = byRole(in, panel, func(s cell.Summary) barRow {
			r := newRow(s, signs[Mark{s.Key(), cell.ProcessorTime}], p.Axis, "")
			c := s.CoresPerGbit
			r.Value = cell.Digits(c.Total())
			r.Label = fmt.Sprintf("%s: user %s, system %s, softirq %s cores per Gbit/s", s.Network, cell.Digits(c.User), cell.Digits(c.System), cell.Digits(c.SoftIRQ))
			x := 0.0
			for _, part := range []struct {
				class string
				w     float64
			}{{"user", c.User}, {"system", c.System}, {"softirq", c.SoftIRQ}} {
				r.Segments = append(r.Segments, segment{percent(sc.at(x)), percent(sc.at(x+part.w) - sc.at(x)), part.class, part.class + " " + cell.Digits(part.w)})
				x += part.w
			}
			return r
		})
		for i := range p.Groups {
			slices.SortStableFunc(p.Groups[i].Rows, func(a, b barRow) int { return cmp.Compare(number64(a.Value), number64(b.Value)) })
		}
		return p
	})
	return f, true
}

func number64(s string) float64 { x, _ := strconv.ParseFloat(s, 64); return x }

// lowest keeps the summaries at the smallest level of x that is a number.
func lowest(x cell.Factor, sums []cell.Summary) ([]cell.Summary, string) {
	for _, level := range values(x, sums) {
		if _, ok := cell.Number(level); ok {
			return slices.DeleteFunc(slices.Clone(sums), func(s cell.Summary) bool { return x.Of(s.Cell) != level }), level
		}
	}
	return sums, ""
}

// plotLatency shows the three percentiles of each network on a logarithmic axis.
func plotLatency(in Input, signs map[Mark]string) (barFigure, bool) {
	percentiles := []struct {
		m           cell.Metric
		class, name string
		shape       string
	}{{cell.LatencyP50, "p50", "p50", disc}, {cell.LatencyP99, "p99", "p99", square}, {cell.LatencyP999, "p999", "p99.9", diamond}}
	all := in.available()
	sums := ofMetric(all, cell.LatencyP50)
	if len(sums) == 0 {
		return barFigure{}, false
	}
	by := map[Mark]cell.Summary{}
	lo, hi := 0.0, 0.0
	for _, p := range percentiles {
		for _, s := range ofMetric(all, p.m) {
			by[Mark{s.Key(), p.m}] = s
			y, a, b := centre(s, in.thesis())
			if a = min(a, y); a > 0 && (lo == 0 || a < lo) {
				lo = a
			}
			hi = max(hi, y, b)
		}
	}
	u := cell.LatencyP50.Scale()
	sc := decades(lo/u.Per, hi/u.Per)
	whiskers := ""
	if level := levelText(sums); level != "" {
		whiskers = "whiskers are " + level + " intervals of the median over the blocks; "
	}
	f := barFigure{ID: "latency", Title: "Latency", Unit: "p50, p99 / p99.9 in " + u.Unit,
		Caption: "Less is better. Of a request and its response, from the intended send time; " + whiskers + counts(sums) + ".",
		Keys:    append([]key{{"k-p50", "p50"}, {"k-p99", "p99"}, {"k-p999", "p99.9"}}, barKeys(sums, cell.LatencyP50, signs)...)}
	f.Panels = barPanels(in, sums, func(panel []cell.Summary) barPanel {
		p := barPanel{Axis: tickMarks(sc), Unit: f.Unit}
		ref := ""
		if r, ok := reference(panel); ok {
			ref = percent(sc.at(r.Median / u.Per))
		}
		p.Groups = byRole(in, panel, func(s cell.Summary) barRow {
			r := newRow(s, signs[Mark{s.Key(), s.Metric}], p.Axis, ref)
			var values, words []string
			ends := [2]float64{2, -1}
			for _, pc := range percentiles {
				one, ok := by[Mark{s.Key(), pc.m}]
				if !ok {
					continue
				}
				y, a, b := centre(one, in.thesis())
				at := sc.at(y / u.Per)
				ends[0], ends[1] = min(ends[0], at), max(ends[1], at)
				tip := pc.name + " " + u.Of(y) + " µs" + intervalOf(s, ", interval "+u.Interval(a, b))
				r.Spans = append(r.Spans, span{percent(at), percent(sc.at(a / u.Per)), percent(sc.at(b / u.Per)), pc.class, pc.shape, tip})
				values = append(values, u.Of(y))
				words = append(words, tip)
			}
			r.Segments = []segment{{percent(ends[0]), percent(ends[1] - ends[0]), "range", strings.Join(words, "; ")}}
			r.Value = values[0]
			r.Sub = strings.Join(values[1:], " / ")
			r.Label = s.Network + ": " + strings.Join(words, "; ")
			return r
		})
		return p
	})
	return f, true
}
