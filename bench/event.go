package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/spanned"
	"cleat/link"
)

// bedKey tells the clusters of the work "event" apart. All events of a network share one.
type bedKey struct {
	network, dataplane string
	hosts              int
}

// cell returns a cell of the cluster's network.
func (k bedKey) cell() cell.Cell { return cell.Cell{Network: k.network, Topology: "local"} }

// event takes one sample of how long an event takes on a network that spans hosts.
func (r *run) event(ctx context.Context, job experiment.Job, at position) error {
	s := newSample(job, at)
	b, err := r.bed(ctx, job)
	if errors.As(err, new(*link.Lack)) {
		return r.absent(ctx, job, err)
	}
	if err == nil {
		s.Started = time.Now()
		var took time.Duration
		took, err = b.Measure(ctx, job.Cell.Factors["event"])
		s.Values = map[cell.Metric]float64{cell.EventTime: float64(took)}
	}
	if err != nil {
		s.Values, s.Error = nil, err.Error()
		r.dropBed(job) // the fault may have left something behind
	}
	if err := r.record(ctx, s); err != nil {
		return err
	}
	r.failures.note(job, s.Error != "")
	return nil
}

func bedOf(job experiment.Job) bedKey {
	hosts, _ := strconv.Atoi(job.Cell.Factors["hosts"]) // Validate has parsed it
	return bedKey{job.Cell.Network, job.Cell.Factors["dataplane"], hosts}
}

func (r *run) bed(ctx context.Context, job experiment.Job) (*spanned.Bed, error) {
	key := bedOf(job)
	if b := r.beds[key]; b != nil {
		return b, nil
	}
	dir, err := os.MkdirTemp(r.Scratch, key.network+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", key.network, err)
	}
	b, err := spanned.OpenBed(ctx, spanned.Config{Name: key.network, Dataplane: key.dataplane, Dir: dir}, key.hosts)
	if err != nil {
		return nil, err
	}
	r.beds[key] = b
	return b, nil
}

// dropBed closes a job's cluster: the next sample has a new one.
func (r *run) dropBed(job experiment.Job) {
	key := bedOf(job)
	if b := r.beds[key]; b != nil {
		delete(r.beds, key)
		r.notClosed(key.cell(), b.Close())
	}
}
