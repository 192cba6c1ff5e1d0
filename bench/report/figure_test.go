package report

import (
	"slices"
	"strings"
	"testing"

	"cleat/bench/cell"
)

func titles(fs []Figure) []string {
	var out []string
	for _, f := range fs {
		out = append(out, f.Title)
	}
	return out
}

func TestThesisFigures(t *testing.T) {
	in := thesisInput()
	figures := Figures(in)
	want := []string{"Figure 5.1 Local TCP", "Figure 5.2 Local UDP", "Figure 5.3 Switched TCP", "Figure 5.4 Switched UDP"}
	if got := titles(figures); !slices.Equal(got, want) {
		t.Fatalf("figures %q, want %q", got, want)
	}
	first := figures[0]
	if len(first.Panels) != 2 || first.Panels[0].Title != "MTU 1500" || first.Panels[1].Title != "MTU 9000" {
		t.Fatalf("panels of %s: %+v", first.Title, first.Panels)
	}
	var names []string
	for _, s := range first.Panels[0].Series {
		names = append(names, s.Name)
		if len(s.Points) != 8 || s.Points[0].X != 1 || s.Points[7].X != 128 {
			t.Errorf("%s has points %+v, want 8 from 1 to 128 pairs", s.Name, s.Points)
		}
	}
	if want := []string{"loopback", "bridge", "published-container", "published-container-nat", "macvlan-bridge", "ipvlan-l2", "ipvlan-l3"}; !slices.Equal(names, want) {
		t.Errorf("curves %q, want %q", names, want)
	}
	for _, s := range ofMetric(in.available(), cell.Throughput) {
		if s.Network == "bridge" && s.Topology == "local" && s.Transport == "tcp" && s.MTU == 1500 && s.Pairs == 4 {
			p := first.Panels[0].Series[1].Points[2]
			if p.Y != s.Mean/1e9 || p.Low != (s.Mean-s.StdErr)/1e9 || p.High != (s.Mean+s.StdErr)/1e9 {
				t.Errorf("point %+v does not show mean ± standard error of %+v", p, s)
			}
		}
	}
	if !strings.Contains(first.Caption, "one standard error") || !strings.Contains(first.Caption, "the proxy program 4") || !strings.Contains(first.Caption, "address translation 2") {
		t.Errorf("caption %q", first.Caption)
	}
	if n := len(figures[1].Panels[0].Series[0].Points); n != 5 {
		t.Errorf("UDP has %d points, want 5 (1 to 16 pairs)", n)
	}
}

func TestUDPFigures(t *testing.T) {
	figures := Figures(udpInput())
	if got := titles(figures); !slices.Equal(got, []string{"Throughput", "Loss"}) {
		t.Fatalf("figures %q", got)
	}
	f := figures[1]
	if f.XLabel != "offered rate, Gbit/s" || f.YLabel != "%" || len(f.Panels) != 6 {
		t.Fatalf("%s by %s in %d panels, want %% by offered rate in 6", f.YLabel, f.XLabel, len(f.Panels))
	}
	if f.Panels[0].Title != "1472 B, GSO off" || len(f.Panels[0].Series) != 2 {
		t.Errorf("first panel %q with %d curves", f.Panels[0].Title, len(f.Panels[0].Series))
	}
	if p := f.Panels[0].Series[0].Points; p[0].X != 1 || p[4].X != 20 || p[4].Label != "20" {
		t.Errorf("points %+v", p)
	}
}

// With one network only, the next factor makes the curves.
func TestFigureOfOneNetwork(t *testing.T) {
	in := udpInput()
	in.Summaries = slices.DeleteFunc(in.Summaries, func(s cell.Summary) bool { return s.Network != "veth" })
	f := Figures(in)[0]
	if len(f.Panels) != 2 || len(f.Panels[0].Series) != 3 || f.Panels[0].Series[0].Name != "1472 B" {
		t.Errorf("%d panels, first %+v; want GSO off and on, with a curve for each of 3 sizes", len(f.Panels), f.Panels[0])
	}
}

func TestNoFigureWithoutAnAxis(t *testing.T) {
	if fs := Figures(quickInput()); len(fs) != 0 {
		t.Errorf("figures %q from cells that differ in the network only", titles(fs))
	}
}

func TestVaryingLeavesOutWhatFollows(t *testing.T) {
	var names []string
	for _, f := range varying(thesisInput().available()) {
		names = append(names, f.Name)
	}
	// Message size and congestion control follow from the transport.
	if want := []string{"topology", "transport", "mtu", "pairs"}; !slices.Equal(names, want) {
		t.Errorf("varying factors %q, want %q", names, want)
	}
}

// Many panels become several figures.
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
	figures := Figures(g.in)
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
	ends := []endLabel{{Name: "a", Y: "100.0"}, {Name: "b", Y: "101.0"}, {Name: "c", Y: "249.0"}, {Name: "d", Y: "250.0"}, {Name: "e", Y: "250.0"}}
	spread(ends, 250)
	for i := 1; i < len(ends); i++ {
		if gap := number64(ends[i].Y) - number64(ends[i-1].Y); gap < labelStep-0.1 {
			t.Errorf("labels %s and %s are %g pixels apart", ends[i-1].Name, ends[i].Name, gap)
		}
	}
	if last := number64(ends[len(ends)-1].Y); last > 250+2*labelStep/3 {
		t.Errorf("the last label is at %g", last)
	}
}

func TestNATSentenceNeedsADistance(t *testing.T) {
	one := func(network string, mean, stderr float64) cell.Summary {
		return cell.Summary{Cell: cell.Cell{Network: network, MTU: 1500, Pairs: 1}, Metric: cell.Throughput, N: 3, Mean: mean, StdErr: stderr, Available: true}
	}
	far := []cell.Summary{one("published-outside", 10, 0.1), one("bridge", 15, 0.1), one("macvlan-bridge", 20, 0.1)}
	if s := natSentence(far); !strings.Contains(s, "50 % at MTU 1500 (means with 1 pair)") {
		t.Errorf("%q", s)
	}
	near := []cell.Summary{one("published-outside", 10, 3), one("bridge", 15, 3), one("macvlan-bridge", 20, 3)}
	if s := natSentence(near); s != "" {
		t.Errorf("a gap within its error is explained: %q", s)
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
