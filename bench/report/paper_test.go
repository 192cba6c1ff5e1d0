package report

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

// update writes the golden files anew:
//
//	go test ./bench/report -run Paper -update
var update = flag.Bool("update", false, "write the golden files of this package anew")

// paperInput is a run of the preset multipath on three networks, natively and in
// containers.
func paperInput(containers bool) Input {
	g := newSynthetic("multipath")
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

// addLinks adds a cell that reaches a part of its ideal.
func (g *synthetic) addLinks(c cell.Cell, work string, reaches float64, more map[cell.Metric]float64) {
	rate, _ := cell.Number(c.Factors["link_rate"])
	ideal := rate * float64(c.Links) * map[string]float64{"single": 1448.0 / 1514, "mptcp": 1424.0 / 1514, "tunnel": 1400.0 / 1514}[c.Network]
	values := map[cell.Metric]float64{cell.Ideal: ideal, cell.Throughput: ideal * reaches, cell.OfIdeal: reaches}
	for m, v := range more {
		values[m] = v
	}
	g.add(c, work, 10, 0, cell.CoresPerGbit{System: 0.1}, values)
}

func TestPaperFigures(t *testing.T) {
	for _, tt := range []struct {
		containers bool
		want       []string
	}{
		{false, []string{"Figure 6 The tunnel, all native", "Figure 7 MPTCP, all native", "All networks, native", "Part of the ideal, all networks"}},
		{true, []string{"Figure 5 Generator in containers, the tunnel native", "Figure 6 The tunnel in containers, generator native", "Figure 7 MPTCP, generator in containers", "All networks, native", "Part of the ideal, all networks"}},
	} {
		if got := titles(Figures(paperInput(tt.containers))); !slices.Equal(got, tt.want) {
			t.Errorf("containers %t: figures %q, want %q", tt.containers, got, tt.want)
		}
	}
	figures := Figures(paperInput(true))
	five, seven, all := figures[0], figures[2], figures[3]
	if five.XLabel != "links" || five.YLabel != "Mbit/s" || len(five.Panels) != 2 || five.Panels[0].Title != "links of 100 Mbit/s" || five.Panels[1].Title != "links of 1 Gbit/s" {
		t.Fatalf("%s: %q by %q, %d panels", five.Title, five.YLabel, five.XLabel, len(five.Panels))
	}
	checkLines(t, five.Panels[0], map[string]float64{"ideal": 1, "native": 0.985, "docker": 0.97}, 1200*1400.0/1514)
	checkLines(t, figures[1].Panels[0], map[string]float64{"ideal": 1, "native": 0.985, "docker": 0.98}, 1200*1400.0/1514)
	checkLines(t, seven.Panels[0], map[string]float64{"ideal": 1, "native": 0.99 * 9 / 12, "docker": 0.99 * 9 / 12}, 1200*1424.0/1514)
	if names := lineNames(all.Panels[0]); !slices.Equal(names, []string{"ideal", "single", "mptcp", "tunnel"}) {
		t.Errorf("all networks: lines %q", names)
	}
	if !all.Panels[0].Series[0].Baseline || all.Panels[0].Series[1].Baseline {
		t.Error("the ideal, and it alone, is to be drawn as a reference")
	}
	if !strings.Contains(seven.Caption, "with cubic") || !strings.Contains(seven.Caption, "10 samples each") {
		t.Errorf("caption %q", seven.Caption)
	}
}

// TestPaperAxis: the links are evenly spaced, as in the paper, so that the ideal is
// a straight line; and what runs natively comes first in the legend.
func TestPaperAxis(t *testing.T) {
	f := Figures(paperInput(true))[0]
	out := layOut(f, seriesNames([]Figure{f}))
	var at []float64
	for _, p := range out.Panels[0].Curves[0].Points {
		at = append(at, number64(strings.TrimSuffix(p.X, "%")))
	}
	if math.Abs((at[11]-at[0])-11*(at[1]-at[0])) > 0.2 {
		t.Errorf("1, 2 and 12 links are at %v, %v and %v %% of the width", at[0], at[1], at[11])
	}
	if got := out.Series[0].Name; got != cell.Native {
		t.Errorf("the legend begins with %s", got)
	}
}

// TestAbsentRuntime: a runtime that is not here is missing once, and not for each
// network and number of links; what fails in one says so.
func TestAbsentRuntime(t *testing.T) {
	in := paperInput(false)
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
	got, _ := absentees(in)
	want := []missing{
		{Network: "tunnel", Work: "1 TCP stream, 4 links, rates, in docker", Reason: "no traffic passes"},
		{Network: "everything in apptainer", Reason: "it is not installed", Remedy: "install it"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestMethodNamesRuntimes: ends in containers are not said to be in namespaces
// alone.
func TestMethodNamesRuntimes(t *testing.T) {
	for containers, want := range map[bool]string{false: "run in network namespaces of this machine", true: "in containers (docker) with"} {
		in := paperInput(containers)
		if text := strings.Join(method(in, in.available()), " "); !strings.Contains(text, want) {
			t.Errorf("containers %t: %q is not in %s", containers, want, text)
		}
	}
}

// TestSpread: how many samples there are, and which number is the least sure; the
// ideal is computed and has neither.
func TestSpread(t *testing.T) {
	p := Panel{Series: []Series{
		{Name: "ideal", Baseline: true, Points: []Point{{Y: 100, Low: 0, High: 200, N: 99, Label: "1"}}},
		{Name: "native", Points: []Point{{Y: 90, Low: 80, High: 95, N: 10, Label: "1"}, {Y: 180, Low: 170, High: 190, N: 9, Label: "2"}}},
	}}
	if got, want := p.spread("links"), "medians of 9 to 10 samples; the widest interval: 80.0–95.0, native at 1 links"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSteadyText: what is called steady depends on the experiment.
func TestSteadyText(t *testing.T) {
	work := func(duration, steady string) any {
		return map[string]any{"work": []any{map[string]any{"kind": "tcp", "duration": duration, "steady": steady}}}
	}
	in := Input{Environment: map[string]any{"experiment": map[string]any{"groups": []any{work("5s", "0s"), work("45s", "30s"), work("45s", "30s")}}}}
	if got, want := steadyText(in), "Steady is what comes after the first 2 s, and after 30s of measurements of 45s."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := steadyText(Input{}), "Steady is what comes after the first 2 s."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPaperNotes: what is to be known of the figures' numbers stands below them,
// and marks below the tables are only those that a row has.
func TestPaperNotes(t *testing.T) {
	in := paperInput(false)
	for i, s := range in.Summaries {
		if byNumber(s.Cell) && s.Network == "mptcp" {
			in.Summaries[i].Warnings = []string{"of a figure"}
		} else if s.Factors["variant"] == "rates" && s.Network == "mptcp" {
			in.Summaries[i].Warnings = []string{"of a row"}
		}
	}
	got := table(t, in, 80)
	for _, want := range []string{"\nnote: of some: of a figure\n", "¹ of a row\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "²") {
		t.Errorf("there is a second mark in\n%s", got)
	}
}

func TestCommonLinks(t *testing.T) {
	of := func(links int, rate string) cell.Summary {
		return cell.Summary{Cell: linksCell("tunnel", links, map[string]string{"link_rate": rate})}
	}
	for want, sums := range map[string][]cell.Summary{
		"":                       {of(4, "100M"), of(12, "100M")},
		"4 links":                {of(4, "100M"), of(4, "1G")},
		"4 links of 1 Gbit/s":    {of(4, "1G"), of(4, "1G")},
		"12 links of 100 Mbit/s": {of(12, "100M")},
	} {
		if got := commonLinks(sums); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestIdealHasNoInterval: it is computed.
func TestIdealHasNoInterval(t *testing.T) {
	in := paperInput(false)
	rows, fs, metrics := arrange(in.available())
	for _, c := range newDataRow(in, rows[0], fs, metrics, nil).Cells {
		if ideal := strings.HasPrefix(c.Head, "Ideal"); ideal && c.Sub != "" || strings.HasPrefix(c.Head, "Throughput, Gbit") && c.Sub == "" {
			t.Errorf("%s has the interval %q", c.Head, c.Sub)
		}
	}
}

func lineNames(p Panel) (names []string) {
	for _, s := range p.Series {
		names = append(names, s.Name)
	}
	return names
}

// checkLines wants these lines, with twelve points each, the last at a part of
// the ideal there.
func checkLines(t *testing.T, p Panel, want map[string]float64, ideal float64) {
	t.Helper()
	if len(p.Series) != len(want) {
		t.Errorf("lines %q, want %v", lineNames(p), want)
	}
	for _, s := range p.Series {
		last := s.Points[len(s.Points)-1]
		if len(s.Points) != 12 || last.X != 12 || math.Abs(last.Y-ideal*want[s.Name]) > 0.01 {
			t.Errorf("%s has %d points, the last %+v, want %.2f", s.Name, len(s.Points), last, ideal*want[s.Name])
		}
	}
}

// TestPaperLeavesOut: what is not plain is in no figure, but in the bars.
func TestPaperLeavesOut(t *testing.T) {
	for name, change := range map[string]func(*cell.Cell){
		"variant": func(c *cell.Cell) { c.Factors["variant"] = "rates" }, "scheduler": func(c *cell.Cell) { c.Factors["scheduler"] = "flow" },
		"crypto": func(c *cell.Cell) { c.Factors["crypto"] = "on" }, "outer": func(c *cell.Cell) { c.Factors["outer"] = "ipv6" },
		"streams": func(c *cell.Cell) { c.Streams = 8 }, "datagrams": func(c *cell.Cell) { c.Transport = "udp" },
		"unshaped": func(c *cell.Cell) { delete(c.Factors, "link_rate") }, "work": func(c *cell.Cell) { c.Factors["work"] = "loaded" },
		"network": func(c *cell.Cell) { c.Network = "veth" },
	} {
		c := linksCell("tunnel", 4, map[string]string{"link_rate": "100M", "variant": "plain", "scheduler": "adaptive", "crypto": "off", "outer": "ipv4"})
		if !byNumber(c) {
			t.Fatal("a plain cell is in no figure")
		}
		if change(&c); byNumber(c) {
			t.Errorf("%s: %+v is in the figures", name, c)
		}
	}
	page := render(t, paperInput(false))
	for _, want := range []string{"Figure 7 MPTCP", "% of the ideal", "Outage", "First 2 s, of the ideal", "Variant blackhole"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// TestPaperTable holds the terminal's table against what it was.
func TestPaperTable(t *testing.T) {
	for name, in := range map[string]Input{"native": paperInput(false), "containers": paperInput(true)} {
		got := table(t, in, 80)
		for _, l := range strings.Split(got, "\n") {
			if columns.Of(l) > 80 {
				t.Errorf("%s: a line takes %d columns: %q", name, columns.Of(l), l)
			}
		}
		file := filepath.Join("testdata", "multipath-"+name+".txt")
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

// TestPaperTableIsNarrow: lines that do not fit beside each other make further
// tables.
func TestPaperTableIsNarrow(t *testing.T) {
	in := paperInput(false)
	for _, s := range slices.Clone(in.Summaries) {
		if s.Network == "tunnel" && byNumber(s.Cell) {
			for _, network := range []string{"mpt", "mlvpn", "glorytun"} {
				for _, settings := range []string{"default", "best"} {
					c := s
					c.Network = network
					c.Factors = map[string]string{"link_rate": s.Factors["link_rate"], "variant": "plain", "settings": settings}
					in.Summaries = append(in.Summaries, c)
				}
			}
		}
	}
	out := table(t, in, 60)
	for _, l := range strings.Split(out, "\n") {
		if columns.Of(l) > 60 {
			t.Errorf("a line takes %d columns: %q", columns.Of(l), l)
		}
	}
	for _, want := range []string{"glorytun, best", "mlvpn, best"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}
