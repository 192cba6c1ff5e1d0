package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
	"cleat/link"
)

// phaseFactor tells the two times of a setup job apart.
const phaseFactor = "phase"

// setup measures how long a network takes to make and to remove. Each phase is
// a sample of its own.
func (r *run) setup(ctx context.Context, job experiment.Job, at position) error {
	n, err := wiring.Build(ctx, wiring.Config{Spec: specOf(job), Pairs: 1, Scratch: r.Scratch, Isolated: true})
	var lack *link.Lack
	var never *wiring.NotApplicable
	if errors.As(err, &lack) || errors.As(err, &never) {
		return r.absent(ctx, job, err)
	}
	var took wiring.Timing
	if err == nil {
		took, err = n.Time(ctx)
		err = errors.Join(err, n.Close())
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for phase, d := range map[string]time.Duration{"make": took.Make, "remove": took.Remove} {
		s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Started: time.Now(), Block: at.block, Order: at.order, Attempt: 1}
		s.Factors = maps.Clone(job.Cell.Factors)
		if s.Factors == nil {
			s.Factors = map[string]string{}
		}
		s.Factors[phaseFactor] = phase
		if err != nil {
			s.Error = fmt.Sprintf("%s: %v", phase, err)
		} else {
			s.Values = map[cell.Metric]float64{cell.SetupTime: float64(d)}
		}
		if err := r.store.sample(s); err != nil {
			return err
		}
		r.Progress.Sample(s)
	}
	return nil
}
