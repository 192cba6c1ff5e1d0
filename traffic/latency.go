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
func record(h *hdrhistogram.Histogram, d int64) {
	h.RecordValue(min(max(d, latencyMin), latencyMax)) // within range, so it can't fail
}

// MergeLatency decodes histograms as found in Result.Latency and adds them up. Empty
// texts count as empty histograms. Percentiles must be computed from the sum; percentiles
// can't be averaged.
func MergeLatency(encoded ...string) (*hdrhistogram.Histogram, error) {
	sum := newLatency()
	for i, e := range encoded {
		if e == "" {
			continue
		}
		h, err := hdrhistogram.Decode([]byte(e))
		if err != nil {
			return nil, fmt.Errorf("decode latency histogram %d: %w", i, err)
		}
		if dropped := sum.Merge(h); dropped > 0 {
			return nil, fmt.Errorf("merge latency histogram %d: %d values beyond %s", i, dropped, time.Duration(latencyMax))
		}
	}
	return sum, nil
}

// EncodeLatency encodes a histogram for MergeLatency: V2 compressed, base64.
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
