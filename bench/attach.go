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

// attach takes one sample of how long a container's link takes to make and to
// take away. The host with the endpoints that are there before stays for all
// samples of a job.
func (r *run) attach(ctx context.Context, job experiment.Job, at position) error {
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Started: time.Now(), Block: at.block, Order: at.order, Attempt: 1}
	host, err := r.attachHost(ctx, job)
	var lack *link.Lack
	if errors.As(err, &lack) {
		return r.absent(ctx, job, err)
	}
	var took attacher.Times
	if err == nil {
		s.Started = time.Now()
		took, err = host.Measure(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		s.Error = err.Error()
	} else {
		s.Values = map[cell.Metric]float64{
			cell.AttachTime: float64(took.Attach), cell.DetachTime: float64(took.Detach), cell.AttachCPU: float64(took.CPU)}
	}
	if err := r.store.sample(s); err != nil {
		return err
	}
	r.Progress.Sample(s)
	r.failed.note(job, s.Error != "")
	return nil
}

// attachHost is the host on which a job's attacher works.
func (r *run) attachHost(ctx context.Context, job experiment.Job) (*attacher.Host, error) {
	spec := specOf(job)
	if s := r.attachHosts[spec]; s != nil {
		return s, nil
	}
	s, err := attacher.Open(ctx, attacher.Config{Attacher: spec.Network, Link: spec.AttachLink, Endpoints: spec.Endpoints, Scratch: r.Scratch})
	if err != nil {
		return nil, err
	}
	r.attachHosts[spec] = s
	return s, nil
}

func (r *run) closeAttachHosts() error {
	var errs []error
	for _, s := range r.attachHosts {
		errs = append(errs, s.Close())
	}
	clear(r.attachHosts)
	return errors.Join(errs...)
}

// check is nil when this lab can make the network of that name, or attach by the
// program of that name, else a *link.Lack.
func check(name string) error {
	if catalog.RoleOf(name) == catalog.Attacher {
		return attacher.Check(name)
	}
	return wiring.Check(name)
}
