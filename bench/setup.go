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
)

// setup measures how long a network takes to make and to remove. Each phase is
// a sample of its own.
func (r *run) setup(ctx context.Context, job experiment.Job, at position) error {
	n, err := wiring.Build(ctx, wiring.Config{Spec: specOf(job), Pairs: 1, Scratch: r.Scratch, AllowIsolated: true})
	if isAbsence(err) {
		return r.absent(ctx, job, err)
	}
	var build, remove time.Duration
	if err == nil {
		build, remove, err = n.Time(ctx)
		err = errors.Join(err, n.Close())
	}
	for phase, d := range map[string]time.Duration{"make": build, "remove": remove} {
		s := newSample(job, at)
		s.Factors = map[string]string{"phase": phase}
		maps.Copy(s.Factors, job.Cell.Factors)
		if err != nil {
			s.Error = fmt.Sprintf("%s: %v", phase, err)
		} else {
			s.Values = map[cell.Metric]float64{cell.SetupTime: float64(d)}
		}
		if err := r.record(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
