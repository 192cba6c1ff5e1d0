package bench

import (
	"slices"
	"testing"

	"cleat/bench/experiment"
)

func TestWishedCongestion(t *testing.T) {
	for _, tt := range []struct {
		name         string
		has          []string // of the kernel
		wished, want []string
	}{
		{"none is named", []string{"cubic", "reno"}, nil, nil},
		{"none is named, and the usual one is not permitted", []string{"reno"}, nil, []string{"reno"}},
		{"permitted", []string{"reno", "bbr"}, []string{"bbr"}, []string{"bbr"}},
		{"two that become one", []string{"reno"}, []string{"cubic", "bbr"}, []string{"reno"}},
		{"one of two", []string{"reno", "bbr"}, []string{"cubic", "bbr"}, []string{"reno", "bbr"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := experiment.Experiment{Groups: []experiment.Group{{Congestion: tt.wished}}}
			before := slices.Clone(tt.wished)
			got := permitted(e, func(c string) bool { return slices.Contains(tt.has, c) })
			if !slices.Equal(got.Groups[0].Congestion, tt.want) {
				t.Errorf("got %v, want %v", got.Groups[0].Congestion, tt.want)
			}
			if !slices.Equal(e.Groups[0].Congestion, before) {
				t.Error("the caller's experiment was changed")
			}
		})
	}
}
