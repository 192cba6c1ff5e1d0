package traffic

import (
	"fmt"
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
