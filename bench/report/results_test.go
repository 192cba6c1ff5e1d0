package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

// results returns the results that would be read from the directory of a synthetic input.
func results(in Input) summary.Results {
	r := summary.New(in.Samples, in.Absent)
	r.Environment = in.Environment
	return r
}

func TestFromResults(t *testing.T) {
	quick := quickInput()
	in := FromResults(results(quick))
	if len(in.Recommendation) == 0 || !strings.Contains(in.Recommendation[0].Network, "macvlan-bridge") {
		t.Fatalf("the first recommendation does not name macvlan-bridge: %+v", in.Recommendation)
	}
	var best, tied int
	for m, s := range in.Standings {
		switch {
		case s == Best && m.Metric == cell.Throughput:
			best++
		case s == Tied && m.Metric == cell.Throughput:
			tied++
		}
	}
	if best+tied < 3 || best == 0 {
		t.Errorf("%d roles have a best network for throughput, and %d networks can't be told apart from others, want at least 3 with competitors", best, tied)
	}
	if *preview != "" {
		writePreview(t, "results-quick", in)
		writePreview(t, "results-pairs", FromResults(results(pairsInput())))
		dump(t, quick)
	}
}

// TestCardsNeedAChoice checks that roles with one network take a phrase, not a card.
func TestCardsNeedAChoice(t *testing.T) {
	in := FromResults(results(quickInput()))
	for _, a := range in.Recommendation {
		if strings.Contains(a.Question, "outside") || strings.Contains(a.Summary, "no other was measured") {
			t.Errorf("a card for a role without a choice: %+v", a)
		}
	}
	if got := strings.Join(in.Undecided, "; "); !strings.Contains(got, "Container and the world outside: only nat-out, 26.7 Gbit/s") {
		t.Errorf("undecided %q", got)
	}
}

// TestTiesAreNotRecommended checks that a card does not name one of several networks
// that can't be told apart.
func TestTiesAreNotRecommended(t *testing.T) {
	g := newSynthetic("ties")
	for _, network := range []string{"veth", "bridge"} {
		g.add(cell.Cell{Network: network, Transport: "tcp", Direction: "between"}, "tcp", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Throughput: 1e10})
	}
	first := FromResults(results(g.in)).Recommendation[0]
	if first.Network != "veth or bridge" || strings.HasPrefix(first.Summary, "Use ") || !strings.Contains(first.Summary, "choose by their limits") {
		t.Errorf("%q: %q", first.Network, first.Summary)
	}
}

