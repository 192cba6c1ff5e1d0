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
	"cleat/traffic"
)

// memory measures the memory of a network's programs: idle, on a new network, and
// with the job's number of flows, each established and after its first bytes.
func (r *run) memory(ctx context.Context, job experiment.Job, at position) error {
	s := newSample(job, at)
	n, err := wiring.Build(ctx, wiring.Config{Spec: specOf(job), Pairs: 1, Scratch: r.Scratch})
	if isAbsence(err) {
		return r.absent(ctx, job, err)
	}
	if err == nil {
		b := &testbed{Network: n, scratch: r.Scratch, job: job, servers: make([]*server, len(n.Pairs))}
		s.Values, err = b.memory(ctx, job)
		err = errors.Join(err, b.close())
	}
	if err != nil {
		s.Values, s.Error = nil, err.Error()
	}
	return r.record(ctx, s)
}

// memory reads the memory without flows, and with them.
func (b *testbed) memory(ctx context.Context, job experiment.Job) (map[cell.Metric]float64, error) {
	sleepUntil(ctx, time.Now().Add(idleAfter)) // some programs return the memory of their start only after a second
	idle, err := settledMemory(ctx, b.programMemory)
	if err != nil {
		return nil, err
	}
	p := b.Pairs[0]
	s, err := b.serve(ctx, 0, engineCleat, nil)
	if err != nil {
		return nil, err
	}
	var loaded host.ProcMemory
	measured := errors.New("all flows were measured") // stops the client
	flows := client{
		pair: p,
		args: []string{string(traffic.RR), p.Dial.String(), "--json", "--start-on-stdin",
			"--streams", strconv.Itoa(job.Cell.Streams), "--control", "unix:" + s.control},
		timeout: graceTime + time.Duration(job.Cell.Streams)*gracePerStream,
		ready: func(ctx context.Context) (time.Time, error) {
			if loaded, err = settledMemory(ctx, b.programMemory); err != nil {
				return time.Time{}, err
			}
			return time.Time{}, measured
		},
	}
	if _, err := flows.run(ctx); !errors.Is(err, measured) {
		return nil, fmt.Errorf("open %d flows: %w", job.Cell.Streams, err)
	}
	return map[cell.Metric]float64{
		cell.MemoryIdle:  float64(idle.Resident),
		cell.MemoryAnon:  float64(idle.Anonymous),
		cell.MemoryFlows: float64(loaded.Resident-idle.Resident) * 1000 / float64(job.Cell.Streams),
	}, nil
}

// Memory counts as settled after memoryReadings in a row that differ by at most
// memoryTolerance. A program that was just started may have helpers that end soon,
// and one with new flows still answers them.
const (
	memoryInterval  = 50 * time.Millisecond
	memoryReadings  = 3
	memoryTolerance = 256 << 10 // bytes
	memoryTimeout   = 3 * time.Second
	idleAfter       = 2 * time.Second // without work, after which a program counts as idle
)

func (b *testbed) programMemory() (host.ProcMemory, error) { return host.TreeMemory(b.Programs()...) }

// settledMemory reads programs' memory until it has settled, or returns the last reading
// after memoryTimeout.
func settledMemory(ctx context.Context, read func() (host.ProcMemory, error)) (host.ProcMemory, error) {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	deadline := time.Now().Add(memoryTimeout)
	var first int64 // resident bytes of the first equal reading
	for equal := 0; ; {
		now, err := read()
		if err != nil {
			return now, err
		}
		if equal == 0 || max(now.Resident-first, first-now.Resident) > memoryTolerance {
			first, equal = now.Resident, 0
		}
		if equal++; equal == memoryReadings || time.Now().After(deadline) {
			return now, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return now, context.Cause(ctx)
		}
	}
}
