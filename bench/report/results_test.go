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
