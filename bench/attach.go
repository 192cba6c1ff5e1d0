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
	site, err := r.site(ctx, job)
	var lack *link.Lack
	if errors.As(err, &lack) {
		return r.absent(ctx, job, err)
	}
	var took attacher.Times
	if err == nil {
		s.Started = time.Now()
		took, err = site.Measure(ctx)
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

// site is the host on which a job's attacher works.
func (r *run) site(ctx context.Context, job experiment.Job) (*attacher.Site, error) {
	w := job.Wiring()
	if s := r.sites[w]; s != nil {
		return s, nil
	}
	s, err := attacher.Open(ctx, attacher.Config{Attacher: w.Network, Link: w.Link, Endpoints: w.Endpoints, Scratch: r.Scratch})
	if err != nil {
		return nil, err
	}
	r.sites[w] = s
	return s, nil
}

func (r *run) closeSites() error {
	var errs []error
	for _, s := range r.sites {
		errs = append(errs, s.Close())
	}
	clear(r.sites)
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
