package stats

import (
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ErrNoHistogram is returned if there is nothing to merge.
var ErrNoHistogram = errors.New("no latency histogram")

// MergeHistograms adds up histograms of nanoseconds in the form of samples (HDR V2
// compressed, base64). Percentiles of the result are those of all transactions, which
// a mean of percentiles is not. It returns an error for a text that is not a histogram
// or whose range is wider than that of samples, and ErrNoHistogram if there is none or
// all are empty. It holds two histograms at a time: a few hundred bytes of text can
// decode to several hundred kilobytes.
func MergeHistograms(encoded []string) (*hdrhistogram.Histogram, error) {
	var sum *hdrhistogram.Histogram
	for i, text := range encoded {
		h, err := hdrhistogram.Decode([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("decode latency histogram %d: %w", i+1, err)
		}
		if h.HighestTrackableValue() > maxLatency || h.SignificantFigures() > maxDigits {
			return nil, fmt.Errorf("decode latency histogram %d: it has %d digits up to %d ns, beyond %d digits up to %d ns",
				i+1, h.SignificantFigures(), h.HighestTrackableValue(), maxDigits, maxLatency)
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

// Bounds of the histograms of samples: 100 s with 4 digits take 3 MB. Those of package
// traffic have 3 digits and end at 60 s.
const (
	maxLatency = int64(100 * time.Second)
	maxDigits  = 4
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

// Percentile returns the interval of a percentile of merged histograms. perBlock holds
// the same percentile of each block alone. The interval is that of their median, by
// order statistics, widened to hold the merged value: it shows where the percentile of
// such a block can be expected, and so how well the blocks agree. inside is false if
// the interval had to be widened, as when a few blocks hold all the slow transactions.
func Percentile(merged float64, perBlock []float64) (interval Interval, inside bool) {
	_, i := Median(perBlock)
	if i.Level == 0 { // one block or none: the spread is unknown
		return Interval{Low: merged, High: merged}, true
	}
	wide := i.include(merged)
	return wide, wide == i
}

// MinAbove is how many values must lie above a percentile for it to be more than chance: of
// n above, the number differs between runs by about √n.
const MinAbove = 10

// FewAbove reports whether fewer than MinAbove of n values lie above a percentile, in percent.
// Package traffic has the same rule for a single run.
func FewAbove(n int64, percentile float64) bool {
	const rounding = 1e-6 // 99.9 is not exact: of 10,000 ten lie above
	return float64(n)*(100-percentile)/100 < MinAbove-rounding
}
