package report

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"cleat/bench/cell"
)

func titles(fs []figure) []string {
	var out []string
	for _, f := range fs {
		out = append(out, f.Title)
	}
	return out
}

func TestFiguresByPairs(t *testing.T) {
	in := pairsInput()
	figures := slices.DeleteFunc(figuresOf(in), func(f figure) bool { return !strings.HasPrefix(f.Title, "Throughput") })
	want := []string{"Throughput: local, TCP", "Throughput: local, UDP", "Throughput: switched, TCP", "Throughput: switched, UDP"}
	if got := titles(figures); !slices.Equal(got, want) {
		t.Fatalf("figures %q, want %q", got, want)
	}
	first := figures[0]
	if len(first.Panels) != 2 || first.Panels[0].Title != "MTU 1500" || first.Panels[1].Title != "MTU 9000" {
		t.Fatalf("panels of %s: %+v", first.Title, first.Panels)
	}
	for _, s := range first.Panels[0].Series {
		if len(s.Points) != 8 || s.Points[0].X != 1 || s.Points[7].X != 128 {
			t.Errorf("%s has points %+v, want 8 from 1 to 128 pairs", s.Name, s.Points)
		}
	}
	if got, want := lineNames(first.Panels[0]), []string{"loopback", "bridge", "published-container", "published-container-nat", "macvlan-bridge", "ipvlan-l2", "ipvlan-l3"}; !slices.Equal(got, want) {
		t.Errorf("curves %q, want %q", got, want)
	}
	for _, s := range ofMetric(in.available(), cell.Throughput) {
		if s.Network == "bridge" && s.Topology == "local" && s.Transport == "tcp" && s.MTU == 1500 && s.Pairs == 4 {
			if p := first.Panels[0].Series[1].Points[2]; p.Y != s.Median/1e9 || p.Low != s.CILow/1e9 || p.High != s.CIHigh/1e9 {
				t.Errorf("point %+v does not show the median and interval of %+v", p, s)
			}
		}
	}
	if n := len(figures[1].Panels[0].Series[0].Points); n != 5 {
		t.Errorf("UDP has %d points, want 5 (1 to 16 pairs)", n)
	}
}

func TestUDPFigures(t *testing.T) {
	figures := figuresOf(udpInput())
	if got := titles(figures); !slices.Equal(got, []string{"Throughput", "Loss", "Processor time"}) {
		t.Fatalf("figures %q", got)
	}
	f := figures[1]
	if f.XLabel != "offered rate, Gbit/s" || f.YLabel != "%" || len(f.Panels) != 6 {
		t.Fatalf("%s by %s in %d panels, want %% by offered rate in 6", f.YLabel, f.XLabel, len(f.Panels))
	}
	if f.Panels[0].Title != "1472 bytes, GSO off" || len(f.Panels[0].Series) != 2 {
		t.Errorf("first panel %q with %d curves", f.Panels[0].Title, len(f.Panels[0].Series))
	}
	if p := f.Panels[0].Series[0].Points; p[0].X != 1 || p[4].X != 20 || p[4].Label != "20" {
		t.Errorf("points %+v", p)
	}
}

// TestFigureOfOneNetwork checks that a condition makes the curves of a single network.
func TestFigureOfOneNetwork(t *testing.T) {
	in := udpInput()
	in.Summaries = slices.DeleteFunc(in.Summaries, func(s cell.Summary) bool { return s.Network != "veth" })
	f := figuresOf(in)[0]
	if len(f.Panels) != 2 || len(f.Panels[0].Series) != 3 || f.Panels[0].Series[0].Name != "1472 bytes" {
		t.Errorf("%d panels, first %+v; want GSO off and on, with a curve for each of 3 sizes", len(f.Panels), f.Panels[0])
	}
}

func TestNoFigureWithoutAnAxis(t *testing.T) {
	if fs := figuresOf(quickInput()); len(fs) != 0 {
		t.Errorf("figures %q from cells that differ in the network only", titles(fs))
	}
}

func TestVaryingSkipsDependentFactors(t *testing.T) {
	var names []string
	for _, f := range varying(pairsInput().available()) {
		names = append(names, f.Name)
	}
	// Message size and congestion control follow from the transport.
	if want := []string{"topology", "transport", "mtu", "pairs"}; !slices.Equal(names, want) {
		t.Errorf("varying factors %q, want %q", names, want)
	}
}

