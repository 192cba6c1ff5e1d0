package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/container"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
)

// TestClosingErrorIsNotTheNextJobs checks that a network which can't be closed is noted as such, and that the job
// whose network takes its place does not fail by it.
func TestClosingErrorIsNotTheNextJobs(t *testing.T) {
	r := &run{env: Environment{Networks: map[string]NetworkFacts{"veth": {LinkMTU: 1500}}}}
	b := newTestbeds(t.TempDir(), container.NewSet(container.Config{}), func(job experiment.Job, err error) { r.notClosed(job.Cell, err) })
	r.testbeds = b
	b.closeOne = func(*testbed) error { return errors.New("device is busy") }
	veth := experiment.Job{Cell: cell.Cell{Network: "veth", Runtime: cell.Native, Topology: "local", Pairs: 1}}
	next := experiment.Job{Cell: cell.Cell{Network: "nowhere", Runtime: cell.Native, Topology: "local", Pairs: maxNodes}}
	b.cached = []*testbed{{Network: &wiring.Network{}, job: veth}}
	b.plan([]experiment.Job{next}) // so that there is no room for veth
	if _, err := b.get(t.Context(), next); !errors.Is(err, wiring.ErrUnknown) || strings.Contains(err.Error(), "busy") {
		t.Errorf("the next job: %v", err)
	}
	if len(b.cached) != 0 || len(r.leftovers) != 1 {
		t.Fatalf("%d are kept, leftovers %v", len(b.cached), r.leftovers)
	}
	want := []string{"close veth: device is busy"}
	r.env.note(veth.Cell, NetworkFacts{LinkMTU: 1400}) // it is built again
	if got := r.env.Networks["veth"]; !slices.Equal(got.Notes, want) || got.LinkMTU != 1400 {
		t.Errorf("noted %+v, want %q", got, want)
	}
	if _, ok := r.env.Networks["nowhere"]; ok {
		t.Error("the next network is noted")
	}
}
