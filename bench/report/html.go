package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
	"cleat/internal/columns"
	"cleat/internal/look"
)

//go:embed templates/report.html
var pageText string

//go:embed templates/style.css
var styleText string

// page is what the template shows, in its order.
type page struct {
	Style         template.CSS
	Title         string
	Subtitle      []string
	Partial       bool
	Notes         []string
	Advice        []Advice
	AdviceTitle   string
	Undecided     []string
	Versus        *summary.Versus
	Lines         []lineGroup
	Bars          []barFigure
	Tables        []dataTable
	Terms         []fact
	Unavailable   []missing
	NotApplicable []missing
	Interrupted   []string
	Method        []string
	Findings      []finding
	Environment   []envSection
	Paths         []pathFacts
	Files         []fact
}

// lineGroup is the curves of one metric: some shown at once, the rest folded
// away.
type lineGroup struct {
	Title        string
	Open, Folded []lineFigure
}

type dataTable struct {
	Title  string
	Folded bool
	Notes  []string // what holds for every row
	Heads  []dataHead
	Groups []dataGroup
}

// dataHead is a column's head; Hint explains the small print below its numbers.
type dataHead struct{ Text, Hint string }

type dataGroup struct {
	Title string
	Rows  []dataRow
}

type dataRow struct {
	Network, Title string
	Class          string
	Cells          []dataCell
	Notes          []string
}

type dataCell struct{ Head, Sign, Value, Sub, Mean string }

