package bench

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/experiment"
)

// TestRepeatsAreShared checks that jobs which are always disturbed, and come early, don't use up the repeats of
// those that are disturbed later in the experiment.
func TestRepeatsAreShared(t *testing.T) {
	const jobs, blocks = 16, 12
	r := newRepeats(jobs * blocks)
	random := rand.New(rand.NewPCG(1, 2))
	repeated := map[string]int{}
	all, last := 0, 0
	for block := range blocks {
		r.earn(jobs)
		var bad []measurement
		for order, n := range random.Perm(jobs) {
			always, late := n < 4, n == 15 && block >= blocks/2
			if always || late {
				bad = append(bad, measurement{jobNamed(fmt.Sprint(n)), position{block, order}})
			}
		}
		err := r.spend(bad, func(m measurement, _ int) (bool, error) {
			repeated[m.job.Cell.Network]++
			all++
			if block == blocks-1 {
				last++
			}
			return m.job.Cell.Network == "15", nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if all > jobs*blocks/repeatShare {
		t.Errorf("%d repeats of %d measurements", all, jobs*blocks)
	}
	if last == 0 {
		t.Error("nothing was left for the last block")
	}
	for _, n := range []string{"1", "2", "3", "15"} { // 0 to 3 are always disturbed, 15 in the second half
		if a, b := repeated["0"], repeated[n]; a-b > 1 || b-a > 1 {
			t.Errorf("jobs were repeated so often: %v", repeated)
		}
	}
}

// TestFirstRepeatsComeFirst checks that nothing is repeated twice before all were once.
func TestFirstRepeatsComeFirst(t *testing.T) {
	r := newRepeats(100)
	r.earn(5 * repeatShare)
	var got string
	err := r.spend([]measurement{{job: jobNamed("a")}, {job: jobNamed("b")}, {job: jobNamed("c")}}, func(m measurement, attempt int) (bool, error) {
		got += fmt.Sprint(m.job.Cell.Network, attempt, " ")
		return m.job.Cell.Network == "b", nil
	})
	if want := "a2 b2 c2 a3 c3 "; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// TestSmallExperimentRepeats checks that one job in one block can still be repeated.
func TestSmallExperimentRepeats(t *testing.T) {
	r := newRepeats(1)
	r.earn(1)
	n := 0
	if err := r.spend([]measurement{{job: jobNamed("a")}}, func(measurement, int) (bool, error) { n++; return false, nil }); err != nil || n != maxAttempts-1 {
		t.Errorf("%d repeats, %v", n, err)
	}
}

func jobNamed(network string) experiment.Job {
	return experiment.Job{Cell: cell.Cell{Network: network}, Work: experiment.Work{Kind: experiment.TCP}}
}
