package stats

import (
	"errors"
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ErrNoHistogram says that there was nothing to merge.
var ErrNoHistogram = errors.New("no latency histogram")

// MergeHistograms adds up histograms of nanoseconds as samples hold them (HDR V2
// compressed, base64). Percentiles of the result are those of all transactions
// together, which no mean of percentiles is. It fails on a text that is no
// histogram, and with ErrNoHistogram when there is none or all are empty.
func MergeHistograms(encoded []string) (*hdrhistogram.Histogram, error) {
	parts := make([]*hdrhistogram.Histogram, 0, len(encoded))
	lowest, highest, digits := int64(0), int64(0), int64(1)
	total := int64(0)
	for i, text := range encoded {
		h, err := hdrhistogram.Decode([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("decode latency histogram %d: %w", i+1, err)
		}
		parts = append(parts, h)
		if i == 0 || h.LowestTrackableValue() < lowest {
			lowest = h.LowestTrackableValue()
		}
		highest = max(highest, h.HighestTrackableValue())
		digits = max(digits, h.SignificantFigures())
		total += h.TotalCount()
	}
	if total == 0 {
		return nil, ErrNoHistogram
	}
	sum := hdrhistogram.New(lowest, highest, int(digits))
	for _, h := range parts {
		if dropped := sum.Merge(h); dropped > 0 {
			return nil, fmt.Errorf("merge latency histograms: %d values out of range", dropped)
		}
	}
	return sum, nil
}

// Percentile is a percentile of merged histograms. perBlock are the same
// percentile of each block alone. The interval is that of the median of those,
// by order statistics, widened to hold the merged value: it says how far the
// percentile of a block like these can be expected to lie, and so how well the
// blocks agree. The merged value can be far from their median when a few blocks
// hold all the slow transactions; straddles is false then, that is when the
// interval had to be widened.
func Percentile(merged float64, perBlock []float64) (interval Interval, straddles bool) {
	_, i := Median(perBlock)
	if i.Level == 0 { // one block or none: nothing is known about the spread
		return Interval{Low: merged, High: merged}, true
	}
	wide := i.include(merged)
	return wide, wide == i
}
