package report

import (
	"math"
	"strconv"
	"strings"

	"cleat/bench/cell"
)

// none stands for a number that there is not.
const none = "–"

// sig writes x with three significant digits and never with an exponent, unless
// x is so small that it would be a row of zeros.
func sig(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return none
	}
	e := strconv.FormatFloat(x, 'e', 2, 64)
	exp, err := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	switch {
	case err != nil || x == 0:
		return "0"
	case exp < -6:
		return e
	case exp > 2: // round to three digits first, so that 12345 becomes 12300
		r, err := strconv.ParseFloat(e, 64)
		if err != nil {
			return none
		}
		return strconv.FormatFloat(r, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', 2-exp, 64)
}

// short writes x with two significant digits, for what only accompanies a number.
func short(x float64) string { return strconv.FormatFloat(x, 'g', 2, 64) }

// unit is how a metric is shown: value divided by scale, followed by name.
type unit struct {
	scale float64
	name  string
}

func unitOf(m cell.Metric) unit {
	switch m {
	case cell.Throughput:
		return unit{1e9, "Gbit/s"}
	case cell.Loss:
		return unit{0.01, "%"}
	case cell.Connections:
		return unit{1, "1/s"}
	case cell.Packets:
		return unit{1e3, "1000/s"}
	case cell.SetupTime:
		return unit{1e6, "ms"}
	case cell.LatencyP50, cell.LatencyP99, cell.LatencyP999:
		return unit{1e3, "µs"}
	}
	return unit{1, m.Unit()}
}

func (u unit) of(x float64) string { return sig(x / u.scale) }

// interval writes the two ends of an interval.
func (u unit) interval(lo, hi float64) string { return u.of(lo) + "–" + u.of(hi) }

// metricName is the metric's name for readers.
func metricName(m cell.Metric) string {
	switch m {
	case cell.Throughput:
		return "Throughput"
	case cell.Loss:
		return "Loss"
	case cell.LatencyP50:
		return "Latency p50"
	case cell.LatencyP99:
		return "Latency p99"
	case cell.LatencyP999:
		return "Latency p99.9"
	case cell.Connections:
		return "Connections"
	case cell.Packets:
		return "Small packets"
	case cell.SetupTime:
		return "Set-up time"
	}
	return strings.ReplaceAll(string(m), "_", " ")
}

// better says which way a metric is good.
func better(m cell.Metric) string {
	if m.LowerIsBetter() {
		return "less is better"
	}
	return "more is better"
}

// plural writes a count and its noun.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// sum is the whole processor time per data moved.
func sum(c cell.CoresPerGbit) float64 { return c.User + c.System + c.SoftIRQ }

// centre and spread are what a report shows of a summary: the median and its
// interval, or for the thesis' figures the mean and one standard error each way.
func centre(s cell.Summary, thesis bool) (y, lo, hi float64) {
	if thesis {
		return s.Mean, s.Mean - s.StdErr, s.Mean + s.StdErr
	}
	return s.Median, s.CILow, s.CIHigh
}
