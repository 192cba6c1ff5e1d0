package report

import (
	"bytes"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

// TestNewMetricIsShown checks that whatever a run measures is in each kind of output, though nothing but the
// declaration in package cell knows what it is: here a metric that is not even declared.
func TestNewMetricIsShown(t *testing.T) {
	const metric = cell.Metric("acknowledgment_delay")
	run := func(value float64) summary.Results {
		var samples []cell.Sample
		for block := 1; block <= 10; block++ {
			for _, network := range []string{"veth", "bridge"} {
				c := cell.Cell{Network: network, Runtime: cell.Native, Topology: "local", Transport: "tcp", Direction: "between", Pairs: 1, Streams: 1}
				x := value + float64(block)
				samples = append(samples, cell.Sample{Cell: c, Work: "tcp", Block: block, Values: map[cell.Metric]float64{cell.Throughput: 1e9, metric: x}})
			}
		}
		return summary.New(samples, nil)
	}
	r := run(1000)
	in := FromResults(r)
	_, page := parse(t, render(t, in))
	var csv, compared bytes.Buffer
	if err := summary.WriteCSV(&csv, r.Summaries); err != nil {
		t.Fatal(err)
	}
	if err := summary.Compare(r, run(2000), summary.CompareOptions{}).Table(&compared); err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct{ text, name, value string }{
		"table":   {table(t, in, 80), "acknowledgment delay", "1010"},
		"page":    {page, "Acknowledgment delay", "1010"},
		"CSV":     {csv.String(), string(metric), "1005.5"},
		"compare": {compared.String(), "acknowledgment delay", "1010"},
	} {
		if !strings.Contains(tt.text, tt.name) || !strings.Contains(tt.text, tt.value) {
			t.Errorf("the %s does not show %s with %s:\n%s", what, tt.name, tt.value, tt.text)
		}
	}
}