func writePreview(t *testing.T, name string, in Input) {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, in); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*preview, name+".html"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// dump writes a result directory for trying commands.
func dump(t *testing.T, in Input) {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, s := range in.Samples {
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range in.Absent {
		if err := e.Encode(a); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(*preview, "dir")
	env, err := json.MarshalIndent(in.Environment, "", " ")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, summary.EnvironmentFile), env, 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, summary.SamplesFile), b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoRecommendationYet checks that a card names no network if the samples are too few, and
// that a disturbed best is not marked.
func TestNoRecommendationYet(t *testing.T) {
	sample := func(network string, block int, gbit float64) cell.Sample {
		return cell.Sample{Cell: cell.Cell{Network: network, Transport: "tcp", Direction: "between"}, Work: "tcp", Block: block,
			Values: map[cell.Metric]float64{cell.Throughput: gbit * 1e9}}
	}
	in := FromResults(summary.New([]cell.Sample{sample("veth", 1, 30), sample("bridge", 1, 20)}, nil))
	if a := in.Recommendation; len(a) != 1 || a[0].Network != "none yet" || !strings.Contains(a[0].Summary, "`--repeat 6`") {
		t.Errorf("%+v", a)
	}
	var samples []cell.Sample
	for i := range 8 {
		s := sample("veth", i+1, 30+0.1*float64(i))
		s.Bad = cell.Note("other programs used 0.31 processors")
		samples = append(samples, s, sample("bridge", i+1, 20+0.1*float64(i)))
	}
	if in := FromResults(summary.New(samples, nil)); len(in.symbols()) > 0 || in.Recommendation[0].Network != "none yet" {
		t.Errorf("%+v, %+v", in.symbols(), in.Recommendation)
	}
}

// TestFewSamplesClaimNoLevel checks that intervals of too few samples are nowhere called 95 %.
func TestFewSamplesClaimNoLevel(t *testing.T) {
	run := func(veth, bridge int) Input {
		var samples []cell.Sample
		for network, n := range map[string]int{"veth": veth, "bridge": bridge} {
			for i := range n {
				samples = append(samples, cell.Sample{Cell: cell.Cell{Network: network, Transport: "tcp", Direction: "between"}, Work: "tcp", Block: i + 1,
					Values: map[cell.Metric]float64{cell.Throughput: 1e9 * (20 + float64(i))}})
			}
		}
		return FromResults(summary.New(samples, nil))
	}
	if out := table(t, run(8, 2), 80); !strings.Contains(out, "lo–hi: 50–95 % interval of the median") {
		t.Error(out)
	}
	for _, text := range run(4, 2).Recommendation[0].RunnerUp {
		if strings.Contains(text, "(") {
			t.Errorf("an interval of 2 and 4 samples: %q", text)
		}
	}
}

// TestSettingsAreNotCompared checks that a number with other settings than the advice compared
// is marked so beside marked numbers, is named by the advice if it is higher, and that nothing
// else of its group is.
func TestSettingsAreNotCompared(t *testing.T) {
	var samples []cell.Sample
	add := func(network, runtime string, factors map[string]string, gbit float64) {
		for i := range 8 {
			samples = append(samples, cell.Sample{Cell: cell.Cell{Network: network, Runtime: runtime, Transport: "tcp", Direction: "between", Factors: factors}, Work: "tcp", Block: i + 1,
				Values: map[cell.Metric]float64{cell.Throughput: 1e9 * (gbit + 0.1*float64(i*(i+3)%8))}})
		}
	}
	port := func(p string) map[string]string { return map[string]string{"vxlan_port": p} }
	add("veth", "native", nil, 30)
	add("bridge", "native", nil, 30)
	add("macvlan-bridge", "native", nil, 20)
	add("veth", "docker", nil, 25)
	add("bridge", "docker", nil, 40)
	add("macvlan-bridge", "docker", nil, 20)
	add("vxlan", "native", port("4789"), 8)
	add("vxlan", "native", port("8472"), 12)
	add("gre", "native", nil, 10)
	add("loopback", "native", nil, 60)
	in := FromResults(summary.New(samples, nil))
	out := table(t, in, 80)
	for label, want := range map[string]string{
		"veth": "~30.3", "bridge": "~30.3", "macvlan-bridge": "20.3",
		"veth, in docker": "°25.3", "bridge, in docker": "°40.3", "macvlan-bridge, in docker": "°20.3",
		"gre": "*10.3", "vxlan": "8.30", "vxlan, port 8472": "°12.3", "loopback": "60.3",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), " "+label+" "+want+" ") {
			t.Errorf("no %q with %q in\n%s", label, want, out)
		}
	}
	if want := "° not compared with * and ~: other settings"; !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("the legend has no %q:\n%s", want, out)
	}
	for i, want := range []string{
		"can't be told apart here (veth: 30.3 Gbit/s): choose by their limits. veth is better than macvlan-bridge. Not compared, since with other settings: bridge, in docker: 40.3 Gbit/s.",
		"Use gre: 10.3 Gbit/s, better than the other one measured here. Not compared, since with other settings: vxlan, port 8472: 12.3 Gbit/s.",
	} {
		if got := in.Recommendation[i].Summary; !strings.HasSuffix(got, want) {
			t.Errorf("%q, want …%q", got, want)
		}
	}
	for _, f := range newPage(in).Bars {
		for _, g := range f.Panels[0].Groups {
			for _, r := range g.Rows {
				if r.Sign == "°" && r.Class == "best" {
					t.Errorf("%s is drawn as best", r.Name)
				}
			}
		}
	}
}

// TestTiesAcrossGroups checks that the best is no * if networks of another group of the table
// can't be told apart from it.
func TestTiesAcrossGroups(t *testing.T) {
	var samples []cell.Sample
	for i := range 8 {
		for network, factors := range map[string]map[string]string{"veth": {"peer": "near"}, "bridge": nil} {
			samples = append(samples, cell.Sample{Cell: cell.Cell{Network: network, Transport: "tcp", Direction: "between", Factors: factors}, Work: "tcp", Block: i + 1,
				Values: map[cell.Metric]float64{cell.Throughput: 1e9 * (30 + float64(i))}})
		}
	}
	in := FromResults(summary.New(samples, nil))
	for mark, sign := range in.symbols() {
		if sign == "*" {
			t.Errorf("%s has a *", mark.Cell)
		}
	}
}
