package report

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
	"cleat/bench/summary"
	"cleat/internal/columns"
)

// Terminal is a terminal that tables are written for. The zero value has 80
// columns and no colour.
type Terminal struct {
	Width  int  // columns; 0 means 80, and less than 40 counts as 40
	Colour bool // ANSI bold, dim and green; set it for a terminal only
}

// Styles of a table's parts, as ANSI SGR numbers.
const (
	bold  = "1"
	dim   = "2"
	green = "32"
)

type writer struct {
	Terminal
	out   *bufio.Writer
	in    Input
	signs map[Mark]string
	all   []note // notes that every row has
	feet  []note // other notes of rows that refer to them by number
	some  []note // notes of numbers that are not shown as rows
	lohi  bool   // a table has the column intervalHead
}

// column is one column of a table. text is called for each row.
type column struct {
	over, head string // the two lines of its head
	rank       cell.Rank
	left       bool // the others are flush right
	text       func(row) string
	style      func(row) string
}

// Table writes the results. An experiment with a subject is shown as a comparison
// with its rivals, metrics with an x axis as a table of curves, and the rest as a
// row for each network. Footnotes follow, and what is missing with its reason.
func (t Terminal) Table(w io.Writer, in Input) error {
	if t.Width == 0 {
		t.Width = 80
	}
	t.Width = max(t.Width, 40)
	wr := &writer{Terminal: t, out: bufio.NewWriter(w), in: in, signs: in.symbols()}
	if in.Partial {
		wr.paragraph("", "PARTIAL: the run was interrupted; what follows was measured before.", bold)
	}
	for _, n := range in.Notes {
		wr.paragraph("note: ", n, "")
	}
	if err := wr.results(); err != nil {
		return err
	}
	absent := absentees(in)
	if len(absent.interrupted) > 0 {
		wr.paragraph("Not measured: interrupted: ", strings.Join(absent.interrupted, ", "), "")
	}
	wr.missing("Unavailable here:", absent.unavailable)
	wr.missing("Not applicable, by design:", absent.notApplicable)
	if err := wr.out.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func (w *writer) results() error {
	sums := w.in.available()
	if len(sums) == 0 {
		w.paragraph("", "Nothing was measured.", bold)
		return nil
	}
	var figures []figure
	if w.in.Versus != nil {
		if err := w.in.Versus.Table(columns.Text(w.out)); err != nil {
			return err
		}
		fmt.Fprintln(w.out)
		own := catalog.RoleOf(w.in.Versus.Subject)
		sums = filter(sums, func(s cell.Summary) bool { // the comparison shows the others
			role := catalog.RoleOf(s.Network)
			return role != own && role != catalog.Baseline
		})
	} else {
		var drawn map[Mark]bool
		figures, drawn = w.in.figures()
		sums = filter(sums, func(s cell.Summary) bool { return !drawn[markOf(s)] })
	}
	for _, f := range figures {
		if f.metric.Rank() != cell.RankDetail { // the page has them all
			w.figure(f)
		}
	}
	sections := arrange(sums)
	w.readNotes(allRows(arrange(w.in.available())), allRows(sections))
	for i, s := range sections {
		if i > 0 || len(figures) > 0 {
			fmt.Fprintln(w.out)
		}
		w.section(s)
	}
	w.legend(sums)
	return nil
}

// section writes a table with as many columns as fit. The rows of a group are
// indented below its title; the only network of a role needs no title.
func (w *writer) section(s section) {
	if s.title != "" {
		w.paragraph("", s.title, bold)
	}
	titled := func(g group) bool {
		return g.title != "" && (len(s.groups) == 1 || len(g.rows) > 1 || !g.roleOnly)
	}
	for _, g := range s.groups {
		for i := range g.rows {
			if titled(g) {
				g.rows[i].label = " " + g.rows[i].label
			}
		}
	}
	rows := allRows([]section{s})
	cols := w.columns(s.metrics, rows)
	widths := widthsOf(cols, rows)
	for total(widths) > w.Width {
		i := 0
		for k, c := range cols {
			if c.rank > cols[i].rank {
				i = k
			}
		}
		if cols[i].rank == cell.RankKept {
			break
		}
		cols, widths = slices.Delete(cols, i, i+1), slices.Delete(widths, i, i+1)
	}
	if over := total(widths) - w.Width; over > 0 {
		widths[0] = max(8, widths[0]-over)
	}
	w.lohi = w.lohi || slices.ContainsFunc(cols, func(c column) bool { return c.head == intervalHead })
	w.line(cols, widths, func(c column) (text, style string) { return c.over, bold })
	w.line(cols, widths, func(c column) (text, style string) { return c.head, bold })
	for _, g := range s.groups {
		if titled(g) {
			w.paragraph("", g.title, dim)
		}
		for _, r := range g.rows {
			w.line(cols, widths, func(c column) (text, style string) { return c.text(r), c.style(r) })
		}
	}
}

func plain(row) string { return "" }
func faint(row) string { return dim }

const intervalHead = "[lo–hi]"

// columns returns the columns that some row can fill.
func (w *writer) columns(metrics []cell.Metric, rows []row) []column {
	cols := []column{{head: "NETWORK", left: true, text: func(r row) string { return r.label }, style: plain}}
	for _, m := range metrics {
		over, under := m.Head()
		if m == cell.Throughput && rows[0].at.Transport != "" {
			over = strings.ToUpper(rows[0].at.Transport)
		}
		sign := func(r row) string { return w.signs[Mark{r.by[m].Key(), m}] }
		cols = append(cols, column{over: over, head: under, rank: m.Rank(),
			text: func(r row) string {
				if s, ok := r.by[m]; ok {
					return sign(r) + m.Scale().Of(s.Median)
				}
				return cell.None
			},
			style: func(r row) string {
				if leads(sign(r)) {
					return green
				}
				return ""
			}})
		if m.ShowsInterval() && slices.ContainsFunc(rows, func(r row) bool { return r.by[m].N > 1 }) {
			rank := cell.RankSpread
			if m == cell.Throughput {
				rank = cell.RankInterval
			}
			cols = append(cols, column{head: intervalHead, rank: rank, style: faint, text: func(r row) string {
				if text := intervalOf(r.by[m]); text != "" {
					return "[" + text + "]"
				}
				return ""
			}})
		}
	}
	if slices.ContainsFunc(rows, func(r row) bool { return r.samples() != rows[0].samples() }) {
		cols = append(cols, column{head: "n", rank: cell.RankSamples, text: row.samples, style: plain})
	}
	if len(w.feet) > 0 {
		cols = append(cols, column{left: true, text: w.noteMarks, style: faint})
	}
	return cols
}

func widthsOf(cols []column, rows []row) []int {
	widths := make([]int, len(cols))
	for i, c := range cols {
		widths[i] = max(columns.Of(c.head), columns.Of(c.over))
		for _, r := range rows {
			widths[i] = max(widths[i], columns.Of(columns.Plain(c.text(r))))
		}
	}
	return widths
}

// total returns the width of a table.
func total(widths []int) int {
	n := columns.Gap * (len(widths) - 1)
	for _, w := range widths {
		n += w
	}
	return n
}

// line writes one line of a table, never more than the width.
func (w *writer) line(cols []column, widths []int, get func(column) (text, style string)) {
	room := w.Width
	var b strings.Builder
	for i, c := range cols {
		text, style := get(c)
		text = columns.Pad(columns.Clip(columns.Plain(text), widths[i]), widths[i], !c.left)
		if i > 0 {
			text = strings.Repeat(" ", columns.Gap) + text
		}
		text = columns.Clip(text, room)
		room -= columns.Of(text)
		b.WriteString(w.paint(text, style))
	}
	fmt.Fprintln(w.out, strings.TrimRight(b.String(), " "))
}

// paint gives text a style, but not the blanks around it.
func (w *writer) paint(text, style string) string {
	body := strings.TrimSpace(text)
	if !w.Colour || style == "" || body == "" {
		return text
	}
	at := strings.Index(text, body)
	return text[:at] + "\x1b[" + style + "m" + body + "\x1b[0m" + text[at+len(body):]
}

// figure writes the panels of a figure as tables: a row for each position on the x
// axis, a column for each curve, as many at once as fit.
func (w *writer) figure(f figure) {
	for _, p := range f.Panels {
		heading := joinWords(f.Title, p.Title) + ": " + f.YLabel
		note := spreadText(p, f.XLabel)
		for len(p.Series) > 0 {
			w.paragraph("", heading, bold)
			n := len(p.Series)
			for ; n > 1 && total(columns.Widths(curveRows(f.XLabel, p.Series[:n]))) > w.Width; n-- {
			}
			rows := curveRows(f.XLabel, p.Series[:n])
			right := make([]int, n+1) // all columns
			for i := range right {
				right[i] = i
			}
			for i, row := range rows {
				line := strings.TrimSuffix(columns.Row(row, columns.Widths(rows), right...), "\n")
				if i == 0 {
					line = w.paint(line, dim)
				}
				fmt.Fprintln(w.out, columns.Clip(line, w.Width))
			}
			p.Series = p.Series[n:]
		}
		w.paragraph("  ", note, dim)
	}
}

// curveRows returns a table of curves, with its head.
func curveRows(xLabel string, curves []series) [][]string {
	labels := map[float64]string{}
	head := []string{xLabel}
	for _, s := range curves {
		head = append(head, s.Name)
		for _, p := range s.Points {
			labels[p.X] = p.Label
		}
	}
	rows := [][]string{head}
	for _, x := range slices.Sorted(maps.Keys(labels)) {
		row := []string{labels[x]}
		for _, s := range curves {
			text := cell.None
			if i := slices.IndexFunc(s.Points, func(p point) bool { return p.X == x }); i >= 0 {
				text = cell.Digits(s.Points[i].Y)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows
}

// spreadText returns what the numbers of a panel are, and the widest interval in
// proportion to its number.
func spreadText(p panel, xLabel string) string {
	least, most := 0, 0
	var widest point
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
	text := "medians of " + columns.Plural(most, "sample")
	switch {
	case most == 1:
		text = "one sample each"
	case least < most:
		text = fmt.Sprintf("medians of %d to %d samples", least, most)
	}
	if width > 0 {
		kind := "interval"
		if widest.N < stats.MinForInterval {
			kind = "range"
		}
		text += fmt.Sprintf("; the widest %s: %s–%s, %s at %s %s", kind, cell.Digits(widest.Low), cell.Digits(widest.High), name, widest.Label, xLabel)
	}
	return text
}

// mostMarks is how many footnotes a row refers to: more would take the room of its
// numbers.
const mostMarks = 3

func (w *writer) noteMarks(r row) string {
	var marks []string
	for i, foot := range w.feet {
		if !slices.ContainsFunc(notes(r), func(n note) bool { return n.code == foot.code }) {
			continue
		}
		if len(marks) == mostMarks {
			return strings.Join(marks, " ") + "…"
		}
		marks = append(marks, superscript(i+1))
	}
	return strings.Join(marks, " ")
}

func superscript(n int) string {
	return strings.Map(func(r rune) rune { return []rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[r-'0'] }, strconv.Itoa(n))
}

// legend explains signs and words, and writes the notes.
func (w *writer) legend(shown []cell.Summary) {
	fmt.Fprintln(w.out)
	if text := signText(shown, w.signs, "'"); text != "" {
		w.paragraph("", text, "")
	}
	if w.lohi && !w.hasFewSamples() {
		w.paragraph("", "lo–hi: "+levelText(filter(shown, func(s cell.Summary) bool { return s.Metric.ShowsInterval() }))+" interval of the median", "")
	}
	if text := joinWords(common(w.in.available()), w.samplesText(shown)); text != "" {
		w.paragraph("all: ", text, "")
	}
	for _, n := range w.all {
		w.paragraph("all: ", n.text(), "")
	}
	for i, n := range w.feet {
		w.paragraph(superscript(i+1)+" ", n.text(), "")
	}
	for _, n := range w.some {
		w.paragraph("some results: ", n.text(), "")
	}
	if sums := ofMetric(shown, cell.LatencyP50); len(sums) > 0 {
		w.paragraph("p50, p99: ", sentWhen(sums), "")
	}
	for _, t := range terms(w.in.available()) {
		w.paragraph("", t.Name+": "+t.Value, "")
	}
}

// samplesText returns the number of samples if it is the same for all rows, which
// then have no column for it, unless a note says it.
func (w *writer) samplesText(sums []cell.Summary) string {
	if len(sums) == 0 || slices.ContainsFunc(sums, func(s cell.Summary) bool { return s.N != sums[0].N }) ||
		w.hasFewSamples() {
		return ""
	}
	return columns.Plural(sums[0].N, "sample")
}

// hasFewSamples reports whether a note says that no row has samples enough for an interval.
func (w *writer) hasFewSamples() bool {
	return slices.ContainsFunc(w.all, func(n note) bool { return n.code == summary.CodeFewSamples || n.code == summary.CodeOneSample })
}

// readNotes sorts the notes of all rows by how they are shown.
func (w *writer) readNotes(all, shown []row) {
	marked := notes(shown...)
	for _, n := range notes(all...) {
		i := slices.IndexFunc(marked, func(m note) bool { return m.code == n.code })
		switch {
		case n.rows == len(all):
			w.all = append(w.all, n)
		case i >= 0:
			w.feet = append(w.feet, n)
		default:
			w.some = append(w.some, n)
		}
	}
}

// missing lists networks without a number; those with the same reason share an
// entry.
func (w *writer) missing(title string, list []missing) {
	if len(list) > 0 {
		w.paragraph("", title, bold)
	}
	names := map[missing][]string{}
	var order []missing
	for _, m := range list {
		why := m
		why.Network = ""
		if names[why] == nil {
			order = append(order, why)
		}
		names[why] = append(names[why], m.Network)
	}
	for _, m := range order {
		text := strings.Join(names[m], ", ") + ": "
		if m.Work != "" {
			text += m.Work + ": "
		}
		text += m.Reason
		if m.Remedy != "" {
			text += " → " + m.Remedy
		}
		w.paragraph("  ", text, "")
	}
}

// paragraph writes text after head, wrapped, with further lines indented by four.
func (w *writer) paragraph(head, text, style string) {
	const indent = "    "
	lines := columns.Wrap(columns.Plain(text), w.Width-columns.Of(head), w.Width-len(indent))
	for i, l := range lines {
		if i > 0 {
			head = indent
		}
		fmt.Fprintln(w.out, head+w.paint(l, style))
	}
	if len(lines) == 0 {
		fmt.Fprintln(w.out, strings.TrimRight(head, " "))
	}
}
