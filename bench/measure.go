package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/host"
	"cleat/traffic"
)

// How long before the common start clients are launched: enough for all of
// them to be running and connected on a small machine. A client that is later
// than that starts late, and its result says so.
const (
	leadBase    = 60 * time.Millisecond
	leadPerPair = 12 * time.Millisecond
)

// Beyond its duration a measurement may take this long: connection set-up,
// datagrams in flight, results.
const graceTime = 6 * time.Second

// measure takes one sample. What goes wrong is in the sample.
func (r *run) measure(ctx context.Context, b *bed, job experiment.Job) cell.Sample {
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Started: time.Now()}
	clients, window, err := r.prepare(ctx, b, job)
	if err != nil {
		s.Error = err.Error()
		return s
	}
	meter := make(chan metered, 1)
	go func() { meter <- window.meter(ctx) }()
	results, err := runAll(ctx, clients)
	cpu := <-meter
	s.CPU = cpu.CPU
	if err = errors.Join(err, cpu.err); err != nil {
		s.Error = err.Error()
		return s
	}
	if err := collect(&s, results); err != nil {
		s.Error = err.Error()
		return s
	}
	s.Bad = disturbed(s, len(r.cpus), job)
	return s
}

// prepare starts the servers that are not there yet and says what the clients
// are to do, and when.
func (r *run) prepare(ctx context.Context, b *bed, job experiment.Job) ([]client, window, error) {
	n := min(job.Cell.Pairs, len(b.Pairs))
	servers := make([]*server, n)
	for i := range n {
		_, cpus := place(job.Cell.Placement, i, r.cpus)
		s, err := b.serve(ctx, i, job.Cell.Engine, cpus)
		if err != nil {
			return nil, window{}, err
		}
		servers[i] = s
	}
	start := time.Now().Add(leadBase + time.Duration(n)*leadPerPair)
	w := window{start, start.Add(job.Work.Duration)}
	clients := make([]client, n)
	for i := range clients {
		cpus, _ := place(job.Cell.Placement, i, r.cpus)
		clients[i] = client{
			pair:    b.Pairs[i],
			args:    arguments(job, b.Pairs[i], servers[i], start),
			cpus:    cpus,
			timeout: time.Until(w.to) + graceTime + job.Work.Duration,
		}
	}
	return clients, w, nil
}

// runAll runs the clients at once. The first error stops the others.
func runAll(ctx context.Context, clients []client) ([]traffic.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]traffic.Result, len(clients))
	var running sync.WaitGroup
	var once sync.Once
	var first error
	for i, c := range clients {
		running.Go(func() {
			var err error
			if results[i], err = c.run(ctx); err != nil {
				once.Do(func() { first = err; cancel(err) })
			}
		})
	}
	running.Wait()
	return results, first
}

// window is the time in which the clients work.
type window struct{ from, to time.Time }

type metered struct {
	cell.CPU
	err error
}

// meter reads the machine's processor time over the window.
func (w window) meter(ctx context.Context) metered {
	if !sleepUntil(ctx, w.from) {
		return metered{}
	}
	m, err := host.StartCPU(host.Tree{})
	if err != nil {
		return metered{err: err}
	}
	sleepUntil(ctx, w.to)
	cpu, err := m.Stop(0)
	return metered{cpu, err}
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// collect turns the results of all pairs into the sample's values: rates add
// up, latencies merge, loss is that of all datagrams together.
func collect(s *cell.Sample, results []traffic.Result) error {
	v := map[cell.Metric]float64{}
	var lost, sent uint64
	var histograms []string
	warned := map[string]bool{}
	for _, res := range results {
		switch s.Work {
		case experiment.TCP:
			v[cell.Throughput] += res.BitsPerSecond
		case experiment.UDP:
			v[cell.Throughput] += res.BitsPerSecond
			lost, sent = lost+res.Lost, sent+res.PacketsSent
		case experiment.Packets:
			v[cell.Packets] += res.PacketsPerSecond
			lost, sent = lost+res.Lost, sent+res.PacketsSent
		case experiment.CRR:
			v[cell.Connections] += res.TransactionsPerSecond
		}
		if res.Latency != "" {
			histograms = append(histograms, res.Latency)
		}
		s.Lag = max(s.Lag, res.LagP99)
		for _, text := range res.Warnings {
			if !warned[text] {
				warned[text] = true
				s.Warnings = append(s.Warnings, text)
			}
		}
	}
	if sent > 0 {
		v[cell.Loss] = float64(lost) / float64(sent)
	}
	s.Values = v
	if s.Work == experiment.CRR || len(histograms) == 0 {
		return nil
	}
	merged, err := traffic.MergeLatency(histograms...)
	if err != nil {
		return fmt.Errorf("merge latencies: %w", err)
	}
	for metric, percentile := range map[cell.Metric]float64{cell.LatencyP50: 50, cell.LatencyP99: 99, cell.LatencyP999: 99.9} {
		v[metric] = float64(merged.ValueAtQuantile(percentile))
	}
	s.Latency, err = traffic.EncodeLatency(merged)
	return err
}

// Limits beyond which a sample does not count.
const (
	maxForeignCores = 0.15 // of one processor, by processes that are not ours; sampled accounting can't see less
	maxStealShare   = 0.10 // of the machine, by the hypervisor
	maxLagShare     = 0.5  // of the median latency, by which the generator may be late
)

// disturbed says why a sample does not count; "" if it does.
func disturbed(s cell.Sample, cpus int, job experiment.Job) string {
	if s.CPU.Wall <= 0 {
		return "the processor time could not be read"
	}
	if foreign := s.CPU.Foreign / s.CPU.Wall; foreign > maxForeignCores && job.Cell.Network != "host-loopback" {
		return fmt.Sprintf("other programs used %.2f processors", foreign)
	}
	if steal := s.CPU.Steal / s.CPU.Wall / float64(cpus); steal > maxStealShare {
		return fmt.Sprintf("the hypervisor took %.0f %% of the machine", steal*100)
	}
	if p50 := s.Values[cell.LatencyP50]; p50 > 0 && float64(s.Lag) > maxLagShare*p50 {
		return fmt.Sprintf("the generator itself was %s late", s.Lag)
	}
	return ""
}
