package stats

import (
	"errors"
	"math"
	"strings"
	"testing"

	"cleat/bench/cell"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// encode returns the histogram of count values each.
func encode(t *testing.T, highest int64, digits int, count int64, values ...int64) string {
	t.Helper()
	h := hdrhistogram.New(1, highest, digits)
	for _, v := range values {
		if err := h.RecordValues(v, count); err != nil {
			t.Fatal(err)
		}
	}
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMergeHistogramsIsNoMean(t *testing.T) {
	// 990 fast transactions in one block, 110 slow ones in the other: the median of
	// all is fast and p99 slow, where the means of the percentiles are neither.
	fast := encode(t, 1e10, 3, 990, 50_000)
	slow := encode(t, 1e10, 3, 110, 5_000_000)
	h, err := MergeHistograms([]string{fast, slow})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "p50", float64(h.ValueAtPercentile(50)), 50_000, 50)
	near(t, "p99", float64(h.ValueAtPercentile(99)), 5_000_000, 5000)
	if h.TotalCount() != 1100 {
		t.Errorf("%d values", h.TotalCount())
	}
}

func TestMergeHistogramsOfDifferentRange(t *testing.T) {
	small, large := encode(t, 1e6, 2, 1, 900_000), encode(t, 1e10, 3, 1, 8_000_000_000)
	for _, order := range [][]string{{small, large}, {large, small}} {
		h, err := MergeHistograms(order)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "highest", float64(h.Max()), 8e9, 1e7)
	}
}

func TestMergeHistogramsRefuses(t *testing.T) {
	if _, err := MergeHistograms(nil); !errors.Is(err, ErrNoHistogram) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := MergeHistograms([]string{encode(t, 1e6, 2, 1)}); !errors.Is(err, ErrNoHistogram) {
		t.Errorf("empty: %v", err)
	}
	if _, err := MergeHistograms([]string{"no histogram"}); err == nil {
		t.Error("no error for a text that is not a histogram")
	}
}

func TestPercentile(t *testing.T) {
	i, inside := Percentile(4, []float64{1, 2, 3, 4, 5, 6, 7, 8})
	if !inside || i.Low != 1 || i.High != 8 {
		t.Errorf("%v %v", i, inside)
	}
	i, inside = Percentile(20, []float64{1, 2, 3, 4, 5, 6, 7, 8})
	if inside || i.Low != 1 || i.High != 20 {
		t.Errorf("merged value outside: %v %v", i, inside)
	}
	if i, _ := Percentile(20, []float64{20}); i.Level != 0 || i.Low != 20 {
		t.Errorf("one block: %v", i)
	}
}

func TestCoresPerGbitSumsBlocks(t *testing.T) {
	// A block that moved nothing but burnt 2 s counts: 6 s over 10 Gbit, where the
	// mean of quotients would be infinite.
	got := CoresPerGbit([]Effort{
		{CPU: cell.CPU{User: 1, System: 2, SoftIRQ: 1}, Gigabits: 10},
		{CPU: cell.CPU{System: 2}},
	})
	if want := (cell.CoresPerGbit{User: 0.1, System: 0.4, SoftIRQ: 0.1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := CoresPerGbit([]Effort{{CPU: cell.CPU{User: 1}}}); got != (cell.CoresPerGbit{}) {
		t.Errorf("nothing moved: %+v", got)
	}
}

// TestMergeHistogramsIsBounded checks that a few hundred bytes that decode to 50 MB are refused.
func TestMergeHistogramsIsBounded(t *testing.T) {
	for name, h := range map[string]*hdrhistogram.Histogram{
		"digits": hdrhistogram.New(1, 1e9, 5),
		"range":  hdrhistogram.New(1, math.MaxInt64, 3),
	} {
		if err := h.RecordValue(1); err != nil {
			t.Fatal(err)
		}
		text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := MergeHistograms([]string{string(text)}); err == nil || !strings.Contains(err.Error(), "beyond 4 digits") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFewAbove has the same numbers as TestFewTransactions of package traffic.
func TestFewAbove(t *testing.T) {
	for percentile, enough := range map[float64]int64{50: 20, 99: 1000, 99.9: 10_000} {
		if !FewAbove(enough-1, percentile) || FewAbove(enough, percentile) || FewAbove(1e12, percentile) {
			t.Errorf("p%g: %d are not the fewest values that are enough", percentile, enough)
		}
	}
}
