package bench

import (
	"cmp"
	"slices"

	"cleat/bench/experiment"
)

const (
	maxAttempts = 3 // of one measurement
	repeatShare = 8 // one in so many measurements may be repeated
)

// repeats shares out repeated measurements. Their number is limited: the experiment must also end on a
// machine that is never quiet. The rule:
//
//   - Each block earns one repeat for repeatShare of its measurements. What it does not spend, later blocks
//     may. A small experiment has maxAttempts repeats in all at least.
//   - A block spends them at its end. Jobs that were repeated least so far come first, then the order is
//     that of the block, which is random. So a job that is always disturbed gets no more than any that needs as many.
//   - A measurement is repeated a second time after all others had their first repeat.
type repeats struct {
	credit int            // in measurements: a repeat costs repeatShare
	spent  map[string]int // repeats of each job, by ID
}

// newRepeats returns the repeats of an experiment with that many measurements.
func newRepeats(measurements int) *repeats {
	return &repeats{credit: max(0, maxAttempts*repeatShare-measurements), spent: map[string]int{}}
}

// measurement is a job of a block at its place.
type measurement struct {
	job experiment.Job
	at  position
}

// earn adds the share of a block.
func (r *repeats) earn(measurements int) { r.credit += measurements }

// spend calls again for those of a block's measurements that must be repeated, in the order and as often as
// the rule says. again reports whether the measurement must not be repeated once more.
func (r *repeats) spend(bad []measurement, again func(m measurement, attempt int) (done bool, err error)) error {
	for attempt := 2; attempt <= maxAttempts; attempt++ {
		slices.SortStableFunc(bad, func(a, b measurement) int { return cmp.Compare(r.spent[a.job.ID()], r.spent[b.job.ID()]) })
		var still []measurement
		for _, m := range bad {
			if r.credit < repeatShare {
				return nil
			}
			r.credit -= repeatShare
			r.spent[m.job.ID()]++
			done, err := again(m, attempt)
			if err != nil {
				return err
			}
			if !done {
				still = append(still, m)
			}
		}
		bad = still
	}
	return nil
}
