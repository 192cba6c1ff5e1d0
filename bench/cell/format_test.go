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

func TestScale(t *testing.T) {
	for _, c := range []struct {
		m    Metric
		x    float64
		want string
	}{
		{Throughput, 34.51e9, "34.5 Gbit/s"}, {Loss, 0.0051, "0.510 %"}, {LatencyP99, 123_400, "123 µs"},
		{Connections, 9312, "9310 1/s"}, {Packets, 1.25e6, "1250 1000/s"}, {SetupTime, 12.34e6, "12.3 ms"},
	} {
		u := c.m.Scale()
		if got := u.Of(c.x) + " " + u.Unit; got != c.want {
			t.Errorf("%s %g: %q, want %q", c.m, c.x, got, c.want)
		}
	}
}

func TestTitleTellsMetricsApart(t *testing.T) {
	seen := map[string]Metric{}
	for _, m := range Metrics() {
		if other, ok := seen[m.Title()]; ok || m.Title() == "" {
			t.Errorf("%s and %s are both %q", m, other, m.Title())
		}
		seen[m.Title()] = m
	}
}

func TestCompareMetricsPutsTheUnknownLast(t *testing.T) {
	for _, m := range Metrics() {
		if CompareMetrics(m, "aaa") >= 0 || CompareMetrics("aaa", m) <= 0 {
			t.Errorf("an unknown metric comes before %s", m)
		}
	}
}
