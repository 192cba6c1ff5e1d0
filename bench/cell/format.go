package cell

import (
	"math"
	"strconv"
	"strings"
)

// None marks a missing value.
const None = "–"

// Digits returns x with three significant digits. It uses an exponent only below 1e-6, where
// the digits would be a row of zeros. It returns None for NaN and infinities.
func Digits(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return None
	}
	e := strconv.FormatFloat(x, 'e', 2, 64)
	exp, err := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	switch {
	case err != nil || x == 0:
		return "0"
	case exp < -6:
		return e
	case exp > 2: // round to three digits first: 12345 becomes 12300
		r, err := strconv.ParseFloat(e, 64)
		if err != nil {
			return None
		}
		return strconv.FormatFloat(r, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', 2-exp, 64)
}

// Significant returns x rounded to a number of digits.
func Significant(x float64, digits int) float64 {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits-1, 64), 64)
	if err != nil {
		return x
	}
	return rounded
}
