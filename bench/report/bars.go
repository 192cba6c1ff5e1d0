package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// barFigure is a set of horizontal plots with one row per network. All
// horizontal positions are percentages of the plot's width, as text.
type barFigure struct {
	ID, Title, Caption string
	Keys               []key
	Panels             []barPanel
}

// Open returns the panels shown at once, Folded the rest.
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

// tick is a number on an axis. Narrow plots hide those of the Class "minor".
type tick struct{ At, Text, Anchor, Class string }

type barRow struct {
	Name, Title, Sign string
	Class             string // "best", "base" or ""
	Label             string // everything the row shows, in words
	Value, Sub        string
	Grid              []tick
	Ref               string // position of the reference line; "" for none
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

// span is a mark with its interval; Shape is a path around the mark's position.
type span struct{ X, Low, High, Class, Shape, Tip string }

// Shapes of marks in rows.
const (
	stroke  = "M0-8V8"
	disc    = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z"
	square  = "M-4-4h8v8h-8z"
	diamond = "M0-5.5L5.5 0L0 5.5L-5.5 0z"
)

// rowMiddle is the middle of a row's plot in pixels: half of its height in the
// template.
const rowMiddle = 13

type bars struct {
	in    Input
	sums  []cell.Summary // those to draw
	signs map[Mark]string
	by    map[Mark]cell.Summary
	dots  map[Mark][]float64
}

func newBars(in Input, sums []cell.Summary, signs map[Mark]string) bars {
	b := bars{in: in, sums: sums, signs: signs, by: map[Mark]cell.Summary{}, dots: map[Mark][]float64{}}
	for _, s := range sums {
		b.by[markOf(s)] = s
	}
	for _, s := range in.Samples {
		for m, x := range s.Values {
			if !s.Warmup() && s.Bad.Text == "" && s.Error == "" {
				mark := Mark{s.Key(), m}
				b.dots[mark] = append(b.dots[mark], x)
			}
		}
	}
	return b
}

// figures draws every metric. The percentiles of a loop share a figure. A throughput is left
// out where it is shown as a share of what could be reached.
func (b bars) figures() []barFigure {
	var out []barFigure
	for _, m := range cell.MetricsIn(b.sums) {
		sums := filter(ofMetric(b.sums, m), func(s cell.Summary) bool {
			_, relative := b.by[Mark{s.Key(), cell.OfIdeal}]
			return m != cell.Throughput || !relative
		})
		if len(sums) == 0 {
			continue
		}
		switch m.Drawing() {
		case cell.DrawBars:
			out = append(out, b.metric(m, sums))
		case cell.DrawPercentile:
			if cell.Percentiles(m.Loop())[0] == m { // it has the others
				out = append(out, b.latency(m.Loop(), sums))
			}
		case cell.DrawCost:
			out = append(out, b.cost(sums))
		}
	}
	return out
}

// panels splits the sums of one metric by conditions and roles and draws each
// panel on the axis. A panel with a reference line has it at the loopback's number.
func (b bars) panels(sums []cell.Summary, axis scale, per float64, unit string, draw func(r *barRow, s cell.Summary)) []barPanel {
	var out []barPanel
	fs := varying(sums)
	ticks := tickMarks(axis)
	for _, part := range partition(fs, sums) {
		p := barPanel{Title: capital(cell.Describe(fs, part[0].Cell)), Unit: unit, Axis: ticks}
		ref := ""
		if s, ok := reference(part); ok {
			ref = percent(axis.at(s.Median / per))
		}
		for _, g := range arrange(part)[0].groups {
			bg := barGroup{Title: g.title}
			for _, r := range g.rows {
				s := r.by[sums[0].Metric]
				e, _ := catalog.Lookup(s.Network)
				row := barRow{Name: r.label, Title: e.Title, Sign: b.signs[markOf(s)], Grid: ticks, Ref: ref}
				switch {
				case r.role == catalog.Baseline:
					row.Class = "base"
				case leads(row.Sign):
					row.Class = "best"
				}
				draw(&row, s)
				bg.Rows = append(bg.Rows, row)
			}
			p.Groups = append(p.Groups, bg)
		}
		if p.Title != "" && len(p.Groups) == 1 {
			p.Groups[0].Title = ""
		}
		out = append(out, p)
	}
	return out
}

// reference returns the loopback's number, for a line through all rows.
func reference(sums []cell.Summary) (cell.Summary, bool) {
	i := slices.IndexFunc(sums, func(s cell.Summary) bool {
		return catalog.RoleOf(s.Network) == catalog.Baseline && s.Metric != cell.ProcessorTime
	})
	if i < 0 {
		return cell.Summary{}, false
	}
	return sums[i], true
}

// metric shows one metric by network: a bar to the median, the interval, and each
// sample as a dot.
func (b bars) metric(m cell.Metric, sums []cell.Summary) barFigure {
	scale := m.Scale()
	top, dots := 0.0, false
	for _, s := range sums {
		top = max(top, s.CIHigh, s.Median)
		for _, x := range b.dots[markOf(s)] {
			top, dots = max(top, x), true
		}
	}
	axis := linear(top/scale.Per, 5)
	at := func(x float64) string { return percent(axis.at(x / scale.Per)) }
	f := barFigure{ID: string(m), Title: capital(m.Title()), Caption: b.caption(sums, dots), Keys: b.keys(sums)}
	f.Panels = b.panels(sums, axis, scale.Per, scale.Unit, func(r *barRow, s cell.Summary) {
		r.Value, r.Sub = scale.Of(s.Median), intervalOf(s)
		r.Label = r.Name + ": " + r.Value + " " + scale.Unit
		if r.Sub != "" {
			r.Label += ", interval " + r.Sub
		}
		if multiple := b.in.Versus.Beside(s.Network, s.Cell, m); multiple != "" {
			r.Sub = strings.TrimSpace(r.Sub + " " + multiple)
			r.Label += ", " + multiple + " " + b.in.Versus.Subject
		}
		r.Segments = []segment{{"0%", at(s.Median), "bar", r.Label}}
		r.Spans = []span{{at(s.Median), at(s.CILow), at(s.CIHigh), "median", stroke, r.Label}}
		for i, x := range b.dots[markOf(s)] {
			r.Dots = append(r.Dots, dot{at(x), rowMiddle + [...]int{0, -3, 3}[i%3], scale.Of(x) + " " + scale.Unit})
		}
	})
	return f
}

func (b bars) caption(sums []cell.Summary, dots bool) string {
	m := sums[0].Metric
	text := capital(better(m)) + ". A bar ends at the median"
	if about := m.About(); about != "" {
		text = capital(about) + "; " + better(m) + ". A bar ends at the median"
	}
	if level := levelText(sums); level != "" {
		text += ", the whisker is its " + level + " interval"
	}
	if dots {
		text += ", each dot a sample"
	}
	text += "; " + counts(sums) + "."
	if slices.ContainsFunc(sums, func(s cell.Summary) bool { return b.in.Versus.Beside(s.Network, s.Cell, m) != "" }) {
		text += " ×: how many times the number of " + b.in.Versus.Subject + "."
	}
	return text
}

func (b bars) keys(sums []cell.Summary) []key {
	var out []key
	if text := signText(sums, b.signs, "’"); text != "" {
		out = append(out, key{"k-best", text})
	}
	if r, ok := reference(sums); ok {
		out = append(out, key{"k-ref", r.Network})
	}
	return out
}

// signText explains the signs that occur among sums; "" if there are none.
func signText(sums []cell.Summary, signs map[Mark]string, apostrophe string) string {
	var parts []string
	for _, sign := range []struct{ sign, text string }{{"*", "best of its group"}, {"~", "can" + apostrophe + "t be told apart from the best of its group"},
		{notCompared, "not compared with * and ~: other settings"}} {
		if slices.ContainsFunc(sums, func(s cell.Summary) bool { return signs[markOf(s)] == sign.sign }) {
			parts = append(parts, sign.sign+" "+sign.text)
		}
	}
	return strings.Join(parts, "; ")
}

// cost shows the processor time per data moved, split by where it was spent.
func (b bars) cost(sums []cell.Summary) barFigure {
	m := cell.ProcessorTime
	top := 0.0
	for _, s := range sums {
		top = max(top, s.Median)
	}
	axis := linear(top, 5)
	f := barFigure{ID: "cpu", Title: "Processor time per Gbit/s", Caption: capital(better(m)) + ". " + capital(m.About()) + ".",
		Keys: append([]key{{"k-user", "user"}, {"k-system", "system"}, {"k-softirq", "softirq"}}, b.keys(sums)...)}
	f.Panels = b.panels(sums, axis, 1, m.Scale().Unit, func(r *barRow, s cell.Summary) {
		c := s.CoresPerGbit
		r.Value = cell.Digits(c.Total())
		r.Label = fmt.Sprintf("%s: user %s, system %s, softirq %s cores per Gbit/s", r.Name, cell.Digits(c.User), cell.Digits(c.System), cell.Digits(c.SoftIRQ))
		x := 0.0
		for _, part := range []struct {
			class string
			w     float64
		}{{"user", c.User}, {"system", c.System}, {"softirq", c.SoftIRQ}} {
			r.Segments = append(r.Segments, segment{percent(axis.at(x)), percent(axis.at(x+part.w) - axis.at(x)), part.class, part.class + " " + cell.Digits(part.w)})
			x += part.w
		}
	})
	return f
}

// The marks of percentiles in a figure of latencies, the least first.
var percentileMarks = []struct{ class, shape string }{{"p50", disc}, {"p99", square}, {"p999", diamond}}

// latency shows the percentiles of a loop's latencies by network on a logarithmic axis.
func (b bars) latency(loop cell.Loop, sums []cell.Summary) barFigure {
	percentiles := cell.Percentiles(loop)
	scale := percentiles[0].Scale()
	lo, hi := 0.0, 0.0
	for _, s := range b.sums {
		if !slices.Contains(percentiles, s.Metric) {
			continue
		}
		if low := min(s.CILow, s.Median); low > 0 && (lo == 0 || low < lo) {
			lo = low
		}
		hi = max(hi, s.Median, s.CIHigh)
	}
	axis := decades(lo/scale.Per, hi/scale.Per)
	whiskers := ""
	if level := levelText(sums); level != "" {
		whiskers = "whiskers are " + level + " intervals of the median over the blocks, where at least 10 transactions lie above the percentile; "
	}
	f := barFigure{ID: "latency", Title: "Latency", Caption: "Less is better. Of a request and its response; " + sentWhen(sums) + "; " + whiskers + counts(sums) + "."}
	if loop == cell.ClosedLoop {
		f.ID, f.Title = "closed-latency", "Latency in a closed loop"
	}
	var names []string
	for i, m := range percentiles {
		f.Keys = append(f.Keys, key{"k-" + percentileMarks[i].class, m.PercentileName()})
		names = append(names, m.PercentileName())
	}
	f.Keys = append(f.Keys, b.keys(sums)...)
	unit := names[0] + ", " + strings.Join(names[1:], " / ") + " in " + scale.Unit
	f.Panels = b.panels(sums, axis, scale.Per, unit, func(r *barRow, s cell.Summary) {
		var values, words []string
		left, right := 2.0, -1.0
		for i, m := range percentiles {
			one, ok := b.by[Mark{s.Key(), m}]
			if !ok {
				continue
			}
			at := func(x float64) float64 { return axis.at(x / scale.Per) }
			left, right = min(left, at(one.Median)), max(right, at(one.Median))
			tip := m.PercentileName() + " " + scale.Of(one.Median) + " " + scale.Unit
			if interval := intervalOf(one); interval != "" {
				tip += ", interval " + interval
			}
			r.Spans = append(r.Spans, span{percent(at(one.Median)), percent(at(one.CILow)), percent(at(one.CIHigh)), percentileMarks[i].class, percentileMarks[i].shape, tip})
			values = append(values, scale.Of(one.Median))
			words = append(words, tip)
		}
		r.Segments = []segment{{percent(left), percent(right - left), "range", strings.Join(words, "; ")}}
		r.Value, r.Sub = values[0], strings.Join(values[1:], " / ")
		r.Label = r.Name + ": " + strings.Join(words, "; ")
	})
	return f
}

// sentWhen returns when requests are sent, and from when on their latency counts.
func sentWhen(sums []cell.Summary) string {
	const closed, open = "each request follows the last response", "latency counts from its intended send time"
	onSchedule := func(s cell.Summary) bool {
		return s.Loop() == cell.OpenLoop && (s.Factors[cell.RateFactor] != "" || s.Factors["work"] == "loaded")
	}
	n := len(filter(sums, onSchedule))
	switch n {
	case 0:
		return closed
	case len(sums):
		return "each request has a schedule" + ratesOf(sums) + ", and " + open
	}
	return closed + " where no rate is set; else it has a schedule" + ratesOf(sums) + ", and " + open
}

// ratesOf returns the rates of requests: " of 2,300 a second"; "" if they are not known.
func ratesOf(sums []cell.Summary) string {
	lo, hi := 0.0, 0.0
	for _, s := range sums {
		if s.Rate > 0 && (lo == 0 || s.Rate < lo) {
			lo = s.Rate
		}
		hi = max(hi, s.Rate)
	}
	switch {
	case hi == 0:
		return ""
	case lo == hi:
		return " of " + cell.Digits(lo) + " a second" + shareOf(sums)
	}
	return " of " + cell.Digits(lo) + " to " + cell.Digits(hi) + " a second" + shareOf(sums)
}

// shareOf returns what the rate of requests is a share of; "" if it is not the same share everywhere.
func shareOf(sums []cell.Summary) string {
	share := sums[0].Factors[cell.RateFactor]
	if !strings.HasSuffix(share, "%") || slices.ContainsFunc(sums, func(s cell.Summary) bool { return s.Factors[cell.RateFactor] != share }) {
		return ""
	}
	return ", " + strings.TrimSuffix(share, "%") + " % of what the slowest network carries"
}

func percent(x float64) string { return strconv.FormatFloat(x*100, 'f', 2, 64) + "%" }
