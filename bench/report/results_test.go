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
	if best < 3 {
		t.Errorf("%d roles have a best network for throughput, want at least 3 with competitors", best)
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
	if in := FromResults(summary.New(samples, nil)); len(in.Standings) > 0 || in.Recommendation[0].Network != "none yet" {
		t.Errorf("%+v, %+v", in.Standings, in.Recommendation)
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
