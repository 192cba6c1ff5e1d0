package cell

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestDigits(t *testing.T) {
	for _, c := range []struct {
		x    float64
		want string
	}{
		{0, "0"}, {34.549, "34.5"}, {3.455, "3.46"}, {345.4, "345"}, {12345, "12300"}, {9.999, "10.0"}, {99.96, "100"}, {999.9, "1000"},
		{0.04604, "0.0460"}, {-1.236, "-1.24"}, {1e-9, "1.00e-09"}, {math.NaN(), None}, {math.Inf(-1), None},
	} {
		if got := Digits(c.x); got != c.want {
			t.Errorf("Digits(%g) = %q, want %q", c.x, got, c.want)
		}
	}
}

func FuzzDigits(f *testing.F) {
	for _, x := range []float64{0, 1, 99.95, 123456789, 1e-5, 1e22, -7} {
		f.Add(x)
	}
	f.Fuzz(func(t *testing.T, x float64) {
		s := Digits(x)
		if math.IsNaN(x) || math.IsInf(x, 0) {
			if s != None {
				t.Fatalf("Digits(%g) = %q", x, s)
			}
			return
		}
		y, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatalf("Digits(%g) = %q: %v", x, s, err)
		}
		if math.Abs(x) > 1e-300 && math.Abs(x) < 1e300 && math.Abs(y-x) > 0.00501*math.Abs(x) {
			t.Fatalf("Digits(%g) = %q is off by more than the third digit allows", x, s)
		}
		if math.Abs(x) >= 1e-6 && strings.Contains(s, "e") {
			t.Fatalf("Digits(%g) = %q has an exponent", x, s)
		}
	})
}
