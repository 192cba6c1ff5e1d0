package usernettest

import (
	"math"
	"testing"
)

func TestJain(t *testing.T) {
	for _, c := range []struct {
		name string
		of   []float64
		want float64
	}{
		{"equal", []float64{3, 3, 3, 3}, 1},
		{"one has everything", []float64{8, 0, 0, 0}, 0.25},
		{"half have everything", []float64{1, 1, 0, 0}, 0.5},
		{"nothing moved", []float64{0, 0}, 0},
	} {
		if got := jain(c.of); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", c.name, got, c.want)
		}
	}
}
