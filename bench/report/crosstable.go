package report

import (
	"fmt"
	"slices"
	"strconv"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

// crossTables writes figures as tables: a row for each place on the x axis, a
// column for each line; as many columns at once as fit.
func (t *terminalTable) crossTables(figures []Figure) {
	for _, f := range figures {
		for _, p := range f.Panels {
			heading := f.Title + ", " + p.Title + ": " + f.YLabel
			spread := p.spread(f.XLabel)
			for len(p.Series) > 0 {
				t.para("", heading, bold)
				n := t.fitting(p.Series)
				t.crossTable(f.XLabel, p.Series[:n])
				p.Series = p.Series[n:]
			}
			t.para("  ", spread, dim)
		}
	}
}

// spread says what the numbers of a table are, and how sure the least sure of them
// is, in proportion to itself.
func (p Panel) spread(xLabel string) string {
	least, most := 0, 0
	var widest Point
	name, width := "", 0.0
	for _, s := range p.Series {
		for _, pt := range s.Points {
			if s.Baseline {
				continue
			}
			if most = max(most, pt.N); least == 0 || pt.N < least {
				least = pt.N
			}
			if w := (pt.High - pt.Low) / pt.Y; pt.Y > 0 && w > width {
				widest, name, width = pt, s.Name, w
			}
		}
	}
	text := "medians of " + cell.Plural(most, "sample")
	switch {
	case most == 1:
		text = "one sample each"
	case least < most:
		text = fmt.Sprintf("medians of %d to %d samples", least, most)
	}
	if width > 0 {
		text += fmt.Sprintf("; the widest interval: %s–%s, %s at %s %s", cell.Digits(widest.Low), cell.Digits(widest.High), name, widest.Label, xLabel)
	}
	return text
}

// paper writes the figures of an experiment over several links with what is to be
// known of their numbers, and a table of each kind of traffic for what they do not
// show.
func (t *terminalTable) paper() {
	if shown := t.in.alike(); len(shown) > 0 {
		t.crossTables(paperFigures(t.in))
		t.rows, _, _ = arrange(shown)
		t.readNotes()
		t.notes()
		if best := bestNote(shown); best != "" {
			t.para("note: ", best, "")
		}
	}
	rest := t.in.unlike().available()
	if len(rest) == 0 {
		return
	}
	t.rows, _, _, _ = arrangeByConditions(rest)
	t.readNotes()
	for i, part := range groups([]cell.Factor{trafficFactor}, rest) {
		if i > 0 {
			fmt.Fprintln(t.out)
		}
		heading := capital(traffic(part[0].Cell))
		if links := commonLinks(part); links != "" {
			heading += ", " + links
		}
		t.para("", heading, bold)
		t.byConditions(part)
	}
	t.legend()
	t.terms(rest)
}

// byConditions writes a table with a heading for each combination of links and
// load.
func (t *terminalTable) byConditions(sums []cell.Summary) {
	rows, above, fs, metrics := arrangeByConditions(sums)
	t.rows, t.lifted = rows, nil
	t.columns(fs, metrics)
	t.fit()
	t.body(func(r row) string { return capital(sayConditions(above, r.at)) })
}

// terms explains the words of tables over several links.
func (t *terminalTable) terms(sums []cell.Summary) {
	for _, note := range append(variantNotes(sums), bestNote(sums)) {
		if note != "" {
			t.para("", note, "")
		}
	}
	for _, m := range []cell.Metric{cell.OfIdeal, cell.Outage, cell.LatencyAdded, cell.LostPackets} {
		if len(ofMetric(sums, m)) > 0 {
			over, _ := shortMetric(m, nil, nil)
			t.para("", over+": "+meaning(m), "")
		}
	}
	if len(ofMetric(sums, cell.SteadyOfIdeal)) > 0 {
		t.para("", steadyText(t.in), "")
	}
}

// trafficFactor parts results by their traffic.
var trafficFactor = cell.Factor{Name: "traffic", Of: traffic}

// traffic says what a cell's traffic is.
func traffic(c cell.Cell) string {
	switch {
	case c.Factors["work"] == "loaded":
		return "a stream, and round trips beside it"
	case c.Transport == "udp":
		return "datagrams"
	}
	return cell.Plural(c.Streams, "TCP stream")
}

// crossWidth is a column's width: its name, or a number.
func crossWidth(s Series) int { return max(columns.Of(columns.Plain(s.Name)), len("12345")) }

// fitting is how many of the lines fit beside the x axis, at least one.
func (t *terminalTable) fitting(lines []Series) int {
	room := t.Width - len("links")
	for i, s := range lines {
		if room -= gutter + crossWidth(s); room < 0 {
			return max(i, 1)
		}
	}
	return len(lines)
}

func (t *terminalTable) crossTable(xLabel string, lines []Series) {
	type place struct {
		x     float64
		label string
	}
	var places []place
	for _, s := range lines {
		for _, p := range s.Points {
			if !slices.ContainsFunc(places, func(o place) bool { return o.x == p.X }) {
				places = append(places, place{p.X, p.Label})
			}
		}
	}
	slices.SortFunc(places, func(a, b place) int { return byX(Point{X: a.x}, Point{X: b.x}) })
	table := *t
	table.cols = []column{{head: xLabel, right: true}}
	ws := []int{max(columns.Of(xLabel), len("64"))}
	for _, s := range lines {
		table.cols = append(table.cols, column{head: s.Name, right: true})
		ws = append(ws, crossWidth(s))
	}
	table.line(ws, func(c column) (string, string) { return c.head, dim })
	for _, at := range places {
		i := -2
		table.line(ws, func(column) (string, string) {
			if i++; i < 0 {
				return at.label, ""
			}
			return valueAt(lines[i], at.x), ""
		})
	}
}

// valueAt is a line's number at a place, or None.
func valueAt(s Series, x float64) string {
	i := slices.IndexFunc(s.Points, func(p Point) bool { return p.X == x })
	if i < 0 {
		return cell.None
	}
	if y := s.Points[i].Y; y >= 99.95 && y < 1e5 { // no exponent, and no false zeros
		return strconv.FormatFloat(y, 'f', 0, 64)
	}
	return cell.Digits(s.Points[i].Y)
}
