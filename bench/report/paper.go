package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// paper tells whether the report has the form of Kovács and Lencse: all of it was
// measured over several links. What they carry together by their number is drawn
// with the computed ideal, and networks are compared where links are the same.
func (in Input) paper() bool {
	some := false
	for _, s := range in.Summaries {
		if !has(s) {
			continue
		}
		if some = true; catalog.RoleOf(s.Network) != catalog.Multipath {
			return false
		}
	}
	return some
}

// byNumber tells whether a cell belongs to these figures: links that are all
// alike, of a known rate, one TCP stream, and nothing of the network's own varied.
func byNumber(c cell.Cell) bool {
	is := func(factor string, levels ...string) bool {
		level := c.Factors[factor]
		return level == "" || slices.Contains(levels, level)
	}
	return catalog.RoleOf(c.Network) == catalog.Multipath && c.Streams == 1 && c.Transport != "udp" && c.Factors["link_rate"] != "" &&
		is("variant", "plain") && is("scheduler", "adaptive") && is("crypto", "off") && is("outer", "ipv4") && is("work", "tcp")
}

// native tells whether nothing of a cell runs in a container.
func native(c cell.Cell) bool { return c.Runtime == "" || c.Runtime == cell.Native }

// What of a cell with a runtime runs in it: levels of the factor "contained".
const (
	containedEnds    = "ends"    // client and server
	containedProgram = "program" // the network's own
)

// paperFigure is one of the figures: which cells it shows, and what makes a line.
type paperFigure struct {
	title string
	plain string // the title where nothing ran in containers; "": it is not shown then
	has   func(cell.Cell) bool
	line  func(cell.Cell) string
}

func runtimeOf(c cell.Cell) string { return c.Runtime }

// contained tells whether a cell is native, or has this of it in a container.
func contained(c cell.Cell, what string) bool {
	return native(c) || c.Factors["contained"] == what
}

// networkLine names a network with its settings.
func networkLine(c cell.Cell) string {
	if settings := c.Factors["settings"]; settings == "best" {
		return c.Network + ", " + settings
	}
	return c.Network
}

// paperOrder are the figures; the first shows itself only where there are
// containers, since it is the second without them.
var paperOrder = []paperFigure{
	{"Figure 5 Generator in containers, the tunnel native", "",
		func(c cell.Cell) bool { return c.Network == "tunnel" && contained(c, containedEnds) }, runtimeOf},
	{"Figure 6 The tunnel in containers, generator native", "Figure 6 The tunnel, all native",
		func(c cell.Cell) bool { return c.Network == "tunnel" && contained(c, containedProgram) }, runtimeOf},
	{"Figure 7 MPTCP, generator in containers", "Figure 7 MPTCP, all native",
		func(c cell.Cell) bool { return c.Network == "mptcp" }, runtimeOf},
	{"All networks, native", "All networks, native", native, networkLine},
}

// paperFigures are throughput by the number of links, and of all networks also
// as a part of the ideal.
func paperFigures(in Input) []Figure {
	all := in.alike()
	var out []Figure
	for _, p := range paperOrder {
		sums := slices.DeleteFunc(slices.Clone(all), func(s cell.Summary) bool { return !p.has(s.Cell) })
		if !slices.ContainsFunc(sums, func(s cell.Summary) bool { return !native(s.Cell) }) {
			p.title = p.plain
		}
		if p.title == "" {
			continue
		}
		if f, ok := p.figure(in, sums, cell.Throughput); ok {
			out = append(out, f)
		}
	}
	last := paperOrder[len(paperOrder)-1]
	last.title = "Part of the ideal, all networks"
	if f, ok := last.figure(in, slices.DeleteFunc(all, func(s cell.Summary) bool { return !last.has(s.Cell) }), cell.OfIdeal); ok {
		out = append(out, f)
	}
	return out
}

// rateFactor parts a figure into panels.
var rateFactor = cell.Factor{Name: "link_rate", Of: func(c cell.Cell) string { return c.Factors["link_rate"] }}

