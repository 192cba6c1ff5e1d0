package report

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

// update writes the golden files anew:
//
//	go test ./bench/report -run Golden -update
var update = flag.Bool("update", false, "write the golden files of this package anew")

// linksInput returns a run of three networks over several links, natively and in
// containers.
func linksInput(containers bool) Input {
	g := newSynthetic("links")
	for _, rate := range []string{"100M", "1G"} {
		for links := 1; links <= 12; links++ {
			for _, q := range []struct {
				network, runtime, contained string
				reaches                     float64
			}{
				{"single", "native", "", 0.998}, {"mptcp", "native", "", 0.99}, {"tunnel", "native", "", 0.985},
				{"mptcp", "docker", "ends", 0.99}, {"tunnel", "docker", "ends", 0.97}, {"tunnel", "docker", "program", 0.98},
			} {
				if q.runtime != "native" && (!containers || rate == "1G") || q.network == "single" && links > 1 {
					continue
				}
				c := linksCell(q.network, links, map[string]string{"link_rate": rate, "variant": "plain"})
				c.Runtime = q.runtime
				if q.contained != "" {
					c.Factors["contained"] = q.contained
				}
				used := links
				if q.network == "mptcp" {
					used = min(links, 9)
				}
				g.addLinks(c, "tcp", float64(used)/float64(links)*q.reaches, nil)
			}
		}
	}
	for _, variant := range []string{"rates", "delays", "blackhole"} {
		for network, reaches := range map[string]float64{"mptcp": 0.9, "tunnel": 0.98} {
			c := linksCell(network, 4, map[string]string{"link_rate": "100M", "variant": variant})
			g.addLinks(c, "tcp", reaches, map[cell.Metric]float64{cell.EarlyOfIdeal: reaches - 0.03, cell.SteadyOfIdeal: reaches + 0.01, cell.Outage: 5e7 * (2 - reaches)})
		}
	}
	return g.in
}

func linksCell(network string, links int, factors map[string]string) cell.Cell {
	transport := "tcp"
	if network == "mptcp" {
		transport = network
	}
	return cell.Cell{Network: network, Runtime: "native", Topology: "links", Transport: transport, Direction: "between", Pairs: 1, Streams: 1, Links: links,
		MessageBytes: 131072, Congestion: "cubic", Placement: "different-cores", Engine: "cleat", Factors: factors}
}

// addLinks adds a cell that reaches a share of its ideal.
func (g *synthetic) addLinks(c cell.Cell, work string, reaches float64, more map[cell.Metric]float64) {
	rate, _ := cell.Number(c.Factors["link_rate"])
	ideal := rate * float64(c.Links) * map[string]float64{"single": 1448.0 / 1514, "mptcp": 1424.0 / 1514, "tunnel": 1400.0 / 1514}[c.Network]
	values := map[cell.Metric]float64{cell.Ideal: ideal, cell.Throughput: ideal * reaches, cell.OfIdeal: reaches}
	for m, v := range more {
		values[m] = v
	}
	g.add(c, work, 10, 0, cell.CoresPerGbit{System: 0.1}, values)
}

func TestCurvesOverLinks(t *testing.T) {
	for _, tt := range []struct {
		containers bool
		titles     []string
		panels     []string // of the first figure
	}{
		{false, []string{"Throughput: 100 Mbit/s a link", "Throughput: 1 Gbit/s a link", "Throughput, of the ideal: 100 Mbit/s a link", "Throughput, of the ideal: 1 Gbit/s a link",
			"Processor time: 100 Mbit/s a link", "Processor time: 1 Gbit/s a link"}, []string{""}},
	} {
		figures := figuresOf(linksInput(tt.containers))
		if got := titles(figures); !slices.Equal(got, tt.titles) {
			t.Errorf("containers %t: figures %q, want %q", tt.containers, got, tt.titles)
		}
		var panels []string
		for _, p := range figures[0].Panels {
			panels = append(panels, p.Title)
		}
		if !slices.Equal(panels, tt.panels) {
			t.Errorf("containers %t: panels %q, want %q", tt.containers, panels, tt.panels)
		}
	}
	figures := figuresOf(linksInput(true))
	slow, fast := figures[0], figures[1]
	if slow.XLabel != "links" || slow.YLabel != "Mbit/s" || fast.YLabel != "Gbit/s" {
		t.Errorf("axes %s, %s and %s", slow.XLabel, slow.YLabel, fast.YLabel)
	}
	want := map[string]float64{"ideal": 1424.0 / 1400, "mptcp": 0.99 * 9 / 12 * 1424 / 1400, "mptcp, in docker, ends only": 0.99 * 9 / 12 * 1424 / 1400,
		"tunnel": 0.985, "tunnel, in docker, ends only": 0.97, "tunnel, in docker, program only": 0.98}
	checkLines(t, slow.Panels[0], want, 1200*1400.0/1514)
	for _, s := range slow.Panels[0].Series {
		if s.Baseline != (s.Name == "ideal") {
			t.Errorf("%s drawn as a reference: %t", s.Name, s.Baseline)
		}
	}
	if !strings.Contains(slow.Caption, "10 samples each") {
		t.Errorf("caption %q", slow.Caption)
	}
}

