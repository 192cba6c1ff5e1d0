package bench

import (
	"context"
	"errors"
	"time"

	"cleat/bench/attacher"
	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
	"cleat/link"
)

// attach takes one sample of how long it takes to attach a container and to detach
// it. All samples of a job share a host with its existing endpoints.
func (r *run) attach(ctx context.Context, job experiment.Job, at position) error {
	s := newSample(job, at)
	host, err := r.attachHost(ctx, job)
	if errors.As(err, new(*link.Lack)) {
		return r.absent(ctx, job, err)
	}
	var took attacher.Times
	if err == nil {
		s.Started = time.Now()
		took, err = host.Measure(ctx)
	}
	if err != nil {
		s.Error = err.Error()
	} else {
		s.Values = map[cell.Metric]float64{
			cell.AttachTime: float64(took.Attach), cell.DetachTime: float64(took.Detach), cell.AttachCPU: float64(took.CPU)}
	}
	if err := r.record(ctx, s); err != nil {
		return err
	}
	r.failures.note(job, s.Error != "")
	return nil
}

func (r *run) attachHost(ctx context.Context, job experiment.Job) (*attacher.Host, error) {
	spec := specOf(job)
	if h := r.attachHosts[spec]; h != nil {
		return h, nil
	}
	h, err := attacher.Open(ctx, attacher.Config{Attacher: spec.Network, Link: spec.AttachLink, Endpoints: spec.Endpoints, Scratch: r.Scratch})
	if err != nil {
		return nil, err
	}
	r.attachHosts[spec] = h
	return h, nil
}

// Check returns nil if this lab can build the network of that name, or attach with
// the program of that name; else a *link.Lack.
func Check(name string) error {
	if catalog.RoleOf(name) == catalog.Attacher {
		return attacher.Check(name)
	}
	return wiring.Check(name)
}
