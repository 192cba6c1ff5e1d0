package stats

import (
	"testing"
)

// FuzzMergeHistograms merges arbitrary histograms.
func FuzzMergeHistograms(f *testing.F) {
	text := func(highest int64, digits int) string {
		var t testing.T
		return encode(&t, highest, digits, 3, 50_000)
	}
	f.Add(text(1e9, 3), text(1e6, 1))
	f.Add("", "no histogram")
	f.Fuzz(func(t *testing.T, a, b string) {
		h, err := MergeHistograms([]string{a, b})
		if err != nil {
			return
		}
		if low, high := h.ValueAtPercentile(50), h.ValueAtPercentile(99.9); low > high || h.TotalCount() <= 0 {
			t.Errorf("p50 %d, p99.9 %d of %d", low, high, h.TotalCount())
		}
	})
}
