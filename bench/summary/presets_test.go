package summary

import (
	"slices"
	"testing"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
)

// TestMissingIsMeasured checks that the command which a recommendation prints for
// what is missing measures it, for every network that can be recommended.
func TestMissingIsMeasured(t *testing.T) {
	e, err := experiment.Load(preset)
	if err != nil {
		t.Fatal(err)
	}
	for _, goal := range Goals() {
		if !slices.Contains(cell.MetricsOf(goals[goal].work, cell.OpenLoop), goal.workMetric()) {
			t.Errorf("for %s: the work %s does not measure %s", goal, goals[goal].work, goal.workMetric())
		}
		for _, n := range catalog.All() {
			if slices.Contains(notChosen, n.Role) || n.Isolates {
				continue
			}
			asked := e.Override(experiment.Override{Networks: []string{n.Name}, Work: []string{goals[goal].work}})
			if err := asked.Validate(); err != nil {
				t.Errorf("%s for %s: %v", n.Name, goal, err)
			} else if !slices.ContainsFunc(asked.Jobs(), func(j experiment.Job) bool { return j.Cell.Network == n.Name && j.Work.Kind == goals[goal].work }) {
				t.Errorf("for %s: preset %s does not run %s over %s", goal, preset, goals[goal].work, n.Name)
			}
		}
	}
}

// TestQuickMeasuresCleatRun checks that the main preset compares `cleat run` with
// its rivals.
func TestQuickMeasuresCleatRun(t *testing.T) {
	e, err := experiment.Load("quick")
	if err != nil {
		t.Fatal(err)
	}
	for _, work := range []string{"tcp", "rr", "crr"} {
		if !slices.ContainsFunc(e.Jobs(), func(j experiment.Job) bool {
			return j.Cell.Network == "cleat" && j.Work.Kind == work && j.Cell.Runtime == cell.Native
		}) {
			t.Errorf("quick does not run %s over cleat", work)
		}
	}
}
