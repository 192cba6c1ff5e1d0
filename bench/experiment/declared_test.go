package experiment

import (
	"slices"
	"testing"

	"cleat/bench/cell"
)

// TestFactorsAreDeclared checks that package cell declares how each factor of an experiment is shown. A factor that it
// does not know is shown as "NAME LEVEL", which is what is meant only by accident.
func TestFactorsAreDeclared(t *testing.T) {
	plain := []string{checksumFactor, hairpinFactor, linkFactor, peerFactor, zooCandidateFactor} // "peer outside"
	for _, name := range FactorNames() {
		if declared := (cell.Factor{Name: name}).IsDeclared(); declared == slices.Contains(plain, name) {
			t.Errorf("factor %s: declared %t, and that is not what this test expects", name, declared)
		}
	}
}

// TestWorksHaveMetrics checks that each kind of work has a metric that is declared for it.
func TestWorksHaveMetrics(t *testing.T) {
	for _, work := range WorkKinds() {
		if got := cell.MetricsOf(work, cell.AnyLoop); work != TCP && slices.Equal(got, cell.MetricsOf("no work", cell.AnyLoop)) {
			t.Errorf("no metric is declared for the work %s", work)
		}
	}
}
