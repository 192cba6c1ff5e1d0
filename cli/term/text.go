package term

import (
	"fmt"
	"strings"
	"time"
)

func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Wrap breaks text at spaces into lines of at most 79 columns.
func Wrap(text, indent string) string {
	const width = 79
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(text) {
		if line != indent && len([]rune(line))+1+len([]rune(word)) > width {
			fmt.Fprintln(&b, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(&b, line)
	return b.String()
}

func Time(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// Bytes is a count of bytes with a decimal unit, e.g. "1.5 MB".
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

// ThreeDigits is a number from 1 to 999 with three digits.
func ThreeDigits(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Seconds is a duration in at most six columns, "0" below half a microsecond.
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