// figure draws one metric of sums; false: there is nothing to draw.
func (p paperFigure) figure(in Input, sums []cell.Summary, m cell.Metric) (Figure, bool) {
	f := Figure{Title: p.title, XLabel: "links", YLabel: "Mbit/s", Linear: true}
	per := 1e6
	if m == cell.OfIdeal {
		f.YLabel, per = "% of the ideal", 0.01
	}
	shown := ofMetric(sums, m)
	if len(shown) == 0 {
		return f, false
	}
	f.Caption = paperCaption(in, shown)
	for _, panel := range groups([]cell.Factor{rateFactor}, sums) {
		one := Panel{Title: "links of " + rateText(rateFactor.Of(panel[0].Cell))}
		if m == cell.Throughput {
			if s := idealSeries(ofMetric(panel, cell.Ideal)); len(s.Points) > 0 {
				one.Series = append(one.Series, s)
			}
		}
		one.Series = append(one.Series, p.lines(in, ofMetric(panel, m), per)...)
		f.Panels = append(f.Panels, one)
	}
	return f, true
}

// rateText writes a link's rate.
func rateText(level string) string {
	x, ok := cell.Number(level)
	switch {
	case !ok:
		return level
	case x >= 1e9:
		return tickText(x/1e9) + " Gbit/s"
	}
	return tickText(x/1e6) + " Mbit/s"
}

// commonLinks says which links all of sums had, as far as they had the same; no
// column says what does not vary.
func commonLinks(sums []cell.Summary) string {
	same := func(of func(cell.Cell) string) bool {
		return !slices.ContainsFunc(sums, func(s cell.Summary) bool { return of(s.Cell) != of(sums[0].Cell) })
	}
	if len(sums) == 0 || !same(func(c cell.Cell) string { return fmt.Sprint(c.Links) }) || sums[0].Links == 0 {
		return ""
	}
	text := cell.Plural(sums[0].Links, "link")
	if rate := rateFactor.Of(sums[0].Cell); rate != "" && same(rateFactor.Of) {
		text += " of " + rateText(rate)
	}
	return text
}