// TestCrowdedFigure checks that networks get panels of their own when there are more
// curves than colours, after a panel that compares them.
func TestCrowdedFigure(t *testing.T) {
	in := crowdedInput("podman", "apptainer")
	var got []string
	for _, p := range figuresOf(in)[0].Panels {
		got = append(got, p.Title+": "+strings.Join(lineNames(p), "; "))
	}
	want := []string{"all networks: ideal; mptcp; tunnel",
		"mptcp: ideal; mptcp; mptcp, in docker, ends only; mptcp, in podman, ends only; mptcp, in apptainer, ends only",
		"tunnel: ideal; tunnel; tunnel, in docker, ends only; tunnel, in podman, ends only; tunnel, in apptainer, ends only; " +
			"tunnel, in docker, program only; tunnel, in podman, program only; tunnel, in apptainer, program only"}
	if len(got) != len(want) {
		t.Fatalf("panels %q, want %q", got, want)
	}
	for i := range want {
		if names := strings.Split(got[i], "; "); len(names) != len(strings.Split(want[i], "; ")) || !strings.HasPrefix(got[i], strings.Split(want[i], ":")[0]) {
			t.Errorf("panel %q, want %q", got[i], want[i])
		}
	}
}

// crowdedInput returns linksInput with what was measured in docker in more runtimes.
func crowdedInput(runtimes ...string) Input {
	in := linksInput(true)
	for _, runtime := range runtimes {
		for _, s := range slices.Clone(in.Summaries) {
			if s.Runtime == "docker" {
				s.Runtime = runtime
				in.Summaries = append(in.Summaries, s)
			}
		}
	}
	return in
}

// TestCrowdedFigureHasAllCurves checks that a network which was measured with one setting
// only is in the panel of all networks.
func TestCrowdedFigureHasAllCurves(t *testing.T) {
	in := crowdedInput("podman", "apptainer", "a", "b")
	in.Summaries = slices.DeleteFunc(in.Summaries, func(s cell.Summary) bool { return s.Network == "mptcp" && s.Runtime != "docker" })
	p := figuresOf(in)[0].Panels[0]
	if got, want := p.Title+": "+strings.Join(lineNames(p), "; "), "all networks: ideal; mptcp, in docker, ends only; tunnel"; got != want {
		t.Errorf("panel %q, want %q", got, want)
	}
}

// TestLinearAxis checks that links are evenly spaced, so that the ideal is a straight
// line, and that a network without settings comes first in the legend.
func TestLinearAxis(t *testing.T) {
	f := figuresOf(linksInput(true))[0]
	out := layOut(f, seriesNames([]figure{f}))
	var at []float64
	for _, p := range out.Panels[0].Curves[0].Points {
		x, err := strconv.ParseFloat(strings.TrimSuffix(p.X, "%"), 64)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, x)
	}
	if math.Abs((at[11]-at[0])-11*(at[1]-at[0])) > 0.2 {
		t.Errorf("1, 2 and 12 links are at %v, %v and %v %% of the width", at[0], at[1], at[11])
	}
	if got := out.Series[0].Name; got != "mptcp" {
		t.Errorf("the legend begins with %s", got)
	}
}

