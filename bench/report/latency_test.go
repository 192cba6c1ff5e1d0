package report

import (
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/summary"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latencyResults returns a run of latencies, each sample of which has n transactions. c has the
// factors of its cells.
func latencyResults(t *testing.T, n int64, c ...cell.Cell) summary.Results {
	t.Helper()
	var samples []cell.Sample
	for block := 1; block <= 8; block++ {
		h := hdrhistogram.New(1, 60e9, 3)
		if err := h.RecordValues(int64(50_000+1000*block), n); err != nil {
			t.Fatal(err)
		}
		encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			t.Fatal(err)
		}
		values := map[cell.Metric]float64{}
		for m, p := range map[cell.Metric]float64{cell.LatencyP50: 50, cell.LatencyP99: 99, cell.LatencyP999: 99.9} {
			values[m] = float64(h.ValueAtQuantile(p))
		}
		for _, c := range c {
			for _, c.Network = range []string{"loopback", "cleat", "pasta"} {
				c.Transport, c.Direction, c.Pairs, c.Streams = "tcp", "outbound", 1, 1
				samples = append(samples, cell.Sample{Cell: c, Work: "rr", Block: block, Values: values, Latency: string(encoded)})
			}
		}
	}
	return summary.New(samples, nil)
}

// TestFewTransactionsAreShown checks that the table and the page say of a p99.9 that fewer than
// ten transactions lie above it, and show no interval of it.
func TestFewTransactionsAreShown(t *testing.T) {
	const few, enough = 1200, 1250 // of each of 8 samples
	for _, subject := range []string{"", "cleat"} {
		for _, n := range []int64{few, 100, enough} {
			r := latencyResults(t, n, cell.Cell{})
			r.Environment = map[string]any{"experiment": map[string]any{"subject": subject}}
			in := FromResults(r)
			_, page := parse(t, render(t, in))
			for what, text := range map[string]string{"table": table(t, in, 80), "page": page} {
				text = strings.Join(strings.Fields(text), " ")
				if subject != "" && what == "table" && n != 100 {
					continue // a comparison with rivals has no p99.9
				}
				if got := strings.Contains(text, "transactions lie above p99"); got != (n != enough) {
					t.Errorf("subject %q, %d transactions: the %s says %t:\n%s", subject, n, what, got, text)
				}
			}
		}
	}
	count := func(n int64) int {
		return strings.Count(render(t, FromResults(latencyResults(t, n, cell.Cell{}))), "interval 5")
	}
	if a, b := count(few), count(enough); a != b*2/3 {
		t.Errorf("the figure shows %d intervals, %d if there are enough transactions for p99.9", a, b)
	}
}

// TestLatencyCaption checks that the figure says from when on a latency counts.
func TestLatencyCaption(t *testing.T) {
	const closed, open = "follows the last response", "counts from its intended send time"
	plain, rated := cell.Cell{}, cell.Cell{Factors: map[string]string{"rate": "1000"}}
	loaded := cell.Cell{Factors: map[string]string{"work": "loaded"}}
	for _, tt := range []struct {
		name         string
		cells        []cell.Cell
		closed, open bool
	}{
		{"no rate", []cell.Cell{plain}, true, false},
		{"rate", []cell.Cell{rated}, false, true},
		{"beside a stream", []cell.Cell{loaded}, false, true},
		{"both", []cell.Cell{plain, rated}, true, true},
	} {
		in := FromResults(latencyResults(t, 2000, tt.cells...))
		caption := newBars(in, in.available(), in.symbols()).figures()[0].Caption
		if strings.Contains(caption, closed) != tt.closed || strings.Contains(caption, open) != tt.open {
			t.Errorf("%s: %q", tt.name, caption)
		}
	}
}
