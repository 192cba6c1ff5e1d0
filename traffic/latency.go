package traffic

import (
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The histograms of all results have the same geometry, so that they merge without loss:
// 1 ns to 60 s, three significant digits.
const (
	latencyMin    = 1
	latencyMax    = int64(60 * time.Second)
	latencyDigits = 3
)

func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(latencyMin, latencyMax, latencyDigits)
}

// record adds d to h. A value beyond the histogram's range counts as its maximum, so that
// the worst case is never dropped.
func record(h *hdrhistogram.Histogram, d int64) { recordMany(h, d, 1) }

// recordMany records d n times.
func recordMany(h *hdrhistogram.Histogram, d, n int64) {
	h.RecordValues(min(max(d, latencyMin), latencyMax), n) // within range, so it can't fail
}

// EncodeLatency encodes a histogram as in Result.Latency: V2 compressed, base64.
func EncodeLatency(h *hdrhistogram.Histogram) (string, error) {
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("encode latency histogram: %w", err)
	}
	return string(text), nil
}

// minAbove is how many transactions must lie above a percentile for its value to be more than
// chance: of n above, the number differs between runs by about √n.
const minAbove = 10

// fewAbove reports whether too few of n transactions lie above a percentile, in percent, for
// its value to be reliable. It is the rule of bench/stats, FewAbove.
func fewAbove(n int64, percentile float64) bool {
	const rounding = 1e-6 // 99.9 is not exact: of 10,000 ten lie above
	return float64(n)*(100-percentile)/100 < minAbove-rounding
}

// FewTransactions begins a warning of Result.Warnings that names the percentiles above which
// too few transactions lie.
const FewTransactions = "few transactions"

// fewTransactions returns that warning for n transactions; "" if there are enough.
func fewTransactions(n int64) string {
	var few []string
	for _, p := range []struct {
		name string
		of   float64
	}{{"p50", 50}, {"p99", 99}, {"p99.9", 99.9}} {
		if fewAbove(n, p.of) {
			few = append(few, p.name)
		}
	}
	if n == 0 || len(few) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: fewer than %d of %d lie above %s", FewTransactions, minAbove, n, strings.Join(few, ", "))
}

// setLatency stores h and its percentiles in r. An empty histogram leaves r unchanged.
func (r *Result) setLatency(h *hdrhistogram.Histogram) error {
	if h.TotalCount() == 0 {
		return nil
	}
	text, err := EncodeLatency(h)
	if err != nil {
		return err
	}
	r.Latency = text
	r.P50 = time.Duration(h.ValueAtQuantile(50))
	r.P99 = time.Duration(h.ValueAtQuantile(99))
	r.P999 = time.Duration(h.ValueAtQuantile(99.9))
	return nil
}
