package term

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"cleat/internal/columns"
)

// Count returns a number of things: "1 path", "2 paths".
func Count[N int | uint32 | uint64](n N, thing string) string {
	return Plural(fmt.Sprint(n), thing)
}

// Plural returns a formatted number of things.
func Plural(number, thing string) string {
	switch {
	case number == "1":
	case strings.HasSuffix(thing, "s"):
		thing += "es"
	default:
		thing += "s"
	}
	return number + " " + thing
}

// OrDash returns s, or "-" for an empty cell.
func OrDash(s string) string { return cmp.Or(s, "-") }

// Wrap breaks text between words into indented lines of at most 79 columns.
func Wrap(text, indent string) string {
	return indent + strings.Join(columns.Break(text, 79-len(indent)), "\n"+indent) + "\n"
}

// Time returns local date and time, to the second.
func Time(t time.Time) string { return t.Local().Format(time.DateTime) }

// Bytes returns a number of bytes with a decimal unit, e.g. "1.5 MB".
func Bytes(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB", "PB", "EB"} {
		if v /= 1000; v < 999.95 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// ThreeDigits returns a number from 1 to 999 with three significant digits.
func ThreeDigits(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Seconds returns a duration, given in seconds, in at most six columns. It is "0" below half
// a microsecond.
func Seconds(v float64) string {
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	switch {
	case v < 0.5e-6:
		return "0"
	case v < 999.5e-6:
		return fmt.Sprintf("%s%.0fµs", sign, v*1e6)
	case v < 0.9995:
		return sign + ThreeDigits(v*1e3) + "ms"
	}
	return sign + ThreeDigits(v) + "s"
}
