package traffic

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The histograms of every result have one geometry, so that they merge without
// loss: nanoseconds from 1 ns to 60 s, three significant digits.
const (
	latencyMin    = 1
	latencyMax    = int64(60 * time.Second)
	latencyDigits = 3
)

func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(latencyMin, latencyMax, latencyDigits)
}

// record puts d into h; what is longer than the histogram reaches counts as its
// maximum, so that the worst case is never dropped.
func record(h *hdrhistogram.Histogram, d int64) {
	h.RecordValue(min(max(d, latencyMin), latencyMax)) // in range: can't fail
}

// MergeLatency decodes histograms as found in Result.Latency and adds them up.
// Empty texts count as empty histograms. Percentiles of the sum are right;
// averages of percentiles never are.
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

// EncodeLatency writes a histogram as MergeLatency reads it: V2 compressed,
// base64.
func EncodeLatency(h *hdrhistogram.Histogram) (string, error) {
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("encode latency histogram: %w", err)
	}
	return string(text), nil
}

// setLatency writes h and its percentiles into r; an empty histogram leaves r
// as it is.
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
