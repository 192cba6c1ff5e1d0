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
		for _, c := range c {
			values := map[cell.Metric]float64{}
			for _, m := range cell.Percentiles(c.Loop()) {
				p, _ := m.Percentile()
				values[m] = float64(h.ValueAtQuantile(p))
			}
			rate := 0.0
			if c.Factors[cell.RateFactor] == "50%" {
				rate = 2300
			}
			for _, c.Network = range []string{"loopback", "cleat", "pasta"} {
				c.Transport, c.Direction, c.Pairs, c.Streams = "tcp", "outbound", 1, 1
				samples = append(samples, cell.Sample{Cell: c, Work: "rr", Block: block, Rate: rate, Values: values, Latency: string(encoded)})
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

// TestLatencyCaption checks that the figures say how requests are sent, and from when on a latency counts, and that a
// closed loop has a figure of its own.
func TestLatencyCaption(t *testing.T) {
	const closed, open = "follows the last response", "counts from its intended send time"
	const share = "a schedule of 2300 a second, 50 % of what the slowest network carries"
	earlier, rated := cell.Cell{}, cell.Cell{Factors: map[string]string{"rate": "1000"}}
	loaded := cell.Cell{Factors: map[string]string{"work": "loaded"}}
	shared, inClosedLoop := cell.Cell{Factors: map[string]string{"rate": "50%"}}, cell.Cell{Factors: map[string]string{"rate": "closed"}}
	for _, tt := range []struct {
		name  string
		cells []cell.Cell
		ids   []string
		want  []string // of each figure
		not   []string
	}{
		{"of an earlier version", []cell.Cell{earlier}, []string{"latency"}, []string{closed}, []string{open}},
		{"rate", []cell.Cell{rated}, []string{"latency"}, []string{open}, []string{closed}},
		{"share", []cell.Cell{shared}, []string{"latency"}, []string{share + ", and latency " + open}, []string{closed}},
		{"beside a stream", []cell.Cell{loaded}, []string{"latency"}, []string{open}, []string{closed}},
		{"closed loop", []cell.Cell{inClosedLoop}, []string{"closed-latency"}, []string{closed}, []string{open}},
		{"both", []cell.Cell{shared, inClosedLoop}, []string{"latency", "closed-latency"}, []string{share, closed}, []string{closed, open}},
	} {
		in := FromResults(latencyResults(t, 2000, tt.cells...))
		figures := newBars(in, in.available(), in.symbols()).figures()
		if len(figures) != len(tt.ids) {
			t.Errorf("%s: %d figures", tt.name, len(figures))
			continue
		}
		for i, f := range figures {
			if f.ID != tt.ids[i] || !strings.Contains(f.Caption, tt.want[i]) || strings.Contains(f.Caption, tt.not[i]) {
				t.Errorf("%s: %s: %q", tt.name, f.ID, f.Caption)
			}
		}
	}
}
