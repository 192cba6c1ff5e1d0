package stats

import (
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ErrNoHistogram says that there was nothing to merge.
var ErrNoHistogram = errors.New("no latency histogram")

// MergeHistograms adds up histograms of nanoseconds as samples hold them (HDR V2
// compressed, base64). Percentiles of the result are those of all transactions
// together, which no mean of percentiles is. It fails on a text that is no
// histogram or one of a wider range than samples have, and with ErrNoHistogram when there is
// none or all are empty. It holds two histograms at a time: some hundred bytes of text may
// be one of several hundred kilobytes.
func MergeHistograms(encoded []string) (*hdrhistogram.Histogram, error) {
	var sum *hdrhistogram.Histogram
	for i, text := range encoded {
		h, err := hdrhistogram.Decode([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("decode latency histogram %d: %w", i+1, err)
		}
		if h.HighestTrackableValue() > highestLatency || h.SignificantFigures() > mostDigits {
			return nil, fmt.Errorf("decode latency histogram %d: it has %d digits up to %d ns, beyond %d digits up to %d ns",
				i+1, h.SignificantFigures(), h.HighestTrackableValue(), mostDigits, highestLatency)
		}
		if sum == nil {
			sum = h
			continue
		}
		if sum, err = add(sum, h); err != nil {
			return nil, err
		}
	}
	if sum == nil || sum.TotalCount() == 0 {
		return nil, ErrNoHistogram
	}
	return sum, nil
}

// Bounds of the histograms of samples: with 4 digits, 100 s take 3 MB. Those of package
// traffic have 3 digits and end at 60 s.
const (
	highestLatency = int64(100 * time.Second)
	mostDigits     = 4
)

// add returns the sum of two histograms, in a range that holds both.
func add(a, b *hdrhistogram.Histogram) (*hdrhistogram.Histogram, error) {
	lowest := min(a.LowestTrackableValue(), b.LowestTrackableValue())
	highest := max(a.HighestTrackableValue(), b.HighestTrackableValue())
	digits := max(a.SignificantFigures(), b.SignificantFigures())
	if lowest != a.LowestTrackableValue() || highest != a.HighestTrackableValue() || digits != a.SignificantFigures() {
		wide := hdrhistogram.New(lowest, highest, int(digits))
		if dropped := wide.Merge(a); dropped > 0 {
			return nil, fmt.Errorf("merge latency histograms: %d values out of range", dropped)
		}
		a = wide
	}
	if dropped := a.Merge(b); dropped > 0 {
		return nil, fmt.Errorf("merge latency histograms: %d values out of range", dropped)
	}
	return a, nil
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
