package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

var preview = flag.String("preview", "", "write the test's reports to this directory, to look at them")

func render(t *testing.T, in Input) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, in); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// element is what the tests need of a parsed document.
type element struct {
	name  string
	attrs map[string]string
}

// parse reads the report as strict XML and returns its elements and its text.
func parse(t *testing.T, page string) (elements []element, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	var b strings.Builder
	for {
		token, err := d.Token()
		if err == io.EOF {
			return elements, b.String()
		}
		if err != nil {
			t.Fatalf("the report is not well-formed: %v", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			attrs := map[string]string{}
			for _, a := range e.Attr {
				attrs[a.Name.Local] = a.Value
			}
			elements = append(elements, element{e.Name.Local, attrs})
		case xml.CharData:
			b.Write(e)
			b.WriteByte(' ')
		}
	}
}

func TestHTMLIsWholeAndAlone(t *testing.T) {
	outside := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]|url\(|@import|<script|<link|<img|<iframe`)
	for name, in := range inputs() {
		t.Run(name, func(t *testing.T) {
			page := render(t, in)
			if *preview != "" {
				writePreview(t, name, in)
			}
			if page != render(t, in) {
				t.Error("two renderings differ")
			}
			bare := strings.Replace(page, ` xmlns="http://www.w3.org/1999/xhtml"`, "", 1)
			if found := outside.FindString(bare); found != "" {
				t.Errorf("the report refers to something outside: %q", found)
			}
			elements, text := parse(t, page)
			for _, s := range in.Summaries {
				if !strings.Contains(text, s.Network) {
					t.Errorf("%s is missing", s.Network)
				}
			}
			for _, a := range in.Absent {
				if !strings.Contains(text, a.Network) || !strings.Contains(text, a.Reason) || !strings.Contains(text, a.Remedy) {
					t.Errorf("%s is missing, or its reason or remedy", a.Network)
				}
			}
			for _, e := range elements {
				if e.attrs["role"] == "img" && e.attrs["aria-label"] == "" {
					t.Errorf("a picture <%s> without a description", e.name)
				}
				for _, a := range []string{"x", "x1", "cx", "width"} {
					if strings.Contains(e.attrs[a], "NaN") || strings.Contains(e.attrs[a], "Inf") {
						t.Errorf("<%s %s=%q>", e.name, a, e.attrs[a])
					}
				}
			}
			if got := strings.Contains(text, "Partial."); got != in.Partial {
				t.Errorf("marked as partial: %t, want %t", got, in.Partial)
			}
		})
	}
}

// TestHTMLOrder checks that the answer precedes the figures, and those the numbers.
func TestHTMLOrder(t *testing.T) {
	page := render(t, quickInput())
	at := 0
	for _, id := range []string{"recommendation", "figures", "numbers", "unavailable", "not-applicable", "method", "environment", "files"} {
		i := strings.Index(page, `<section id="`+id+`"`)
		if i < at {
			t.Errorf("section %q stands at %d, before the one that it should follow (%d)", id, i, at)
		}
		at = i
	}
	for _, s := range []string{"seed 4711", "bimodal: 5 samples", "2 samples: the generator was late", "6.18.0", "samples.jsonl"} {
		if !strings.Contains(page, s) {
			t.Errorf("%q is missing", s)
		}
	}
}

func TestHTMLEscapes(t *testing.T) {
	const hostile = `</style></title><script>alert("x")</script>&'"<b>`
	in := quickInput()
	in.Preset, in.Notes = hostile, []string{hostile}
	in.Recommendation = []Advice{{Question: hostile, Network: hostile, Summary: hostile, Reasons: []string{hostile}, Caveats: []string{hostile}}}
	in.Environment = map[string]any{hostile: hostile, "o": map[string]any{hostile: []any{hostile}}}
	in.Absent = []cell.Absent{{Cell: cell.Cell{Network: hostile}, Reason: hostile, Remedy: hostile}}
	for i := range in.Summaries {
		in.Summaries[i].Network = hostile + in.Summaries[i].Network
		in.Summaries[i].Warnings = []cell.Warning{cell.Note(hostile)}
		in.Summaries[i].Factors = map[string]string{hostile: hostile}
	}
	page := render(t, in)
	elements, text := parse(t, page)
	for _, e := range elements {
		if e.name == "script" || e.name == "b" && e.attrs["class"] != "" {
			t.Errorf("an element <%s> was injected", e.name)
		}
	}
	if !strings.Contains(text, hostile) {
		t.Error("the hostile text is not shown as it is")
	}
}

// TestHTMLWithOddNumbers checks that odd numbers do not break the layout.
func TestHTMLWithOddNumbers(t *testing.T) {
	for _, x := range []float64{0, -1, 1e-12, 1e300, math.NaN(), math.Inf(1)} {
		in := quickInput()
		for i := range in.Summaries {
			s := &in.Summaries[i]
			s.Median, s.Mean, s.CILow, s.CIHigh, s.StdErr = x, x, x, x, x
			s.CoresPerGbit = cell.CoresPerGbit{User: x, System: x, SoftIRQ: x}
		}
		in.Samples = nil
		page := render(t, in)
		parse(t, page)
		if strings.Contains(page, `"NaN`) || strings.Contains(page, `"+Inf`) {
			t.Errorf("%g: a place is not a number", x)
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("disk full")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteErrorsAreReported(t *testing.T) {
	if err := HTML(brokenWriter{}, quickInput()); !errors.Is(err, errBroken) {
		t.Errorf("HTML: %v, want %v", err, errBroken)
	}
	if err := (Terminal{}).Table(brokenWriter{}, quickInput()); !errors.Is(err, errBroken) {
		t.Errorf("Table: %v, want %v", err, errBroken)
	}
}

func TestPathsAreShown(t *testing.T) {
	in := quickInput()
	in.Environment = map[string]any{"networks": map[string]any{
		"vxlan (switched, MTU 9000)": map[string]any{"link_mtu_bytes": 8950.0, "path_mtu_bytes": 1450.0, "notes": []any{"a note", "another"}},
		"veth":                       map[string]any{"link_mtu_bytes": 1500.0},
	}}
	want := []pathFacts{
		{Network: "veth", LinkMTU: "1500 B", PathMTU: cell.None},
		{Network: "vxlan (switched, MTU 9000)", LinkMTU: "8950 B", PathMTU: "1450 B", Notes: "a note, another"},
	}
	if got := paths(in.Environment); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	var b bytes.Buffer
	if err := HTML(&b, in); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"Paths", "vxlan (switched, MTU 9000)", "1450 B", "a note, another"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("%q is missing", text)
		}
	}
}

// TestOneSampleHasNoInterval checks that no interval is shown of a single sample.
func TestOneSampleHasNoInterval(t *testing.T) {
	g := newSynthetic("one")
	g.add(cell.Cell{Network: "veth", Transport: "tcp"}, "tcp", 1, 0, cell.CoresPerGbit{User: 0.1}, map[cell.Metric]float64{cell.Throughput: 1e10})
	g.add(cell.Cell{Network: "veth", Transport: "tcp"}, "rr", 1, 0, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.LatencyP50: 1e5, cell.LatencyP99: 2e5})
	var b bytes.Buffer
	if err := HTML(&b, g.in); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"0 % interval", "whiskers are", "10.0–10.0"} {
		if strings.Contains(b.String(), text) {
			t.Errorf("%q is shown of a single sample", text)
		}
	}
}

