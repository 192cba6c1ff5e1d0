package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
	"cleat/internal/columns"
)

// Terminal says how a table is written for one. The zero value writes 80 columns
// without colour.
type Terminal struct {
	Width  int  // columns; 0 means 80, and less than 40 counts as 40
	Colour bool // ANSI bold, dim and green; set it for a terminal only
}

// Table writes the results in at most width columns, without colour. It returns
// the error of w.
func Table(w io.Writer, in Input, width int) error {
	return Terminal{Width: width}.Table(w, in)
}

// Styles of a table's parts, as ANSI SGR numbers.
const (
	bold  = "1"
	dim   = "2"
	green = "32"
)

type column struct {
	over  string // first line of the head
	head  string // second line of the head
	right bool
	drop  int // columns with the largest are left out first when space is short; 0 never
	text  func(row) string
	style func(row) string
}

// terminalTable is a table being laid out.
type terminalTable struct {
	Terminal
	out   *bufio.Writer
	in    Input
	rows  []row
	cols  []column
	marks map[Mark]string
	all   []string            // kinds of notes that every row has
	feet  []string            // the other kinds in order of first use
	texts map[string][]string // what the rows say of each kind

	lifted []cell.Factor // said in headings, since they have no room as columns
}

// Table writes the results: one row per network and combination of factors,
// grouped by role, or, of an experiment with a subject, how that compares with
// its rivals; under it the footnotes, and what is missing with its reason.
func (t Terminal) Table(w io.Writer, in Input) error {
	if t.Width == 0 {
		t.Width = 80
	}
	t.Width = max(t.Width, 40)
	tt := &terminalTable{Terminal: t, out: bufio.NewWriter(w), in: in}
	if in.Partial {
		tt.para("", "PARTIAL: the run was interrupted; what follows was measured before.", bold)
	}
	for _, n := range in.Notes {
		tt.para("note: ", n, "")
	}
	rows, fs, metrics := arrange(in.available())
	tt.rows, tt.marks = rows, symbols(in, rows, fs)
	tt.readNotes()
	switch {
	case in.Versus != nil:
		if err := in.Versus.Table(columns.Text(tt.out)); err != nil {
			return err
		}
		if !tt.others(in.Versus.Subject) {
			tt.notes()
		}
	case len(rows) > 0 && in.paper():
		tt.paper()
	case len(rows) > 0:
		tt.table(rows, fs, metrics)
		tt.legend()
	default:
		tt.para("", "Nothing was measured.", bold)
	}
	unavailable, notApplicable := absentees(in)
	tt.missing("Unavailable here:", unavailable)
	tt.missing("Not applicable, by design:", notApplicable)
	if err := tt.out.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// others writes what the experiment measured of roles that are not the subject's,
// and that nothing there is compared with, and all notes; false if there is nothing.
func (t *terminalTable) others(subject string) bool {
	own := catalog.RoleOf(subject)
	other := func(network string) bool {
		role := catalog.RoleOf(network)
		return role != own && role != catalog.Baseline
	}
	sums := slices.DeleteFunc(t.in.available(), func(s cell.Summary) bool { return !other(s.Network) })
	if len(sums) == 0 {
		return false
	}
	fmt.Fprintln(t.out)
	t.table(arrange(sums))
	t.legend()
	return true
}

// table writes rows, with as much of their numbers as fits.
func (t *terminalTable) table(rows []row, fs []cell.Factor, metrics []cell.Metric) {
	t.rows, t.lifted = rows, nil
	t.columns(fs, metrics)
	t.fit()
	for len(t.lifted) < len(fs) && (t.total() > t.Width || t.lacksResult(metrics)) {
		t.lift(fs, metrics)
	}
	t.body(func(r row) string {
		if len(t.lifted) == 0 {
			return r.role.Title()
		}
		return r.role.Title() + ": " + describe(t.lifted, r.at)
	})
}

// columns decides what the table has: only what some row can fill.
func (t *terminalTable) columns(fs []cell.Factor, metrics []cell.Metric) {
	t.cols = []column{{head: "NETWORK", text: func(r row) string { return t.in.rowName(r.at) }}}
	for _, f := range fs[len(t.lifted):] {
		over, head := shortFactor(f)
		t.cols = append(t.cols, column{over: over, head: head, right: true, text: func(r row) string {
			return cellLevel(f, f.Of(r.at))
		}})
	}
	for _, m := range metrics {
		t.metric(m, fs)
	}
	if slices.ContainsFunc(t.rows, func(r row) bool { _, ok := r.cores(); return ok }) {
		t.cols = append(t.cols, column{over: "cores", head: "/Gbit", right: true, drop: 5, text: func(r row) string {
			if c, ok := r.cores(); ok {
				return t.marks[Mark{r.by[cell.Throughput].Key(), cell.ProcessorTime}] + cell.Digits(c.Total())
			}
			return cell.None
		}})
	}
	t.cols = append(t.cols, column{head: "n", right: true, drop: 4, text: row.samples})
	if len(t.feet) > 0 {
		t.cols = append(t.cols, column{text: t.noteMarks, style: func(row) string { return dim }})
	}
}

// metric adds the columns of one metric: the number, and for all but latency its
// interval.
func (t *terminalTable) metric(m cell.Metric, fs []cell.Factor) {
	u := m.Scale()
	over, head := shortMetric(m, t.rows, fs)
	drop := map[cell.Metric]int{cell.Ideal: 10, cell.LatencyP999: 8, cell.LatencyP99: 7, cell.SetupTime: dropsResult, cell.Packets: dropsResult, cell.Connections: dropsResult,
		cell.LostPackets: dropsDetail, cell.Outage: dropsDetail, cell.LatencyAdded: dropsDetail, cell.EarlyOfIdeal: dropsDetail, cell.SteadyOfIdeal: dropsDetail}[m]
	value := func(r row) string {
		s, ok := r.by[m]
		if !ok {
			return cell.None
		}
		y, _, _ := centre(s, t.in.thesis())
		return t.marks[Mark{s.Key(), m}] + u.Of(y)
	}
	style := func(r row) string {
		if s, ok := r.by[m]; ok && t.marks[Mark{s.Key(), m}] != "" {
			return green
		}
		return ""
	}
	t.cols = append(t.cols, column{over: over, head: head, right: true, drop: drop, text: value, style: style})
	if m != cell.Throughput && m != cell.Loss && m != cell.Connections && m != cell.Packets {
		return
	}
	ends := column{head: "[lo–hi]", drop: 9, style: func(row) string { return dim }}
	if t.in.thesis() {
		ends.head = "± se"
	}
	if m == cell.Throughput {
		ends.drop = 6
	}
	ends.text = func(r row) string {
		s, ok := r.by[m]
		switch {
		case !ok:
			return ""
		case t.in.thesis():
			return "± " + u.Of(s.StdErr)
		}
		return intervalOf(s, "["+u.Interval(s.CILow, s.CIHigh)+"]")
	}
	if t.in.thesis() || slices.ContainsFunc(t.rows, func(r row) bool { return r.by[m].N > 1 }) {
		t.cols = append(t.cols, ends)
	}
}

// lift turns the outermost factor that is still a column into headings: what
// was measured must not be pushed off a narrow terminal by what it depends on.
func (t *terminalTable) lift(fs []cell.Factor, metrics []cell.Metric) {
	t.lifted = fs[:len(t.lifted)+1]
	slices.SortStableFunc(t.rows, func(a, b row) int {
		return cmp.Or(catalog.CompareRoles(a.role, b.role), cell.Compare(t.lifted, a.at, b.at))
	})
	t.columns(fs, metrics)
	t.fit()
}

// lacksResult tells whether the whole result of some work was left out.
func (t *terminalTable) lacksResult(metrics []cell.Metric) bool {
	want, have := 0, 0
	for _, m := range metrics {
		if m == cell.SetupTime || m == cell.Packets || m == cell.Connections {
			want++
		}
	}
	for _, c := range t.cols {
		if c.drop == dropsResult {
			have++
		}
	}
	return have < want
}

// dropsDetail is column.drop of what tells how a result came about.
const dropsDetail = 2

// dropsResult is column.drop of what is the only result of its work.
const dropsResult = 3

// fit leaves out columns until the table is narrow enough.
func (t *terminalTable) fit() {
	for t.total() > t.Width {
		most, at := 0, -1
		for i, c := range t.cols {
			if c.drop > most {
				most, at = c.drop, i
			}
		}
		if at < 0 {
			return
		}
		t.cols = slices.Delete(t.cols, at, at+1)
	}
}

const gutter = 2 // blanks between columns

func (t *terminalTable) widths() []int {
	ws := make([]int, len(t.cols))
	for i, c := range t.cols {
		ws[i] = max(columns.Of(columns.Plain(c.head)), columns.Of(columns.Plain(c.over)))
		for _, r := range t.rows {
			ws[i] = max(ws[i], columns.Of(columns.Plain(c.text(r))))
		}
	}
	return ws
}

func (t *terminalTable) total() int {
	n := gutter * (len(t.cols) - 1)
	for _, w := range t.widths() {
		n += w
	}
	return n
}

// body writes heads and rows, each row below its heading, if it has one.
func (t *terminalTable) body(headingOf func(row) string) {
	ws := t.widths()
	if over := t.total() - t.Width; over > 0 {
		ws[0] = max(8, ws[0]-over)
	}
	if slices.ContainsFunc(t.cols, func(c column) bool { return c.over != "" }) {
		t.line(ws, func(c column) (string, string) { return c.over, bold })
	}
	t.line(ws, func(c column) (string, string) { return c.head, bold })
	var before string
	for i, r := range t.rows {
		if heading := headingOf(r); heading != "" && (i == 0 || heading != before) {
			before = heading
			t.para("", heading, dim)
		}
		t.line(ws, func(c column) (string, string) {
			style := ""
			if c.style != nil {
				style = c.style(r)
			}
			return c.text(r), style
		})
	}
}

// line writes one line of the table and never more than the width.
func (t *terminalTable) line(ws []int, get func(column) (text, style string)) {
	left := t.Width
	var b strings.Builder
	for i, c := range t.cols {
		text, style := get(c)
		text = columns.Pad(columns.Clip(columns.Plain(text), ws[i]), ws[i], c.right)
		if i > 0 {
			text = strings.Repeat(" ", gutter) + text
		}
		text = columns.Clip(text, left)
		left -= columns.Of(text)
		b.WriteString(t.paint(text, style))
	}
	fmt.Fprintln(t.out, strings.TrimRight(b.String(), " "))
}

func (t *terminalTable) paint(text, style string) string {
	body := strings.TrimSpace(text)
	if !t.Colour || style == "" || body == "" {
		return text
	}
	at := strings.Index(text, body)
	return text[:at] + "\x1b[" + style + "m" + body + "\x1b[0m" + text[at+len(body):]
}

// readNotes collects the kinds of notes. Those that differ in their numbers
// only share a mark, and the mark's text has the range of them; what all of
// several rows have needs no mark.
func (t *terminalTable) readNotes() {
	t.texts, t.all, t.feet = map[string][]string{}, nil, nil
	rows := map[string]int{}
	var kinds []string
	for _, r := range t.rows {
		for _, k := range t.kinds(r) {
			if rows[k] == 0 {
				kinds = append(kinds, k)
			}
			rows[k]++
		}
		for _, n := range r.notes() {
			k := summary.WarningKind(n)
			t.texts[k] = append(t.texts[k], n)
		}
	}
	for _, k := range kinds {
		if rows[k] == len(t.rows) && len(t.rows) > 1 {
			t.all = append(t.all, k)
		} else {
			t.feet = append(t.feet, k)
		}
	}
}

// kinds are those of a row's notes, each once.
func (t *terminalTable) kinds(r row) []string {
	var out []string
	for _, n := range r.notes() {
		if k := summary.WarningKind(n); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// mostMarks is how many footnotes a row refers to: more would take the room of
// its numbers.
const mostMarks = 3

// noteMarks are the numbers of the row's footnotes.
func (t *terminalTable) noteMarks(r row) string {
	var marks []string
	for _, k := range t.kinds(r) {
		at := slices.Index(t.feet, k)
		if at < 0 {
			continue
		}
		if len(marks) == mostMarks {
			return strings.Join(marks, " ") + "…"
		}
		marks = append(marks, superscript(at+1))
	}
	return strings.Join(marks, " ")
}

func superscript(n int) string {
	return strings.Map(func(r rune) rune { return []rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[r-'0'] }, strconv.Itoa(n))
}

func (t *terminalTable) legend() {
	var signs []string
	for _, s := range t.marks {
		signs = append(signs, s)
	}
	fmt.Fprintln(t.out)
	switch best, tie := slices.Contains(signs, "*"), slices.Contains(signs, "~"); {
	case best && tie:
		t.para("", "* best of its group   ~ can't be told apart from the best of its group", "")
	case best:
		t.para("", "* best of its group", "")
	case tie:
		t.para("", "~ can't be told apart from the best of its group", "")
	}
	for _, k := range t.all {
		t.para("all: ", summary.MergeWarnings(t.texts[k]), "")
	}
	for i, k := range t.feet {
		t.para(superscript(i+1)+" ", summary.MergeWarnings(t.texts[k]), "")
	}
}

// notes writes what the legend says of the rows where there are no marks.
func (t *terminalTable) notes() {
	fmt.Fprintln(t.out)
	for _, k := range t.all {
		t.para("note: ", summary.MergeWarnings(t.texts[k]), "")
	}
	of := "of some: "
	if len(t.rows) < 2 {
		of = ""
	}
	for _, k := range t.feet {
		t.para("note: ", of+summary.MergeWarnings(t.texts[k]), "")
	}
}

func (t *terminalTable) missing(title string, list []missing) {
	if len(list) == 0 {
		return
	}
	t.para("", title, bold)
	for i, m := range list {
		same := func(o missing) bool { return o.Reason == m.Reason && o.Remedy == m.Remedy && o.Work == m.Work }
		if slices.ContainsFunc(list[:i], same) {
			continue
		}
		names := []string{m.Network}
		for _, o := range list[i+1:] {
			if same(o) {
				names = append(names, o.Network)
			}
		}
		text := strings.Join(names, ", ") + ": "
		if m.Work != "" {
			text += m.Work + ": "
		}
		text += m.Reason
		if m.Remedy != "" {
			text += " → " + m.Remedy
		}
		t.para("  ", text, "")
	}
}

// para writes text after head, wrapped, its further lines indented by four.
func (t *terminalTable) para(head, text, style string) {
	const indent = "    "
	lines := columns.Wrap(columns.Plain(text), t.Width-columns.Of(head), t.Width-len(indent))
	for i, l := range lines {
		if i > 0 {
			head = indent
		}
		fmt.Fprintln(t.out, head+t.paint(l, style))
	}
	if len(lines) == 0 {
		fmt.Fprintln(t.out, strings.TrimRight(head, " "))
	}
}
