package report

import "math"

// scale maps numbers to 0…1 along an axis.
type scale struct {
	min, max float64
	log      bool
	ticks    []float64
}

// linear is a scale from zero to a round number at or above top, with about n
// ticks in between.
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

// roundStep is the smallest of 1, 2, 2.5 and 5 times a power of ten that is at
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

// decades is a logarithmic scale that holds lo and hi, both above zero, with
// ticks at 1, 2 and 5 times the powers of ten, or at the powers alone when the
// range is wide.
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

// at is the place of x on the scale, held within 0…1.
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

// levelScale is an x axis through measured levels: logarithmic, and padded, when
// they span a factor of eight or more. Ticks are the levels themselves.
func levelScale(levels []float64) scale {
	s := scale{min: levels[0], max: levels[len(levels)-1], ticks: levels}
	s.log = s.min > 0 && s.max/s.min >= 8
	if s.max == s.min {
		s.max = s.min + 1
	}
	return s
}
