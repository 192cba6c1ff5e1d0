package report

import (
	"bytes"
	"cmp"
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

// page is what the template shows, in the order in which it is shown.
type page struct {
	Style         template.CSS
	Title         string
	Subtitle      []string
	Partial       bool
	Notes         []string
	Advice        []Advice
	AdviceTitle   string
	Bars          []barFigure
	Versus        *summary.Versus
	Lines         []lineGroup
	Tables        []dataTable
	Unavailable   []missing
	NotApplicable []missing
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

type dataCell struct{ Head, Sign, Value, Sub string }

// HTML writes the report as one file that needs nothing else: no script, no
// font, no picture and no network. Equal inputs give equal bytes. It returns the
// error of w.
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
	rows, fs, metrics := arrange(all)
	signs := symbols(in, rows, fs)
	p := page{
		Style: template.CSS(look.CSS() + styleText), Title: in.Title, Subtitle: subtitle(in, all), Partial: in.Partial, Notes: in.Notes,
		Advice: in.Recommendation, Versus: in.Versus, Method: method(in, all),
		Findings: findings(in.Environment), Environment: environment(in.Environment),
		Paths: paths(in.Environment), Files: files(),
	}
	p.AdviceTitle = "In short"
	if slices.ContainsFunc(p.Advice, func(a Advice) bool { return a.Network != "" }) {
		p.AdviceTitle = "Recommendation"
	}
	if p.Title == "" {
		p.Title = in.Preset
	}
	p.Unavailable, p.NotApplicable = absentees(in)
	p.figures(in, all, metrics, signs)
	p.tables(in, all, signs)
	return p
}

// figures chooses curves for metrics that have an x axis and bars for the rest;
// the three latencies share one plot.
func (p *page) figures(in Input, all []cell.Summary, metrics []cell.Metric, signs map[Mark]string) {
	if in.paper() {
		p.paper(in, signs)
		return
	}
	drawn := map[cell.Metric]bool{}
	for _, m := range metrics {
		sums := ofMetric(all, m)
		_, drawn[m] = xAxis(varying(sums), sums)
	}
	figures := append(Figures(in), costFigures(in)...)
	names := seriesNames(figures)
	for _, f := range figures {
		p.addLines(f.YLabel, layOut(f, names))
	}
	bars := func(m cell.Metric) {
		if !drawn[m] && slices.Contains(metrics, m) {
			p.Bars = append(p.Bars, plotBars(in, m, signs))
		}
	}
	bars(cell.Throughput)
	bars(cell.Loss)
	if !drawn[cell.LatencyP50] {
		if f, ok := plotLatency(in, signs); ok {
			p.Bars = append(p.Bars, f)
		}
	}
	if f, ok := plotCPU(in, signs); ok {
		p.Bars = append(p.Bars, f)
	}
	for _, m := range []cell.Metric{cell.OfIdeal, cell.EarlyOfIdeal, cell.SteadyOfIdeal, cell.Outage, cell.LatencyAdded, cell.LostPackets,
		cell.Connections, cell.Packets, cell.SetupTime, cell.Fairness, cell.FirstByte, cell.MemoryIdle, cell.MemoryAnon, cell.MemoryFlows,
		cell.AttachTime, cell.DetachTime, cell.AttachCPU} {
		bars(m)
	}
}

// mostFigures is how many figures of one metric are shown at once.
const mostFigures = 4

func (p *page) addLines(title string, f lineFigure) {
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

// seriesNames lists all curves' names once: what runs natively, which containers
// are compared with, then networks in catalogue order, which decides their colours; baselines last, since they have a colour of their own.
func seriesNames(figures []Figure) []string {
	set := map[string]bool{}
	for _, f := range figures {
		for _, p := range f.Panels {
			for _, s := range p.Series {
				set[s.Name] = s.Baseline
			}
		}
	}
	names := slices.SortedStableFunc(maps.Keys(set), func(a, b string) int {
		switch {
		case set[a] != set[b] && set[a]:
			return 1
		case set[a] != set[b]:
			return -1
		}
		return cmp.Or(cmp.Compare(btoi(a != cell.Native), btoi(b != cell.Native)), cmp.Compare(catalog.Place(a), catalog.Place(b)), cell.CompareLevels(a, b))
	})
	return names
}

// foldAbove is the number of rows from which a table starts folded.
const foldAbove = 40

func (p *page) tables(in Input, all []cell.Summary, signs map[Mark]string) {
	outer, title := tableFactors(varying(all)), describe
	if in.paper() {
		outer, title = []cell.Factor{trafficFactor}, func(_ []cell.Factor, c cell.Cell) string { return traffic(c) }
	}
	for _, part := range groups(outer, all) {
		rows, fs, metrics := arrange(part)
		heading := func(r row) string { return r.role.Title() }
		if in.paper() {
			var above []cell.Factor
			rows, above, fs, metrics = arrangeByConditions(part)
			heading = func(r row) string { return capital(sayConditions(above, r.at)) }
		}
		t := dataTable{Title: capital(title(outer, part[0].Cell)), Folded: len(all) > foldAbove*len(metrics), Notes: everywhere(rows)}
		if t.Folded {
			t.Title += ": " + cell.Plural(len(rows), "row")
		}
		t.Heads = append(t.Heads, dataHead{Text: "Network"})
		for i, r := range rows {
			if h := heading(r); i == 0 || heading(rows[i-1]) != h {
				t.Groups = append(t.Groups, dataGroup{Title: h})
			}
			g := &t.Groups[len(t.Groups)-1]
			one := newDataRow(in, r, fs, metrics, signs)
			one.Notes = slices.DeleteFunc(one.Notes, func(n string) bool { return slices.Contains(t.Notes, n) })
			g.Rows = append(g.Rows, one)
		}
		if len(rows) > 0 {
			for _, c := range t.Groups[0].Rows[0].Cells {
				h := dataHead{Text: c.Head}
				if c.Head == costHead {
					h.Hint = "user + system + softirq"
				}
				t.Heads = append(t.Heads, h)
			}
		}
		t.Heads = append(t.Heads, dataHead{Text: "Notes"})
		p.Tables = append(p.Tables, t)
	}
}

// tableFactors are those that part the numbers into several tables.
func tableFactors(fs []cell.Factor) []cell.Factor {
	return slices.DeleteFunc(slices.Clone(fs), func(f cell.Factor) bool { return f.Name != "topology" && f.Name != "transport" })
}

func newDataRow(in Input, r row, fs []cell.Factor, metrics []cell.Metric, signs map[Mark]string) dataRow {
	e, _ := catalog.Lookup(r.network)
	out := dataRow{Network: in.rowName(r.at), Title: e.Title, Notes: r.notes()}
	if r.role == catalog.Baseline {
		out.Class = "base"
	}
	for _, f := range fs {
		out.Cells = append(out.Cells, dataCell{Head: capital(plainName(f)), Value: cellLevel(f, f.Of(r.at))})
	}
	for _, m := range metrics {
		u := m.Scale()
		c := dataCell{Head: metricName(m) + ", " + u.Unit, Value: cell.None}
		if s, ok := r.by[m]; ok {
			y, lo, hi := centre(s, in.thesis())
			c.Sign, c.Value, c.Sub = signs[Mark{s.Key(), m}], u.Of(y), intervalOf(s, u.Interval(lo, hi))
			if in.thesis() {
				c.Sub = "± " + u.Of(s.StdErr)
			}
			if m == cell.Ideal {
				c.Sub = "" // computed: it has no spread
			}
		}
		out.Cells = append(out.Cells, c)
	}
	if c, ok := r.cores(); ok {
		out.Cells = append(out.Cells, dataCell{Head: costHead, Value: cell.Digits(c.Total()), Sign: signs[Mark{r.by[cell.Throughput].Key(), cell.ProcessorTime}],
			Sub: short(c.User) + " + " + short(c.System) + " + " + short(c.SoftIRQ)})
	} else {
		out.Cells = append(out.Cells, dataCell{Head: costHead, Value: cell.None})
	}
	bad := strconv.Itoa(r.bad())
	out.Cells = append(out.Cells, dataCell{Head: "n", Value: r.samples()}, dataCell{Head: "Bad", Value: bad})
	return out
}

const costHead = "Cores per Gbit/s"

// subtitle is what everyone asks first: which machine, how often, when.
func subtitle(in Input, all []cell.Summary) []string {
	var out []string
	add := func(format, v string) {
		if v != "" {
			out = append(out, fmt.Sprintf(format, v))
		}
	}
	add("%s", lookup(in.Environment, "host.cpu.model", "host.cpu"))
	add("%s logical CPUs", lookup(in.Environment, "host.cpu.online", "host.cpu.cores"))
	add("Linux %s", lookup(in.Environment, "host.kernel.release", "host.kernel"))
	networks := map[string]bool{}
	for _, s := range all {
		networks[s.Network] = true
	}
	if len(networks) > 0 {
		out = append(out, cell.Plural(len(networks), "network")+" measured, "+counts(all))
	}
	add("%s", lookup(in.Environment, "started", "host.taken"))
	return out
}

// method says in five sentences how the numbers came about.
func method(in Input, all []cell.Summary) []string {
	blocks, placements := map[int]bool{}, map[string]bool{}
	for _, s := range in.Samples {
		if !s.Warmup() {
			blocks[s.Block] = true
		}
	}
	for _, s := range all {
		if s.Placement != "" {
			placements[s.Placement] = true
		}
	}
	n, seed := "Each block", "a recorded seed"
	if len(blocks) > 0 {
		n = "Each of the " + cell.Plural(len(blocks), "block")
	}
	if len(blocks) == 1 {
		n = "The one block"
	}
	if s := lookup(in.Environment, "seed"); s != "" {
		seed = "seed " + s
	}
	place := "which is reported"
	if len(placements) > 0 {
		place = "here " + strings.Join(slices.Sorted(maps.Keys(placements)), ", ")
	}
	interval := "Intervals are those of the median between two order statistics, without assuming any distribution; where too few samples allow the full level, the level reached is said."
	if in.thesis() {
		interval = "As in the thesis that this experiment repeats, numbers are means with one standard error each way; medians with their intervals are in summary.json."
	}
	return []string{
		n + " measured every cell once, in a fresh random order (" + seed + "), so that drift of the machine hits all networks alike.",
		"Warm-up samples are not counted; samples spoilt by a late generator or by foreign load were repeated, and the table counts them as bad.",
		"The two ends run in " + ends(all) + " of this machine; on which processors is a factor of its own, " + place + ".",
		interval,
		"~ marks what can’t be told apart from the best of its group after Holm’s correction for the number of comparisons: such networks are not ranked.",
	}
}

// ends is what the ends of traffic run in.
func ends(all []cell.Summary) string {
	var runtimes []string
	for _, s := range all {
		if !native(s.Cell) && !slices.Contains(runtimes, s.Runtime) {
			runtimes = append(runtimes, s.Runtime)
		}
	}
	if len(runtimes) == 0 {
		return "network namespaces"
	}
	slices.Sort(runtimes)
	return "network namespaces, or in containers (" + strings.Join(runtimes, ", ") + ") with the network of such a namespace,"
}

func files() []fact {
	return []fact{
		{"samples.jsonl", "every single measurement, warm-up and bad ones included, one JSON object a line"},
		{"environment.json", "the seed, the machine, and the versions of everything"},
		{"summary.json", "the cells of this report, for programs"},
		{"summary.csv", "the same, for spreadsheets"},
	}
}