// HTML writes the report as one file that needs nothing else: no script, no
// font, no picture and no network. Equal inputs give equal bytes.
func HTML(w io.Writer, in Input) error {
	t, err := template.New("report").Parse(pageText)
	if err != nil {
		return fmt.Errorf("parse report template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, newPage(in)); err != nil {
		return fmt.Errorf("fill in report template: %w", err)
	}
	if _, err := io.WriteString(w, columns.PlainText(b.String())); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func newPage(in Input) page {
	all := in.available()
	signs := in.symbols()
	absent := absentees(in)
	p := page{
		Style: template.CSS(look.CSS() + styleText), Title: in.title(), Subtitle: subtitle(in, all), Partial: in.Partial, Notes: in.Notes,
		Advice: in.Recommendation, AdviceTitle: "In short", Undecided: in.Undecided, Versus: in.Versus, Terms: terms(all),
		Unavailable: absent.unavailable, NotApplicable: absent.notApplicable, Interrupted: absent.interrupted,
		Method: method(in, all), Findings: findings(in.Environment), Environment: environment(in.Environment),
		Paths: paths(in.Environment), Files: files,
	}
	if slices.ContainsFunc(p.Advice, func(a Advice) bool { return a.Network != "" }) {
		p.AdviceTitle = "Recommendation"
	}
	figures, drawn := in.figures()
	names := seriesNames(figures)
	for _, f := range figures {
		p.addLines(layOut(f, names))
	}
	p.Bars = newBars(in, filter(all, func(s cell.Summary) bool { return !drawn[markOf(s)] }), signs).figures()
	p.Tables = tables(arrange(all), signs)
	return p
}

// mostFigures is how many figures of one metric are shown at once.
const mostFigures = 4

func (p *page) addLines(f lineFigure) {
	title, _, _ := strings.Cut(f.Title, ": ")
	n := len(p.Lines)
	if n == 0 || p.Lines[n-1].Title != title {
		p.Lines = append(p.Lines, lineGroup{Title: title})
		n++
	}
	g := &p.Lines[n-1]
	if len(g.Open) < mostFigures {
		g.Open = append(g.Open, f)
	} else {
		g.Folded = append(g.Folded, f)
	}
}

// seriesNames lists the names of all curves once, which decides their colours:
// baselines come last, since they have a colour of their own.
func seriesNames(figures []figure) []string {
	var names, baselines []string
	for _, f := range figures {
		for _, p := range f.Panels {
			for _, s := range p.Series {
				list := &names
				if s.Baseline {
					list = &baselines
				}
				if !slices.Contains(*list, s.Name) {
					*list = append(*list, s.Name)
				}
			}
		}
	}
	return append(names, baselines...)
}

// foldAbove is the number of rows above which tables are folded.
const foldAbove = 40

func tables(sections []section, signs map[Mark]string) []dataTable {
	var out []dataTable
	folded := len(allRows(sections)) > foldAbove
	for _, s := range sections {
		rows := allRows([]section{s})
		t := dataTable{Title: s.title, Folded: folded, Heads: heads(s.metrics)}
		if folded {
			t.Title = strings.TrimPrefix(t.Title+": "+columns.Plural(len(rows), "row"), ": ")
		}
		common := map[string]bool{}
		for _, n := range notes(rows...) {
			if n.rows == len(rows) && n.rows > 1 {
				common[n.code] = true
				t.Notes = append(t.Notes, n.text())
			}
		}
		for _, g := range s.groups {
			dg := dataGroup{Title: g.title}
			for _, r := range g.rows {
				dg.Rows = append(dg.Rows, newDataRow(r, s.metrics, signs, common))
			}
			t.Groups = append(t.Groups, dg)
		}
		out = append(out, t)
	}
	return out
}

// heads returns the heads of a table's columns, the first and the last included.
func heads(metrics []cell.Metric) []dataHead {
	out := []dataHead{{Text: "Network"}}
	for _, m := range metrics {
		h := dataHead{Text: headOf(m)}
		switch {
		case m == cell.ProcessorTime:
			h.Hint = "user + system + softirq"
		case m.ShowsMean():
			h.Hint = "mean ± standard error"
		}
		out = append(out, h)
	}
	return append(out, dataHead{Text: "n"}, dataHead{Text: "Bad"}, dataHead{Text: "Notes"})
}

func headOf(m cell.Metric) string { return capital(m.Title()) + ", " + m.Scale().Unit }

func newDataRow(r row, metrics []cell.Metric, signs map[Mark]string, common map[string]bool) dataRow {
	e, _ := catalog.Lookup(r.at.Network)
	out := dataRow{Network: r.label, Title: e.Title}
	if r.role == catalog.Baseline {
		out.Class = "base"
	}
	for _, n := range notes(r) {
		if !common[n.code] {
			out.Notes = append(out.Notes, n.text())
		}
	}
	for _, m := range metrics {
		scale := m.Scale()
		c := dataCell{Head: headOf(m), Value: cell.None}
		if s, ok := r.by[m]; ok {
			c.Sign, c.Value, c.Sub = signs[markOf(s)], scale.Of(s.Median), intervalOf(s)
			if m == cell.ProcessorTime {
				c.Sub = short(s.CoresPerGbit.User) + " + " + short(s.CoresPerGbit.System) + " + " + short(s.CoresPerGbit.SoftIRQ)
			}
			if m.ShowsMean() && s.N > 1 {
				c.Mean = "mean " + scale.Of(s.Mean) + " ± " + scale.Of(s.StdErr)
			}
		}
		out.Cells = append(out.Cells, c)
	}
	out.Cells = append(out.Cells, dataCell{Head: "n", Value: r.samples()}, dataCell{Head: "Bad", Value: strconv.Itoa(r.bad())})
	return out
}

// short returns x with two significant digits, for a number in small print.
func short(x float64) string {
	if x >= 99.5 { // else it would get an exponent
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 2, 64)
}

// subtitle returns what everyone asks first: what, which machine, how often, when.
func subtitle(in Input, all []cell.Summary) []string {
	var out []string
	add := func(format, v string) {
		if v != "" {
			out = append(out, fmt.Sprintf(format, v))
		}
	}
	add("%s", in.Subject)
	describe := func(name string, env map[string]any) {
		add(name+"%s", lookup(env, "host.cpu.model"))
		add("%s logical CPUs", lookup(env, "host.cpu.online"))
		add("Linux %s", lookup(env, "host.kernel.release"))
	}
	several := machines(in.Environment)
	for _, m := range several {
		describe(strings.ReplaceAll(lookup(m, "name"), "%", "%%")+": ", m)
	}
	if len(several) == 0 {
		describe("", in.Environment)
	}
	networks := map[string]bool{}
	for _, s := range all {
		networks[s.Network] = true
	}
	if len(networks) > 0 {
		out = append(out, columns.Plural(len(networks), "network")+" measured, "+counts(all))
	}
	add("%s", lookup(in.Environment, "started"))
	return out
}

// method returns in a few sentences how the numbers were measured.
func method(in Input, all []cell.Summary) []string {
	blocks, placements, runtimes := map[int]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range in.Samples {
		if !s.Warmup() {
			blocks[s.Block] = true
		}
	}
	for _, s := range all {
		if s.Placement != "" {
			placements[s.Placement] = true
		}
		if !s.IsNative() {
			runtimes[s.Runtime] = true
		}
	}
	n, seed := "Each block", "a recorded seed"
	switch len(blocks) {
	case 0:
	case 1:
		n = "The one block"
	default:
		n = "Each of the " + columns.Plural(len(blocks), "block")
	}
	if s := lookup(in.Environment, "seed"); s != "" {
		seed = "seed " + s
	}
	ends, place := "network namespaces", "which is reported"
	if len(runtimes) > 0 {
		ends += ", or in containers (" + strings.Join(slices.Sorted(maps.Keys(runtimes)), ", ") + ") with the network of such a namespace,"
	}
	if len(placements) > 0 {
		place = "here " + strings.Join(slices.Sorted(maps.Keys(placements)), ", ")
	}
	shared := ""
	if len(all) > 0 {
		if text := common(all); text != "" {
			shared = "All was measured with " + text + "."
		}
	}
	where := "The two ends run in " + ends + " of this machine; the choice of their processors is a factor, " + place + "."
	if several := machines(in.Environment); len(several) > 0 {
		var names []string
		for _, m := range several {
			names = append(names, lookup(m, "name"))
		}
		where = "The two ends run on two of the machines " + strings.Join(names, ", ") + ", each on one processor of its own machine unless the placement is free. " +
			"Processor time is that of both machines. Their clocks are not compared."
	}
	sentences := []string{
		shared,
		n + " measured every cell once, in a fresh random order (" + seed + "), so that drift of the machine affects all networks alike.",
		"Warm-up samples are not counted. " + disturbances(in.Samples),
		where,
		"Intervals are those of the median between two order statistics, without assuming any distribution; where there are too few samples for 95 %, the level reached is stated.",
		"~ marks what can’t be told apart from the best of its group after Holm’s correction for the number of comparisons: such networks are not ranked.",
	}
	if works := unchecked(in.Samples); len(works) > 0 {
		sentences = slices.Insert(sentences, 3, "Samples of these works were not checked for disturbance: "+strings.Join(works, ", ")+".")
	}
	return sentences
}

// disturbances returns how many samples were disturbed by a late generator, by foreign load or by the
// hypervisor, and how many of their measurements were repeated.
func disturbances(samples []cell.Sample) string {
	type measurement struct {
		block     int
		key, work string
	}
	again := map[measurement]int{} // the last attempt
	for _, s := range samples {
		m := measurement{s.Block, s.Key(), s.Work}
		again[m] = max(again[m], s.Attempt)
	}
	disturbed, repeated := 0, 0
	for _, s := range samples {
		if s.Warmup() || s.Bad.Text == "" || s.Error != "" {
			continue
		}
		disturbed++
		if s.Attempt < again[measurement{s.Block, s.Key(), s.Work}] {
			repeated++
		}
	}
	const by = "disturbed by a late generator, by foreign load or by the hypervisor"
	if disturbed == 0 {
		return "No sample was " + by + "."
	}
	return fmt.Sprintf("Samples %s: %d, of which %d were repeated; the table counts them as bad.", by, disturbed, repeated)
}

// unchecked returns the kinds of work without a check for disturbance: those whose samples have no processor
// time.
func unchecked(samples []cell.Sample) []string {
	works := map[string]bool{}
	for _, s := range samples {
		if s.Error == "" && s.CPU.Wall == 0 {
			works[s.Work] = true
		}
	}
	return slices.Sorted(maps.Keys(works))
}

var files = []fact{
	{"samples.jsonl", "every measurement, warm-up and bad ones included, one JSON object a line"},
	{"environment.json", "the seed, the machine, and the versions of everything"},
	{"summary.json", "the cells of this report, for programs"},
	{"summary.csv", "the same, for spreadsheets"},
}
