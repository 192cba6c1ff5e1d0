package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/host"
	"cleat/bench/wiring"
	"cleat/link"
	"cleat/traffic"
)

// memory measures what a network's programs hold: idle, on a network that was
// just made, and with as many flows as the job says, each established and after
// its first bytes.
func (r *run) memory(ctx context.Context, job experiment.Job, at position) error {
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Started: time.Now(), Block: at.block, Order: at.order, Attempt: 1}
	n, err := wiring.Build(ctx, wiring.Config{Spec: specOf(job), Pairs: 1, Scratch: r.Scratch})
	var lack *link.Lack
	var never *wiring.NotApplicable
	if errors.As(err, &lack) || errors.As(err, &never) {
		return r.absent(ctx, job, err)
	}
	if err == nil {
		b := &testbed{Network: n, scratch: r.Scratch, job: job, servers: make([]*server, len(n.Pairs))}
		s.Values, err = b.memory(ctx, job)
		err = errors.Join(err, b.close())
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		s.Values, s.Error = nil, err.Error()
	}
	if err := r.store.sample(s); err != nil {
		return err
	}
	r.Progress.Sample(s)
	return nil
}

// errEnough ends a client that is of no more use.
var errEnough = errors.New("all flows were there")

// memory reads the memory twice, without and with flows.
func (b *testbed) memory(ctx context.Context, job experiment.Job) (map[cell.Metric]float64, error) {
	select { // some give back after a second what only starting up took
	case <-time.After(idleFor):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	idle, err := settledMemory(ctx, b.Programs())
	if err != nil {
		return nil, err
	}
	p := b.Pairs[0]
	s, err := b.serve(ctx, 0, engineCleat, nil)
	if err != nil {
		return nil, err
	}
	var loaded host.ProcMemory
	flows := client{
		pair: p,
		args: []string{string(traffic.RR), p.Dial.String(), "--json", "--start-on-stdin",
			"--streams", strconv.Itoa(job.Cell.Streams), "--control", "unix:" + s.control},
		timeout: graceTime + time.Duration(job.Cell.Streams)*gracePerStream,
		ready: func(ctx context.Context) (time.Time, error) {
			if loaded, err = settledMemory(ctx, b.Programs()); err != nil {
				return time.Time{}, err
			}
			return time.Time{}, errEnough
		},
	}
	if _, err := flows.run(ctx); !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("open %d flows: %w", job.Cell.Streams, err)
	}
	return map[cell.Metric]float64{
		cell.MemoryIdle:  float64(idle.Resident),
		cell.MemoryAnon:  float64(idle.Anonymous),
		cell.MemoryFlows: float64(loaded.Resident-idle.Resident) * 1000 / float64(job.Cell.Streams),
	}, nil
}

// When the memory of programs counts as settled: a program that was just started
// may have helpers that end soon, and one with new flows still answers them.
const (
	memoryEvery   = 50 * time.Millisecond
	memoryAlike   = 3         // readings in a row
	memoryWithin  = 256 << 10 // bytes
	memoryTimeout = 3 * time.Second
	idleFor       = 2 * time.Second // how long a program has had nothing to do when it counts as idle
)

// settledMemory reads the programs' memory until it no longer changes; what does
// not settle in time is taken as it is then.
func settledMemory(ctx context.Context, pids []int) (host.ProcMemory, error) {
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	until := time.Now().Add(memoryTimeout)
	var first int64 // of those alike, resident
	for alike := 0; ; {
		now, err := host.TreeMemory(pids...)
		if err != nil {
			return now, err
		}
		if alike == 0 || max(now.Resident-first, first-now.Resident) > memoryWithin {
			first, alike = now.Resident, 0
		}
		if alike++; alike == memoryAlike || time.Now().After(until) {
			return now, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return now, context.Cause(ctx)
		}
	}
}
