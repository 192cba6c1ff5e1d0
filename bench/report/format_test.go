package report

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"cleat/bench/cell"
)

func TestSig(t *testing.T) {
	for _, c := range []struct {
		x    float64
		want string
	}{
		{0, "0"}, {34.549, "34.5"}, {3.455, "3.46"}, {345.4, "345"}, {12345, "12300"}, {9.999, "10.0"}, {99.96, "100"}, {999.9, "1000"},
		{0.04604, "0.0460"}, {-1.236, "-1.24"}, {1e-9, "1.00e-09"}, {math.NaN(), none}, {math.Inf(-1), none},
	} {
		if got := sig(c.x); got != c.want {
			t.Errorf("sig(%g) = %q, want %q", c.x, got, c.want)
		}
	}
}

func FuzzSig(f *testing.F) {
	for _, x := range []float64{0, 1, 99.95, 123456789, 1e-5, 1e22, -7} {
		f.Add(x)
	}
	f.Fuzz(func(t *testing.T, x float64) {
		s := sig(x)
		if math.IsNaN(x) || math.IsInf(x, 0) {
			if s != none {
				t.Fatalf("sig(%g) = %q", x, s)
			}
			return
		}
		y, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatalf("sig(%g) = %q: %v", x, s, err)
		}
		if math.Abs(x) > 1e-300 && math.Abs(x) < 1e300 && math.Abs(y-x) > 0.00501*math.Abs(x) {
			t.Fatalf("sig(%g) = %q is off by more than the third digit allows", x, s)
		}
		if math.Abs(x) >= 1e-6 && strings.Contains(s, "e") {
			t.Fatalf("sig(%g) = %q has an exponent", x, s)
		}
	})
}

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		m    cell.Metric
		x    float64
		want string
	}{
		{cell.Throughput, 34.51e9, "34.5 Gbit/s"}, {cell.Loss, 0.0051, "0.510 %"}, {cell.LatencyP99, 123_400, "123 µs"},
		{cell.Connections, 9312, "9310 1/s"}, {cell.Packets, 1.25e6, "1250 1000/s"}, {cell.SetupTime, 12.34e6, "12.3 ms"},
	} {
		u := unitOf(c.m)
		if got := u.of(c.x) + " " + u.name; got != c.want {
			t.Errorf("%s %g: %q, want %q", c.m, c.x, got, c.want)
		}
	}
}

func TestNumeric(t *testing.T) {
	for _, c := range []struct {
		level string
		want  float64
		ok    bool
	}{
		{"16", 16, true}, {"10G", 1e10, true}, {"1.5Gbit/s", 1.5e9, true}, {"8192 B", 8192, true}, {"500K", 5e5, true},
		{"", 0, false}, {"on", 0, false}, {"search", 0, false}, {"NaN", 0, false}, {"-1", 0, false}, {"Inf", 0, false},
	} {
		if got, ok := numeric(c.level); got != c.want || ok != c.ok {
			t.Errorf("numeric(%q) = %g, %t, want %g, %t", c.level, got, ok, c.want, c.ok)
		}
	}
}

func TestWidth(t *testing.T) {
	for _, c := range []struct {
		s    string
		want int
	}{{"abc", 3}, {"µs – ~", 6}, {"容器", 4}, {"e\u0301", 1}, {"", 0}} {
		if got := columns(c.s); got != c.want {
			t.Errorf("columns(%q) = %d, want %d", c.s, got, c.want)
		}
	}
	if got := clip("容器网络", 5); got != "容器…" {
		t.Errorf("clip: %q", got)
	}
	if got := wrap("a bb ccc dddd", 4, 6); len(got) != 3 || got[0] != "a bb" || got[1] != "ccc" || got[2] != "dddd" {
		t.Errorf("wrap: %q", got)
	}
}

func FuzzWrap(f *testing.F) {
	f.Add("some words to be wrapped", 10, 7)
	f.Add("容器网络 e\u0301\u0301 x", 3, 2)
	f.Fuzz(func(t *testing.T, text string, first, n int) {
		if first < 2 || n < 2 || n > 1000 || first > 1000 {
			t.Skip()
		}
		for i, l := range wrap(plain(text), first, n) {
			room := n
			if i == 0 {
				room = first
			}
			if columns(l) > room {
				t.Fatalf("line %d of %q takes %d columns of %d: %q", i, text, columns(l), room, l)
			}
		}
	})
}

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
