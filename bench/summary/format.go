package summary

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

// scaleOf chooses the scale for a metric and the size of a value, where one alone
// is to be read.
func scaleOf(m cell.Metric, x float64) cell.Scale {
	x = math.Abs(x)
	switch {
	case m == cell.Throughput && x < 1e8 && x > 0:
		return cell.Scale{Per: 1e6, Unit: "Mbit/s"}
	case m == cell.Packets:
		return cell.Scale{Per: 1, Unit: "1/s"}
	case m == cell.FirstByte || m == cell.AttachTime || m == cell.DetachTime || m == cell.AttachCPU:
		return m.Scale()
	case m.Unit() == "ns" && x >= 1e6:
		return cell.SetupTime.Scale()
	case m.Unit() == "ns":
		return cell.LatencyP50.Scale()
	}
	return m.Scale()
}

// Format writes a value of a metric for people: three digits and a unit.
func Format(m cell.Metric, x float64) string {
	s := scaleOf(m, x)
	return s.Of(x) + " " + s.Unit
}

// times writes a ratio.
func times(x float64) string {
	if x >= 0.1 && x < 100 {
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return cell.Digits(x)
}

// width is how many columns s takes; all our characters take one.
func width(s string) int { return utf8.RuneCountInString(s) }

// left and right pad s with blanks to n columns.
// left and right fill a text up to n columns. A line feed in it would forge a line.
func left(s string, n int) string {
	s = columns.Plain(s)
	return s + strings.Repeat(" ", max(0, n-width(s)))
}

func right(s string, n int) string {
	s = columns.Plain(s)
	return strings.Repeat(" ", max(0, n-width(s))) + s
}

// lineWidth is how wide tables and texts may be, in columns.
const lineWidth = 80

// wrap breaks text at blanks so that no line is longer than lineWidth where words
// allow; the first line begins with first, the others with rest.
func wrap(first, rest, text string) string {
	var b strings.Builder
	b.WriteString(first)
	at, fresh := width(first), true
	for _, word := range strings.Fields(text) {
		if !fresh && at+1+width(word) > lineWidth {
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
