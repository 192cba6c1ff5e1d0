package summary

import (
	"slices"
	"testing"

	"cleat/bench/experiment"
)

// TestPresetsMeasureTheGoals: what a recommendation tells people to type
// measures what it lacks.
func TestPresetsMeasureTheGoals(t *testing.T) {
	for _, goal := range Goals() {
		kind, preset := goal.work()
		e, err := experiment.Load(preset)
		if err != nil {
			t.Fatal(err)
		}
		runs := func(g experiment.Group) bool {
			return slices.ContainsFunc(g.Work, func(w experiment.Work) bool { return w.Kind == kind })
		}
		if !slices.ContainsFunc(e.Groups, runs) {
			t.Errorf("for %s: preset %s does not run %s", goal, preset, kind)
		}
		want := goal.Metric()
		if goal == ForCPU {
			want = ForThroughput.Metric()
		}
		if !slices.Contains(metricsOf(kind), want) {
			t.Errorf("for %s: the work %s does not measure %s", goal, kind, want)
		}
	}
}
