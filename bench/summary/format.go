package summary

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"cleat/bench/cell"
)

// CoresPerGbit is the processor time per data moved as if it were a metric: in
// comparisons and recommendations, never in summary.json, where it is a field of
// its own. Its unit is cores per Gbit/s; lower is better.
const CoresPerGbit cell.Metric = "cores_per_gbit"

// unitName is the unit of m in files.
func unitName(m cell.Metric) string {
	if m == CoresPerGbit {
		return "cores/(Gbit/s)"
	}
	return m.Unit()
}

// scale is how a metric is shown to people: value over per, then unit.
type scale struct {
	per  float64
	unit string
}

// scaleOf chooses the scale for a metric and the size of a value.
func scaleOf(m cell.Metric, x float64) scale {
	x = math.Abs(x)
	switch m {
	case cell.Throughput:
		if x < 1e8 && x > 0 {
			return scale{1e6, "Mbit/s"}
		}
		return scale{1e9, "Gbit/s"}
	case cell.Loss:
		return scale{0.01, "%"}
	case cell.Connections, cell.Packets:
		return scale{1, "1/s"}
	case CoresPerGbit:
		return scale{1, "cores per Gbit/s"}
	}
	if x >= 1e6 {
		return scale{1e6, "ms"}
	}
	return scale{1e3, "µs"}
}

// Format writes a value of a metric for people: three digits and a unit.
func Format(m cell.Metric, x float64) string {
	s := scaleOf(m, x)
	return digits(x/s.per) + " " + s.unit
}

// digits writes x with three significant digits and without exponent.
func digits(x float64) string {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	exponent := int(math.Floor(math.Log10(math.Abs(x))))
	if exponent >= 2 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', min(2-exponent, 9), 64)
}

// times writes a ratio.
func times(x float64) string {
	if x >= 0.1 && x < 100 {
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return digits(x)
}

// plural writes a number of things: "1 sample", "3 samples".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// width is how many columns s takes; all our characters take one.
func width(s string) int { return utf8.RuneCountInString(s) }

// left and right pad s with blanks to n columns.
func left(s string, n int) string  { return s + strings.Repeat(" ", max(0, n-width(s))) }
func right(s string, n int) string { return strings.Repeat(" ", max(0, n-width(s))) + s }

// columns is how wide tables and texts may be.
const columns = 80

// wrap breaks text at blanks so that no line is longer than columns where words
// allow; the first line begins with first, the others with rest.
func wrap(first, rest, text string) string {
	var b strings.Builder
	b.WriteString(first)
	at, fresh := width(first), true
	for _, word := range strings.Fields(text) {
		if !fresh && at+1+width(word) > columns {
			b.WriteString("\n" + rest)
			at, fresh = width(rest), true
		}
		if !fresh {
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += width(word)
		fresh = false
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// enumerate joins words: "a", "a and b", "a, b and c".
func enumerate(words []string, conjunction string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
