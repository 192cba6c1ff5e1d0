package summary

import (
	"fmt"
	"strings"
	"testing"

	"cleat/bench/cell"
)

// veth returns six samples of one cell.
func veth() []cell.Sample {
	var samples []cell.Sample
	for block := 1; block <= 6; block++ {
		samples = append(samples, cell.Sample{Cell: cell.Cell{Network: "veth"}, Work: "tcp", Block: block, Values: map[cell.Metric]float64{cell.Throughput: 1e9}})
	}
	return samples
}

// texts returns the warnings of the only summary of samples.
func texts(samples []cell.Sample) string {
	var out []string
	for _, w := range Summarize(samples, nil)[0].Warnings {
		out = append(out, w.String())
	}
	return strings.Join(out, "; ")
}

// TestWarningsAreBounded is about 128 pairs that all start late by different
// times, and have many other warnings.
func TestWarningsAreBounded(t *testing.T) {
	samples := veth()
	for i := range samples {
		for pair := range 30 {
			late := float64(i+1) + float64(pair)/100
			samples[i].Warnings = append(samples[i].Warnings, cell.Warning{Code: "late", Severity: late, Text: fmt.Sprintf("started %.2f s late", late)})
		}
	}
	if got, want := texts(samples), "started 6.29 s late"; got != want {
		t.Errorf("warnings %q, want %q", got, want)
	}
	for i := range 20 {
		samples[0].Warnings = append(samples[0].Warnings, cell.Note("of the kind "+strings.Repeat("x", i)))
	}
	got := Summarize(samples, nil)[0].Warnings
	if len(got) != maxWarnings || !strings.Contains(got[maxWarnings-1].Text, "14 more kinds") {
		t.Errorf("%d warnings: %q", len(got), got)
	}
}

func TestWarningsCountSamples(t *testing.T) {
	samples := veth()
	samples[2].Warnings = []cell.Warning{cell.Note("MPTCP fell back to TCP")}
	if got, want := texts(samples), "1 sample: MPTCP fell back to TCP"; got != want {
		t.Errorf("warnings %q, want %q", got, want)
	}
}

// TestBadSamplesAreMerged checks that the reasons of bad samples are counted by
// kind, the worst of each quoted.
func TestBadSamplesAreMerged(t *testing.T) {
	samples := veth()
	for _, load := range []float64{0.2, 1.9, 0.5} {
		bad := samples[0]
		bad.Bad = cell.Warning{Code: "foreign", Severity: load, Text: fmt.Sprintf("other programs used %.2f processors", load)}
		samples = append(samples, bad)
	}
	bad := samples[0]
	bad.Error = "no route to host"
	if got, want := texts(append(samples, bad)), "1 sample: no route to host (failed); 3 samples: other programs used 1.90 processors (disturbed)"; got != want {
		t.Errorf("warnings %q, want %q", got, want)
	}
}
