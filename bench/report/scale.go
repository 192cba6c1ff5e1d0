package report

import (
	"math"
	"strconv"
)

// scale maps numbers to 0…1 along an axis.
type scale struct {
	min, max float64
	log      bool
	ticks    []float64
}

// linear returns a scale from zero to a round number at or above top, with about n
// ticks.
func linear(top float64, n int) scale {
	if !(top > 0) || math.IsInf(top, 0) {
		top = 1
	}
	step := roundStep(top / float64(n))
	s := scale{max: math.Ceil(top/step-1e-9) * step}
	for i := 0; float64(i)*step <= s.max*(1+1e-9); i++ {
		s.ticks = append(s.ticks, float64(i)*step)
	}
	return s
}

// roundStep returns the smallest of 1, 2, 2.5 and 5 times a power of ten that is at
// least x.
func roundStep(x float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*p >= x*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// decades returns a logarithmic scale that holds lo and hi, both above zero, with
// ticks at 1, 2 and 5 times the powers of ten, or at the powers alone if the range
// is wide.
func decades(lo, hi float64) scale {
	if !(lo > 0) || !(hi >= lo) || math.IsInf(hi, 0) {
		lo, hi = 1, 10
	}
	steps := []float64{1, 2, 5}
	if hi/lo > 2000 {
		steps = steps[:1]
	}
	s := scale{log: true}
	for e := math.Floor(math.Log10(lo)); e <= math.Floor(math.Log10(hi))+1; e++ {
		for _, m := range steps {
			s.ticks = append(s.ticks, m*math.Pow(10, e))
		}
	}
	for len(s.ticks) > 2 && s.ticks[1] <= lo*(1+1e-9) {
		s.ticks = s.ticks[1:]
	}
	for len(s.ticks) > 2 && s.ticks[len(s.ticks)-2] >= hi*(1-1e-9) {
		s.ticks = s.ticks[:len(s.ticks)-1]
	}
	s.min, s.max = s.ticks[0], s.ticks[len(s.ticks)-1]
	return s
}

// at returns the position of x on the scale, bounded to 0…1.
func (s scale) at(x float64) float64 {
	var p float64
	switch {
	case s.log && x <= 0, x != x:
		return 0
	case s.log:
		p = math.Log(x/s.min) / math.Log(s.max/s.min)
	default:
		p = (x - s.min) / (s.max - s.min)
	}
	return min(max(p, 0), 1)
}

// levelScale returns an x axis through measured levels, which are the ticks. It is
// logarithmic if they span a factor of eight or more.
func levelScale(levels []float64) scale {
	s := scale{min: levels[0], max: levels[len(levels)-1], ticks: levels}
	s.log = s.min > 0 && s.max/s.min >= 8
	if s.max == s.min {
		s.max = s.min + 1
	}
	return s
}

// Distances between two numbers on an axis, as fractions of its width. Numbers
// closer than crowded touch on a wide screen, those closer than tight on a
// telephone.
const (
	crowded = 0.07
	tight   = 0.16
)

func tickMarks(s scale) []tick {
	out := make([]tick, len(s.ticks))
	wide, narrow := 2.0, 2.0 // the positions of the nearest numbers to the right
	for i := len(s.ticks) - 1; i >= 0; i-- {
		at := s.at(s.ticks[i])
		t := tick{At: percent(at), Text: tickText(s.ticks[i]), Anchor: "middle"}
		switch i {
		case 0:
			t.Anchor = "start"
		case len(s.ticks) - 1:
			t.Anchor = "end"
		}
		switch {
		case wide-at < crowded:
			t.Text = ""
		case narrow-at < tight:
			t.Class = "minor"
			wide = at
		default:
			wide, narrow = at, at
		}
		out[i] = t
	}
	return out
}

// tickText returns a tick without needless zeros.
func tickText(x float64) string {
	if x >= 10000 {
		return strconv.FormatFloat(x/1000, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(x, 'g', 5, 64)
}
