package report

import (
	"strconv"

	"cleat/bench/cell"
)

// short writes x with two significant digits, for what only accompanies a number.
func short(x float64) string {
	if x >= 99.5 { // else it would get an exponent
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 2, 64)
}

// metricName is the metric's name as a heading.
func metricName(m cell.Metric) string { return capital(m.Title()) }

// better says which way a metric is good.
func better(m cell.Metric) string {
	if m.LowerIsBetter() {
		return "less is better"
	}
	return "more is better"
}

// centre and spread are what a report shows of a summary: the median and its
// interval, or for the thesis' figures the mean and one standard error each way.
func centre(s cell.Summary, thesis bool) (y, lo, hi float64) {
	if thesis {
		return s.Mean, s.Mean - s.StdErr, s.Mean + s.StdErr
	}
	return s.Median, s.CILow, s.CIHigh
}

// intervalOf is the text of an interval, unless a single sample stands behind
// the number: that has none.
func intervalOf(s cell.Summary, text string) string {
	if s.N < 2 {
		return ""
	}
	return text
}
