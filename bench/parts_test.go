package bench

import (
	"testing"

	"cleat/bench/experiment"
)

// TestParts checks of each preset that all jobs are in one part, and none that measures traffic comes after one that
// needs many containers.
func TestParts(t *testing.T) {
	traffic := map[string]bool{experiment.TCP: true, experiment.UDP: true, experiment.RR: true, experiment.CRR: true}
	both := 0
	for _, e := range experiment.Presets() {
		jobs := e.Jobs()
		all := parts(jobs)
		n := 0
		for i, part := range all {
			n += len(part)
			for _, j := range part {
				if traffic[j.Work.Kind] && i > 0 {
					t.Errorf("%s: %s is in part %d", e.Name, j.ID(), i+1)
				}
			}
		}
		if n != len(jobs) {
			t.Errorf("%s: %d jobs of %d", e.Name, n, len(jobs))
		}
		if len(all) == 2 {
			both++
		}
	}
	if both == 0 {
		t.Error("no preset has two parts")
	}
}
