package bench

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
)

// SharedRate is the rate at which the requests of several networks are sent, so that their latencies can be compared:
// a share of what the slowest of them carries.
type SharedRate struct {
	Conditions string  `json:"conditions"` // under which the networks are compared; "" if all have the same
	Share      float64 `json:"share"`
	Rate       float64 `json:"rate"`    // 1/s of a pair
	Slowest    string  `json:"slowest"` // its label
	Carries    float64 `json:"carries"` // 1/s of a pair of the slowest network, in a closed loop
}

// calibrate sets the rates of jobs that have a share instead of one: a share of what the slowest of them carries, in a
// closed loop that is measured first. It is the same for all, but for the number of pairs and sockets and the size of
// messages. next is called before each measurement.
func (r *run) calibrate(ctx context.Context, jobs []experiment.Job, next func(experiment.Job)) error {
	var cells []cell.Cell
	for _, j := range jobs {
		if _, ok := j.RateShare(); ok {
			cells = append(cells, j.Cell)
		}
	}
	conditions := slices.DeleteFunc(cell.Conditions(cells), func(f cell.Factor) bool {
		return !slices.Contains([]string{"transport", "pairs", "streams", "message_bytes", cell.RateFactor}, f.Name)
	})
	varying := cell.Varying(conditions, cells)
	shared := map[string]SharedRate{}
	for _, j := range jobs {
		share, ok := j.RateShare()
		if !ok || r.givenUp(j) {
			continue
		}
		next(j)
		carries, err := r.carries(ctx, j)
		switch {
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case err != nil && r.testbeds.isProbed(j): // the blocks show whether it works then
			continue
		case err != nil:
			if err := r.absent(ctx, j, err); err != nil {
				return err
			}
			continue
		}
		key := cell.Levels(conditions, j.Cell)
		if known, ok := shared[key]; !ok || carries < known.Carries {
			shared[key] = SharedRate{Conditions: cell.Describe(varying, j.Cell), Share: share, Rate: cell.Significant(share*carries, 2), Slowest: j.Cell.Label(), Carries: cell.Significant(carries, 3)}
		}
	}
	for i, j := range jobs {
		if _, ok := j.RateShare(); ok {
			jobs[i].Rate = shared[cell.Levels(conditions, j.Cell)].Rate
		}
	}
	if len(shared) == 0 {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(shared)) {
		r.env.Rates = append(r.env.Rates, shared[key])
	}
	return r.store.environment(r.env)
}

// carries returns how many transactions a pair of a job makes in a second when each follows the last. The median round
// trip decides: one stall does not make a network slow.
func (r *run) carries(ctx context.Context, job experiment.Job) (perSecond float64, err error) {
	if e, _ := catalog.Lookup(job.Cell.Network); e.Cold || e.Restless {
		defer r.testbeds.dropFor(job)
	}
	tb, err := r.testbeds.getRetrying(ctx, job)
	if err == nil && tb.probe.BlackHole {
		err = blackHole(tb.probe)
	}
	if err != nil {
		return 0, err
	}
	job = job.Calibration()
	s := newSample(job, position{})
	if err := r.measure(ctx, tb, job, &s); err != nil {
		tb.stopServers()
		return 0, err
	}
	p50 := s.Values[cell.ClosedP50] / float64(time.Second)
	if !(p50 > 0) {
		return 0, errors.New("no transaction ended")
	}
	return float64(job.Cell.Streams) / p50, nil
}
