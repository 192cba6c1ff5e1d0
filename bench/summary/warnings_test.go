package summary

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cleat/bench/cell"
)

func TestMergeWarnings(t *testing.T) {
	for _, c := range []struct {
		name  string
		texts []string
		want  string
	}{
		{"none", nil, ""},
		{"one", []string{"3 connections failed"}, "3 connections failed"},
		{"alike", []string{"MPTCP fell back to TCP", "MPTCP fell back to TCP"}, "MPTCP fell back to TCP"},
		{"by size, not by letters", []string{"10 of 16 failed", "9 of 16 failed"}, "9–10 of 16 failed"},
		{"times", []string{"1.2s late", "809ms late", "1m0.5s late"}, "809ms–1m0.5s late"},
		{"ranges", []string{"used 0.5–1.5 processors", "used 0.7 processors", "used 0.6–2 processors"}, "used 0.5–2 processors"},
		{"plural", []string{"1 sample: x", "3 samples: x"}, "1–3 samples: x"},
		{"names are no numbers", []string{"eth0: p99 is 5"}, "eth0: p99 is 5"},
	} {
		if got := MergeWarnings(c.texts); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWarningKind(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"started 3.8s after --start-at", "started 809.1ms after --start-at", true},
		{"1 sample: x", "12 samples: x", true},
		{"veth1 is down", "veth2 is down", false},
		{"1 sample bad", "1 sample failed", false},
	} {
		if got := WarningKind(c.a) == WarningKind(c.b); got != c.same {
			t.Errorf("%q and %q: same kind %t", c.a, c.b, got)
		}
	}
}

// TestWarningsAreBounded is about 128 pairs that all start late by different
// times, and say many other things.
func TestWarningsAreBounded(t *testing.T) {
	var samples []cell.Sample
	for block := 1; block <= 6; block++ {
		s := cell.Sample{Cell: cell.Cell{Network: "veth"}, Work: "tcp", Block: block, Values: map[cell.Metric]float64{cell.Throughput: 1e9}}
		for pair := range 30 {
			s.Warnings = append(s.Warnings, fmt.Sprintf("started %d.%02ds after --start-at: connecting took longer", block%4, pair))
		}
		samples = append(samples, s)
	}
	got := Summarize(samples, nil)[0].Warnings
	if want := []string{"6 samples: started late (worst 3.29 s)"}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
	for i := range 20 {
		samples[0].Warnings = append(samples[0].Warnings, "of the kind "+strings.Repeat("x", i))
	}
	got = Summarize(samples, nil)[0].Warnings
	if len(got) != mostWarnings || !strings.Contains(got[mostWarnings-1], "14 more kinds") {
		t.Errorf("%d warnings: %q", len(got), got)
	}
}

func TestFewSamplesSayHowMany(t *testing.T) {
	samples := []cell.Sample{}
	for block := 1; block <= 6; block++ {
		samples = append(samples, cell.Sample{Cell: cell.Cell{Network: "veth"}, Work: "tcp", Block: block, Values: map[cell.Metric]float64{cell.Throughput: 1e9}})
	}
	samples[2].Warnings = []string{"MPTCP fell back to TCP"}
	got := Summarize(samples, nil)[0].Warnings
	if want := []string{"1 sample: MPTCP fell back to TCP"}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}
