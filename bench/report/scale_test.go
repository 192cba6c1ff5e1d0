package report

import (
	"math"
	"testing"
)

func TestLinearScale(t *testing.T) {
	for _, top := range []float64{0.0034, 0.31, 1, 7, 55.1, 99, 1234, 1e6} {
		s := linear(top, 5)
		if s.max < top || s.max > 2*top+1e-12 || s.ticks[0] != 0 || len(s.ticks) < 3 || len(s.ticks) > 8 {
			t.Errorf("linear(%g) reaches %g with ticks %v", top, s.max, s.ticks)
		}
	}
	if s := linear(math.NaN(), 5); !(s.max > 0) {
		t.Errorf("linear(NaN) reaches %g", s.max)
	}
}

func TestDecades(t *testing.T) {
	for _, c := range [][2]float64{{31, 5400}, {1, 1}, {10, 100}, {0.5, 3}, {999, 1001}, {1, 1e6}} {
		s := decades(c[0], c[1])
		if s.min > c[0] || s.max < c[1] || s.at(c[0]) > s.at(c[1]) || s.max <= s.min {
			t.Errorf("decades(%g, %g) = %g…%g", c[0], c[1], s.min, s.max)
		}
	}
	if s := decades(0, -1); s.min <= 0 || s.at(0) != 0 {
		t.Errorf("decades(0, -1) = %+v", s)
	}
}

func TestCapital(t *testing.T) {
	for s, want := range map[string]string{"": "", "local": "Local", "über": "Über", "\xff": "\xff", "9 x": "9 x"} {
		if got := capital(s); got != want {
			t.Errorf("capital(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for x, want := range map[float64]string{0.00123: "0.0012", 1.25: "1.2", 34.6: "35", 99.6: "100", 191: "191"} {
		if got := short(x); got != want {
			t.Errorf("%v is %s, want %s", x, got, want)
		}
	}
}
