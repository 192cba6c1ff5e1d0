package bench

import (
	"slices"
	"testing"

	"cleat/bench/experiment"
)

func TestPermitted(t *testing.T) {
	for _, tt := range []struct {
		name        string
		has         []string // of the kernel
		asked, want []string
	}{
		{"none is named", []string{"cubic", "reno"}, nil, nil},
		{"none is named, and cubic is not permitted", []string{"reno"}, nil, []string{"reno"}},
		{"permitted", []string{"reno", "bbr"}, []string{"bbr"}, []string{"bbr"}},
		{"two that become one", []string{"reno"}, []string{"cubic", "bbr"}, []string{"reno"}},
		{"one of two", []string{"reno", "bbr"}, []string{"cubic", "bbr"}, []string{"reno", "bbr"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := experiment.Experiment{Groups: []experiment.Group{{Congestion: tt.asked}}}
			before := slices.Clone(tt.asked)
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

// TestPermittedOnly checks that a replaced congestion control is replaced in the
// choice of cells as well.
func TestPermittedOnly(t *testing.T) {
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