// TestAbsentRuntime checks that a missing runtime is listed once, not for each
// network and number of links, and that a failure in a runtime names it.
func TestAbsentRuntime(t *testing.T) {
	in := linksInput(false)
	for links := 1; links <= 12; links++ {
		for _, network := range []string{"tunnel", "mptcp"} {
			c := linksCell(network, links, map[string]string{"link_rate": "100M", "variant": "plain"})
			c.Runtime = "apptainer"
			in.Absent = append(in.Absent, cell.Absent{Cell: c, Work: "tcp", Reason: "apptainer: it is not installed", Remedy: "install it"})
		}
	}
	c := linksCell("tunnel", 4, map[string]string{"link_rate": "100M", "variant": "rates"})
	c.Runtime = "docker"
	in.Absent = append(in.Absent, cell.Absent{Cell: c, Work: "tcp", Reason: "no traffic passes"})
	want := []missing{
		{Network: "tunnel", Work: "tcp, 4 links, in docker, 100 Mbit/s a link, variant rates", Reason: "no traffic passes"},
		{Network: "everything in apptainer", Reason: "it is not installed", Remedy: "install it"},
	}
	if got := absentees(in).unavailable; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestMethodNamesRuntimes checks that ends in containers are mentioned.
func TestMethodNamesRuntimes(t *testing.T) {
	for containers, want := range map[bool]string{false: "run in network namespaces of this machine", true: "in containers (docker) with"} {
		in := linksInput(containers)
		if text := strings.Join(method(in, in.available()), " "); !strings.Contains(text, want) {
			t.Errorf("containers %t: %q is not in %s", containers, want, text)
		}
	}
}

// TestSpreadText checks the number of samples and the widest interval. The ideal is
// computed and has neither.
func TestSpreadText(t *testing.T) {
	p := panel{Series: []series{
		{Name: "ideal", Baseline: true, Points: []point{{Y: 100, Low: 0, High: 200, N: 99, Label: "1"}}},
		{Name: "native", Points: []point{{Y: 90, Low: 80, High: 95, N: 10, Label: "1"}, {Y: 180, Low: 170, High: 190, N: 9, Label: "2"}}},
	}}
	if got, want := spreadText(p, "links"), "medians of 9 to 10 samples; the widest interval: 80.0–95.0, native at 1 links"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNotesOfCurves checks that notes of numbers on curves follow the tables without
// a mark, and that only rows have marks.
func TestNotesOfCurves(t *testing.T) {
	in := linksInput(false)
	for i, s := range in.Summaries {
		if s.Network != "mptcp" || s.Metric != cell.OfIdeal && s.Metric != cell.Throughput {
			continue
		}
		switch s.Factors["variant"] {
		case "plain":
			in.Summaries[i].Warnings = []cell.Warning{cell.Note("of a curve")}
		case "rates":
			in.Summaries[i].Warnings = []cell.Warning{cell.Note("of a row")}
		}
	}
	got := table(t, in, 80)
	for _, want := range []string{"\nsome results: ", ": of a curve\n", "¹ ", ": of a row\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "²") {
		t.Errorf("there is a second mark in\n%s", got)
	}
}

// TestIdealHasNoInterval checks that a computed number is shown without one.
func TestIdealHasNoInterval(t *testing.T) {
	in := linksInput(false)
	s := arrange(in.available())[0]
	for _, c := range newDataRow(s.groups[0].rows[0], s.metrics, nil, nil).Cells {
		if ideal := strings.HasPrefix(c.Head, "Ideal"); ideal && c.Sub != "" || strings.HasPrefix(c.Head, "Throughput, Gbit") && c.Sub == "" {
			t.Errorf("%s has the interval %q", c.Head, c.Sub)
		}
	}
}

func lineNames(p panel) (names []string) {
	for _, s := range p.Series {
		names = append(names, s.Name)
	}
	return names
}

// checkLines checks the names of the curves, that each has twelve points, and that the
// last is a share of the ideal.
func checkLines(t *testing.T, p panel, want map[string]float64, ideal float64) {
	t.Helper()
	if len(p.Series) != len(want) {
		t.Errorf("curves %q, want %v", lineNames(p), want)
	}
	for _, s := range p.Series {
		last := s.Points[len(s.Points)-1]
		if len(s.Points) != 12 || last.X != 12 || math.Abs(last.Y-ideal*want[s.Name]) > 0.01 {
			t.Errorf("%s has %d points, the last %+v, want %.2f", s.Name, len(s.Points), last, ideal*want[s.Name])
		}
	}
}

// TestPageOfLinks checks that numbers without enough levels for a curve are bars, and
// that words are explained.
func TestPageOfLinks(t *testing.T) {
	page := render(t, linksInput(false))
	for _, want := range []string{"Throughput, of the ideal", "Outage", "First 2 s, of the ideal", "Variant blackhole", "the longest time in which nothing arrived"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
}

// TestGoldenTables compares tables for a terminal with files.
func TestGoldenTables(t *testing.T) {
	for name, in := range map[string]Input{"links-native": linksInput(false), "links-containers": linksInput(true), "quick": quickInput(), "pairs": pairsInput()} {
		got := table(t, in, 80)
		for _, l := range strings.Split(got, "\n") {
			if columns.Of(l) > 80 {
				t.Errorf("%s: a line takes %d columns: %q", name, columns.Of(l), l)
			}
		}
		file := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant, by %s,\n%s", name, got, file, want)
		}
	}
}

// TestNarrowCurves checks that curves that do not fit beside each other make further
// tables.
func TestNarrowCurves(t *testing.T) {
	in := linksInput(false)
	for _, s := range slices.Clone(in.Summaries) {
		if s.Network == "tunnel" && s.Factors["variant"] == "plain" {
			for _, network := range []string{"mpt", "mlvpn", "glorytun"} {
				c := s
				c.Network = network
				in.Summaries = append(in.Summaries, c)
			}
		}
	}
	out := table(t, in, 40)
	for _, l := range strings.Split(out, "\n") {
		if columns.Of(l) > 40 {
			t.Errorf("a line takes %d columns: %q", columns.Of(l), l)
		}
	}
	for _, want := range []string{"glorytun", "mlvpn"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}