func TestExistingPathIsNoRecommendation(t *testing.T) {
	g := newSynthetic("between")
	g.add(cell.Cell{Network: "existing-path", Transport: "tcp", Direction: "outbound"}, "tcp", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Throughput: 1e10})
	var b bytes.Buffer
	if err := HTML(&b, FromResults(results(g.in))); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); !strings.Contains(text, "This path, outbound") || strings.Contains(text, "<h2>Recommendation") {
		t.Error("the path's numbers are not stated, or recommended")
	}
}

func TestTitle(t *testing.T) {
	page := render(t, FromResults(summary.Results{Environment: map[string]any{"preset": "quick", "hostname": "rack7", "started": "2026-10-09T08:53:20Z", "title": "the usual networks"}}))
	for _, want := range []string{"<title>quick on rack7, 2026-10-09 · cleat bench</title>", "<h1>quick on rack7, 2026-10-09</h1>", "<span>the usual networks</span>"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	if got := (Input{}).title(); got != "Report" {
		t.Errorf("without results: %q", got)
	}
}

// TestNetworksHaveOneOrder checks that bars and tables list networks alike, whatever
// their numbers are.
func TestNetworksHaveOneOrder(t *testing.T) {
	p := newPage(quickInput())
	var want []string
	for _, g := range p.Tables[0].Groups {
		for _, r := range g.Rows {
			want = append(want, r.Network)
		}
	}
	for _, f := range p.Bars {
		var got []string
		for _, g := range f.Panels[0].Groups {
			for _, r := range g.Rows {
				got = append(got, r.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %q, the table %q", f.Title, got, want)
		}
	}
}

func TestLevelText(t *testing.T) {
	of := func(levels ...float64) (sums []cell.Summary) {
		for _, l := range levels {
			sums = append(sums, cell.Summary{N: 4, CILevel: l})
		}
		return sums
	}
	for want, sums := range map[string][]cell.Summary{"": {{N: 1}}, "95 %": of(0.9609, 0.9785), "87 %": of(0.875), "87–95 %": of(0.875, 0.9609)} {
		if got := levelText(sums); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNotesAreMerged checks that the notes of two rows are lines of both, not
// footnotes of each number.
func TestNotesAreMerged(t *testing.T) {
	g := newSynthetic("between")
	for i, direction := range []string{"outbound", "inbound"} {
		c := cell.Cell{Network: "existing-path", Transport: "tcp", Direction: direction}
		g.add(c, "tcp", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Throughput: 1e10})
		g.add(c, "rr", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.LatencyP50: 1e5})
		for k := range g.in.Summaries[2*i:] {
			s := &g.in.Summaries[2*i+k]
			s.Warnings = []cell.Warning{{Code: "foreign", Count: 2 + k, Severity: float64(i + k), Text: fmt.Sprintf("other programs used %d processors", i+k)}, cell.Note("measured in 8 of 10 blocks")}
		}
	}
	out := table(t, g.in, 80)
	if !strings.Contains(out, "\nall: 2–3 samples: other programs used 2 processors\n") || strings.Count(out, "measured in 8 of 10 blocks") != 1 || strings.ContainsAny(out, "¹²") {
		t.Error(out)
	}
}
