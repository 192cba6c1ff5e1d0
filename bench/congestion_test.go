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

// What replaces a congestion control takes its place in the choice of cells too.
func TestWishedCongestionOnly(t *testing.T) {
	for _, tt := range []struct{ has, only, want []string }{
		{[]string{"cubic"}, []string{"cubic"}, []string{"cubic"}},
		{[]string{"reno"}, []string{"cubic"}, []string{"cubic", "reno"}},
		{[]string{"reno"}, nil, nil},
	} {
		e := experiment.Experiment{Only: experiment.Only{"congestion": tt.only}}
		got := permitted(e, func(c string) bool { return slices.Contains(tt.has, c) })
		if !slices.Equal(got.Only["congestion"], tt.want) || !slices.Equal(e.Only["congestion"], tt.only) {
			t.Errorf("%v where %v are permitted: %v, want %v; the caller's are %v", tt.only, tt.has, got.Only["congestion"], tt.want, e.Only["congestion"])
		}
	}
}
