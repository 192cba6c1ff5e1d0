package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cleat/bench/attacher"
	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/host"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
)

// attach takes one sample of how long it takes to attach a container and to detach
// it. All samples of a job share a host with its existing endpoints.
func (r *run) attach(ctx context.Context, job experiment.Job, at position) error {
	return r.onAttachHost(ctx, job, at, func(h *attacher.Host) (map[cell.Metric]float64, error) {
		took, err := h.Measure(ctx)
		return map[cell.Metric]float64{
			cell.AttachTime: float64(took.Attach), cell.DetachTime: float64(took.Detach), cell.AttachCPU: float64(took.CPU)}, err
	})
}

// burst takes one sample of how many containers a second are attached at the same time.
func (r *run) burst(ctx context.Context, job experiment.Job, at position) error {
	return r.onAttachHost(ctx, job, at, func(h *attacher.Host) (map[cell.Metric]float64, error) {
		n, _ := strconv.Atoi(job.Cell.Factors["parallel"]) // Validate has parsed it
		rate, err := h.Burst(ctx, n)
		return map[cell.Metric]float64{cell.AttachRate: rate}, err
	})
}

// networkMemory takes one sample of the memory that a named network's programs hold with
// its endpoints. All samples of a job read the same processes, and before each of them a
// container is connected and disconnected.
func (r *run) networkMemory(ctx context.Context, job experiment.Job, at position) error {
	return r.onAttachHost(ctx, job, at, func(h *attacher.Host) (map[cell.Metric]float64, error) {
		if _, err := h.Measure(ctx); err != nil {
			return nil, err
		}
		sleepUntil(ctx, time.Now().Add(idleAfter))
		m, err := settledMemory(ctx, func() (host.ProcMemory, error) {
			pids, err := h.Processes()
			if err != nil {
				return host.ProcMemory{}, err
			}
			return host.ProcessMemory(pids...)
		})
		return map[cell.Metric]float64{
			cell.MemoryIdle: float64(m.Resident), cell.MemoryAnon: float64(m.Anonymous), cell.MemoryShare: float64(m.Proportional)}, err
	})
}

// onAttachHost records what measure returns for the job's host.
func (r *run) onAttachHost(ctx context.Context, job experiment.Job, at position, measure func(*attacher.Host) (map[cell.Metric]float64, error)) error {
	s := newSample(job, at)
	h, err := r.attachHost(ctx, job)
	if errors.As(err, new(*link.Lack)) {
		return r.absent(ctx, job, err)
	}
	if err == nil {
		s.Started = time.Now()
		s.Values, err = measure(h)
	}
	if err != nil {
		s.Values, s.Error = nil, err.Error()
	}
	if err := r.record(ctx, s); err != nil {
		return err
	}
	r.failures.note(job, s.Error != "")
	return nil
}

func (r *run) attachHost(ctx context.Context, job experiment.Job) (*attacher.Host, error) {
	key := attachKey{specOf(job), job.Work.Kind == experiment.Memory}
	if h := r.attachHosts[key]; h != nil {
		return h, nil
	}
	spec := key.spec
	cfg := attacher.Config{Attacher: spec.Network, Link: spec.AttachLink, Dataplane: spec.Dataplane, Endpoints: spec.Endpoints, Ports: spec.Ports, Scratch: r.Scratch}
	if key.memory {
		var err error
		if cfg.Program, err = copyOfThisProgram(r.Scratch); err != nil {
			return nil, err
		}
		cfg.Endpoints++ // the one that Measure connects is not there when the memory is read
	}
	h, err := attacher.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r.attachHosts[key] = h
	return h, nil
}

// attachKey tells hosts with attachers apart.
type attachKey struct {
	spec   wiring.Spec
	memory bool
}

// copyOfThisProgram copies this program's file into a directory of the lab. A part of each
// page of a file counts for each process that has mapped it, and the bench itself has mapped
// the original.
func copyOfThisProgram(dir string) (path string, err error) {
	from, err := os.Open(lab.Self)
	if err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("cleat-%d", time.Now().UnixNano())), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}
	return to.Name(), nil
}

// Check returns nil if this lab can build the network of that name, or attach with
// the program of that name; else a *link.Lack.
func Check(name string) error {
	if catalog.RoleOf(name) == catalog.Attacher {
		return attacher.Check(name)
	}
	return wiring.Check(name)
}
