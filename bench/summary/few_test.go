package summary

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

const (
	fewP99  = "fewer than 10 of 480 transactions lie above p99"
	fewP999 = "fewer than 10 of 480 transactions lie above p99.9"
)

// TestFewTransactionsAreSaid checks that whoever reads a p99 or a p99.9 learns that fewer than ten
// transactions lie above it, wherever it is shown, and that it has no interval then.
func TestFewTransactionsAreSaid(t *testing.T) {
	run := func(transactions int, cells ...truth) Results {
		f := newFake(t, 5)
		f.transactions = transactions // of each of 8 blocks
		f.run(cells...)
		return f.results()
	}
	between := func(n int) Results {
		return run(n, truth{cellOf("veth", "between"), 9, 1, 50 * time.Microsecond}, truth{cellOf("bridge", "between"), 8, 1, 60 * time.Microsecond})
	}
	rivals := func(n int) Results {
		return run(n, truth{cellOf("cleat", "outbound"), 27, 1.5, 70 * time.Microsecond}, truth{cellOf("pasta", "outbound"), 5, 2, 95 * time.Microsecond})
	}
	toJSON := func(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
	for _, tt := range []struct {
		name  string
		write func(io.Writer, int) error
		want  []string
	}{
		{"summary.json", func(w io.Writer, n int) error { return WriteJSON(w, between(n).Summaries) }, []string{fewP99 + `"`, fewP999 + `"`}},
		{"summary.csv", func(w io.Writer, n int) error { return WriteCSV(w, between(n).Summaries) }, []string{fewP99 + `""`, fewP999 + `""`}},
		{"recommend", func(w io.Writer, n int) error { return WriteAdvice(w, Recommend(between(n), ForLatency), false) }, []string{fewP99 + " ", fewP999}},
		{"recommend --json", func(w io.Writer, n int) error { return toJSON(w, Recommend(between(n), ForLatency)) }, []string{fewP99 + `"`, fewP999 + `"`}},
		{"a path", func(w io.Writer, n int) error {
			return WriteAdvice(w, Recommend(run(n, truth{cellOf(catalog.ExistingPath, "outbound"), 9, 1, 50 * time.Microsecond})), true)
		}, []string{fewP99 + ")", fewP999 + ")"}},
		{"compare", func(w io.Writer, n int) error { return Compare(between(n), between(n), CompareOptions{}).Table(w) }, []string{"fewer than 10 transactions lie above a percentile"}},
		{"compare --json", func(w io.Writer, n int) error { return toJSON(w, Compare(between(n), between(n), CompareOptions{})) }, []string{fewP99 + `"`, fewP999 + `"`}},
		{"versus", func(w io.Writer, n int) error { return Against(rivals(n), "cleat").Table(w) }, []string{"cleat, pasta: " + fewP99}},
		{"versus, Markdown", func(w io.Writer, n int) error { return Against(rivals(n), "cleat").Markdown(w) }, []string{"cleat, pasta: " + fewP99}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var few, enough bytes.Buffer
			if err := tt.write(&few, 60); err != nil {
				t.Fatal(err)
			}
			if err := tt.write(&enough, 2000); err != nil {
				t.Fatal(err)
			}
			text := strings.Join(strings.Fields(few.String()), " ") // without line breaks
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing in\n%s", want, few.String())
				}
			}
			if strings.Contains(enough.String(), "fewer than 10") {
				t.Errorf("a warning without a reason in\n%s", enough.String())
			}
		})
	}
	for _, s := range between(60).Summaries {
		isFew := s.Metric == cell.LatencyP99 || s.Metric == cell.LatencyP999
		if (s.CILevel == 0) != isFew || isFew && (s.CILow != s.Median || s.CIHigh != s.Median) {
			t.Errorf("%s %s: %g in %g–%g (%g)", s.Network, s.Metric, s.Median, s.CILow, s.CIHigh, s.CILevel)
		}
	}
}