// lines are one series for each line, in the order of the catalogue.
func (p paperFigure) lines(in Input, sums []cell.Summary, per float64) []Series {
	var out []Series
	for _, s := range sums {
		name := p.line(s.Cell)
		i := slices.IndexFunc(out, func(o Series) bool { return o.Name == name })
		if i < 0 {
			i = len(out)
			out = append(out, Series{Name: name})
		}
		y, lo, hi := centre(s, in.thesis())
		out[i].Points = append(out[i].Points, Point{X: float64(s.Links), Y: y / per, Low: lo / per, High: hi / per, Label: fmt.Sprint(s.Links), N: s.N})
	}
	for i := range out {
		slices.SortStableFunc(out[i].Points, byX)
	}
	slices.SortStableFunc(out, func(a, b Series) int { // what the others are compared with comes first
		return cmp.Compare(btoi(a.Name != cell.Native), btoi(b.Name != cell.Native))
	})
	return out
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func byX(a, b Point) int { return cmp.Compare(a.X, b.X) }

// idealSeries is the computed line: where networks differ in it, the highest.
func idealSeries(sums []cell.Summary) Series {
	s := Series{Name: "ideal", Baseline: true}
	best := map[int]cell.Summary{}
	for _, one := range sums {
		if known, ok := best[one.Links]; !ok || one.Median > known.Median {
			best[one.Links] = one
		}
	}
	for links, one := range best {
		y := one.Median / 1e6
		s.Points = append(s.Points, Point{X: float64(links), Y: y, Low: y, High: y, Label: fmt.Sprint(links), N: one.N})
	}
	slices.SortFunc(s.Points, byX)
	return s
}

func paperCaption(in Input, sums []cell.Summary) string {
	text := "One TCP stream; points are medians"
	if level := levelText(sums); level != "" {
		text += ", bars their " + level + " intervals"
	}
	if ccs := values(cell.Factor{Name: "congestion", Of: func(c cell.Cell) string { return c.Congestion }}, sums); len(ccs) == 1 && ccs[0] != "" {
		text += ", of " + counts(sums) + ", with " + ccs[0]
	} else {
		text += ", of " + counts(sums)
	}
	text += ". The ideal is computed: the payload that the links' rates leave room for beside the headers of each packet."
	if best := bestNote(sums); best != "" {
		text += " " + capital(best) + "."
	}
	return text
}

// steadyText says which part of a measurement is called steady: the experiment's
// groups may begin it later than after the first 2 s.
func steadyText(in Input) string {
	var later []string
	experiment, _ := in.Environment["experiment"].(map[string]any)
	groups, _ := experiment["groups"].([]any)
	for _, g := range groups {
		group, _ := g.(map[string]any)
		work, _ := group["work"].([]any)
		for _, w := range work {
			one, _ := w.(map[string]any)
			from, _ := one["steady"].(string)
			text := fmt.Sprintf("after %s of measurements of %v", from, one["duration"])
			if from != "" && from != "0s" && !slices.Contains(later, text) {
				later = append(later, text)
			}
		}
	}
	return strings.Join(append([]string{"Steady is what comes after the first 2 s"}, later...), ", and ") + "."
}

// alike are the results that those figures show: none, where no line would have
// the points of a curve.
func (in Input) alike() []cell.Summary {
	all := slices.DeleteFunc(in.available(), func(s cell.Summary) bool { return !byNumber(s.Cell) })
	links := map[string]map[int]bool{}
	for _, s := range all {
		line := rateFactor.Of(s.Cell) + "\x00" + in.rowName(s.Cell)
		if links[line] == nil {
			links[line] = map[int]bool{}
		}
		if links[line][s.Links] = true; len(links[line]) == leastLevels {
			return all
		}
	}
	return nil
}

// unlike are the results that those figures do not show, as an input of its own.
func (in Input) unlike() Input {
	if len(in.alike()) == 0 {
		return in
	}
	in.Summaries = slices.DeleteFunc(slices.Clone(in.Summaries), func(s cell.Summary) bool { return byNumber(s.Cell) })
	in.Samples = slices.DeleteFunc(slices.Clone(in.Samples), func(s cell.Sample) bool { return byNumber(s.Cell) })
	return in
}

// unshaped are the results over links of no rate, which have no ideal.
func (in Input) unshaped() Input {
	in.Summaries = slices.DeleteFunc(slices.Clone(in.Summaries), func(s cell.Summary) bool { return rateFactor.Of(s.Cell) != "" })
	in.Samples = slices.DeleteFunc(slices.Clone(in.Samples), func(s cell.Sample) bool { return rateFactor.Of(s.Cell) != "" })
	return in
}

// paperMetrics are what the other results are drawn by, as bars.
var paperMetrics = []cell.Metric{cell.OfIdeal, cell.EarlyOfIdeal, cell.SteadyOfIdeal, cell.Outage, cell.LostPackets, cell.LatencyAdded}

// paper draws the page's figures for an experiment of this form.
func (p *page) paper(in Input, signs map[Mark]string) {
	figures := paperFigures(in)
	names := seriesNames(figures)
	for _, f := range figures {
		p.addLines(f.YLabel, layOut(f, names))
	}
	rest := in.unlike()
	add := func(in Input, m cell.Metric, title string) {
		sums := ofMetric(in.available(), m)
		if len(sums) == 0 {
			return
		}
		f := plotBars(in, m, signs)
		if title != "" {
			f.Title = title
		}
		if links := commonLinks(sums); links != "" {
			f.Caption += " Over " + links + "."
		}
		if len(p.Bars) == 0 {
			for _, note := range append(variantNotes(rest.available()), bestNote(rest.available())) {
				if note != "" {
					f.Caption += " " + capital(note) + "."
				}
			}
		}
		p.Bars = append(p.Bars, f)
	}
	for _, m := range paperMetrics {
		add(rest, m, "")
	}
	add(rest.unshaped(), cell.Throughput, "Throughput, as fast as the machine goes")
}