// TestSplitBoundsPanels checks that too many panels become several figures.
func TestSplitBoundsPanels(t *testing.T) {
	g := newSynthetic("many")
	for _, mtu := range []int{1500, 9000} {
		for _, bytes := range []int{512, 1472, 8192} {
			for _, gso := range []string{"on", "off"} {
				for _, sum := range []string{"on", "off"} {
					for _, offered := range []string{"1G", "10G"} {
						for _, n := range []string{"veth", "bridge"} {
							c := cell.Cell{Network: n, Transport: "udp", MTU: mtu, MessageBytes: bytes, Factors: map[string]string{"gso": gso, "checksum": sum, "offered": offered}}
							g.add(c, "udp", 3, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Throughput: 1e9})
						}
					}
				}
			}
		}
	}
	figures := slices.DeleteFunc(figuresOf(g.in), func(f figure) bool { return f.YLabel != "Gbit/s" && f.YLabel != "Mbit/s" })
	if len(figures) != 2 {
		t.Fatalf("figures %q, want one for each MTU", titles(figures))
	}
	for _, f := range figures {
		if len(f.Panels) != 8 || f.XLabel != "message size, bytes" {
			t.Errorf("%s has %d panels by %s, want 8 by message size", f.Title, len(f.Panels), f.XLabel)
		}
	}
}

func TestSpreadKeepsLabelsApart(t *testing.T) {
	ends := []endLabel{{Name: "a", at: 100}, {Name: "b", at: 101}, {Name: "c", at: 249}, {Name: "d", at: 250}, {Name: "e", at: 250}}
	spread(ends, 250)
	y := func(i int) float64 {
		v, err := strconv.ParseFloat(ends[i].Y, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for i := 1; i < len(ends); i++ {
		if gap := y(i) - y(i-1); gap < labelStep-0.1 {
			t.Errorf("labels %s and %s are %g pixels apart", ends[i-1].Name, ends[i].Name, gap)
		}
	}
	if last := y(len(ends) - 1); last > 250+2*labelStep/3 {
		t.Errorf("the last label is at %g", last)
	}
}

func TestEnvironmentShowsEverything(t *testing.T) {
	var names, values []string
	for _, s := range environment(syntheticEnvironment("quick")) {
		names = append(names, s.Title)
		for _, f := range s.Facts {
			values = append(values, f.Name+"="+f.Value)
		}
	}
	if names[0] != "Run" || values[0] != "seed=4711" {
		t.Errorf("starts with %s: %s", names[0], values[0])
	}
	for _, want := range []string{"cpu · governor=performance", "memory bytes=8318976000", "slirp4netns=1.2.0", "cpu · mitigations=spectre_v2: enhanced IBRS, mds: not affected"} {
		if !slices.Contains(values, want) {
			t.Errorf("%q is missing in %q", want, values)
		}
	}
}

func TestEnvironmentIsReadable(t *testing.T) {
	env := map[string]any{
		"started": "2026-10-09T10:53:20.123456789+02:00",
		"host": map[string]any{"interfaces": []any{map[string]any{
			"name": "eth0", "mtu": 1500.0,
			"offloads": map[string]any{"tso": true, "gso": true, "lro": false, "gro": true},
			"counters": map[string]any{"rx_dropped": 3.0, "tx_dropped": 0.0},
		}}},
		"findings": []any{map[string]any{"severity": "warning", "title": "the governor is powersave", "detail": "it wanders", "fix": "cpupower"}, map[string]any{"severity": "ok", "title": "fine"}, "odd"},
	}
	var got []string
	for _, s := range environment(env) {
		for _, f := range s.Facts {
			got = append(got, s.Title+"/"+f.Name+"="+f.Value)
		}
	}
	want := []string{
		"Run/started=2026-10-09 08:53:20 UTC",
		"Host: interfaces/eth0 · counters=rx dropped 3, tx dropped 0",
		"Host: interfaces/eth0 · mtu=1500",
		"Host: interfaces/eth0 · offloads=on: gro, gso, tso; off: lro",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if f := findings(env); len(f) != 1 || f[0] != (finding{"warning", "the governor is powersave", "it wanders", "cpupower"}) {
		t.Errorf("findings %+v", f)
	}
	page := render(t, Input{Environment: env})
	if !strings.Contains(page, "cpupower") || !strings.Contains(page, "Findings on this host") {
		t.Error("the findings are not shown")
	}
}

// figuresOf returns the curves of in.
func figuresOf(in Input) []figure {
	figures, _ := in.figures()
	return figures
}
