package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/host"
	"cleat/bench/stats"
	"cleat/lab"
	"cleat/traffic"

	"golang.org/x/sync/errgroup"
)

// All clients begin this long after the last has connected, so that each has read
// the time to begin by then.
const (
	leadBase    = 20 * time.Millisecond
	leadPerPair = time.Millisecond
)

// A measurement may take this much longer than its duration: for starting programs,
// connecting them, datagrams in flight, and results.
const (
	graceTime         = 6 * time.Second
	gracePerPair      = 200 * time.Millisecond // on two processors under load
	gracePerContainer = 2 * time.Second        // of one pair's two, started and removed by their engine
	gracePerStream    = 15 * time.Millisecond  // to open, agree and close
)

// errNoRate: a share of what networks carry is the rate, and none has carried anything.
var errNoRate = errors.New("no network carried a request before the first block, so the rate is not known: give one, e.g. --factor rate=1000")

func (r *run) measure(ctx context.Context, b *testbed, job experiment.Job, s *cell.Sample) error {
	if _, isShare := job.RateShare(); isShare && job.Rate == 0 { // without a rate it would be a closed loop
		return errNoRate
	}
	clients, err := r.prepare(ctx, b, job)
	if err != nil {
		return err
	}
	idle, err := b.idleLatency(ctx, job, clients)
	if err != nil {
		return err
	}
	cross, err := b.competitors(ctx, job)
	if err != nil {
		return err
	}
	own := len(clients)
	clients = append(clients, cross...)
	g := newGate(len(clients), job.Work.Duration)
	g.machines = r.machines.of(job)
	if job.SearchTime() > 0 && g.machines == nil {
		if g.search, err = beginMeter(); err != nil {
			return err
		}
	}
	for i := range clients {
		clients[i].ready = g.wait
	}
	stop := b.play(ctx, g)
	results, err := runAll(ctx, clients)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	cpu := <-g.metered
	s.CPU = cpu.CPU
	results, rivals := results[:own], results[own:]
	if err = errors.Join(cpu.err, collect(s, results)); err != nil {
		s.Values = nil
		return err
	}
	if idle > 0 {
		s.Values[cell.LatencyAdded] = s.Values[cell.LatencyP50] - float64(idle)
	}
	relate(s, job, results)
	if err := b.relateZoo(s, job, rivals); err != nil {
		return err
	}
	if s.Bad.Text != "" { // the links were not what they should be
		return nil
	}
	s.Bad = disturbance(*s, results, len(r.cpus), job)
	if s.Bad.Text == "" {
		s.Bad = disturbedSearch(cpu.search)
	}
	return nil
}

// prepare starts the servers that do not run yet and returns the clients.
func (r *run) prepare(ctx context.Context, b *testbed, job experiment.Job) ([]client, error) {
	clients := make([]client, min(job.Cell.Pairs, len(b.Pairs)))
	var pingers []client
	grace := graceTime + time.Duration(len(clients))*gracePerPair + time.Duration(job.Cell.Streams)*gracePerStream
	if !job.Cell.IsNative() {
		grace += time.Duration(job.Cell.Pairs) * gracePerContainer
	}
	_, isZoo := job.Case()
	for i := range clients {
		clientCPUs, serverCPUs := r.cpusOf(job, i)
		s, err := b.serve(ctx, i, job.Cell.Engine, serverCPUs)
		if err != nil {
			return nil, err
		}
		clients[i] = client{
			pair:    b.Pairs[i],
			args:    arguments(job, b.Pairs[i], s),
			cpus:    clientCPUs,
			timeout: 2*(job.Work.Duration+job.SearchTime()) + grace,
		}
		if job.Work.Kind == experiment.Loaded {
			pingers = append(pingers, clients[i].pinger(job.Work.Duration, s, isZoo))
		}
	}
	return append(clients, pingers...), nil
}

// gate lets all clients begin at one instant, once the last has connected, and
// reads the machine's processor time from that instant on.
type gate struct {
	lead, duration time.Duration
	metered        chan metered
	search         *host.CPUMeter // since before the clients search for a rate; nil: they don't
	machines       *machinePair   // whose processor time it reads; nil: this machine's

	mu      sync.Mutex
	missing int // clients that do not wait yet
	opened  chan struct{}
	at      time.Time
	err     error
}

func newGate(clients int, duration time.Duration) *gate {
	return &gate{
		lead: leadBase + time.Duration(clients)*leadPerPair, duration: duration,
		missing: clients, opened: make(chan struct{}), metered: make(chan metered, 1),
	}
}

// wait returns the time to begin, once every client waits. The last client to
// arrive opens the gate: all others are idle then, so that the processor time that
// they have used so far can be read.
func (g *gate) wait(ctx context.Context) (time.Time, error) {
	g.mu.Lock()
	g.missing--
	if g.missing == 0 {
		g.open(ctx)
	}
	g.mu.Unlock()
	select {
	case <-g.opened:
		return g.at, g.err
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

func (g *gate) open(ctx context.Context) {
	defer close(g.opened)
	var search cell.CPU
	if g.search != nil {
		g.err = g.search.End()
		if g.err == nil {
			search, g.err = g.search.Result()
		}
		if g.err != nil {
			return
		}
	}
	if g.machines != nil {
		g.at = time.Now().Add(g.lead)
		go func() { g.metered <- g.machines.meter(ctx, g.lead, g.duration) }()
		return
	}
	m, err := host.NewCPUMeter(lab.HostProc())
	if err != nil {
		g.err = err
		return
	}
	g.at = time.Now().Add(g.lead)
	go func() {
		result := meter(ctx, m, g.at, g.at.Add(g.duration))
		result.search = search
		g.metered <- result
	}()
}

// runAll runs the clients at once. The first error stops the others.
func runAll(ctx context.Context, clients []client) ([]traffic.Result, error) {
	results := make([]traffic.Result, len(clients))
	running, ctx := errgroup.WithContext(ctx)
	for i, c := range clients {
		running.Go(func() (err error) {
			results[i], err = c.run(ctx)
			return err
		})
	}
	return results, running.Wait()
}

type metered struct {
	cell.CPU
	search cell.CPU // of the search for a rate before; zero: none
	err    error
}

// beginMeter returns a meter that has begun.
func beginMeter() (*host.CPUMeter, error) {
	m, err := host.NewCPUMeter(lab.HostProc())
	if err != nil {
		return nil, err
	}
	return m, m.Begin()
}

// meter reads the machine's processor time between two instants.
func meter(ctx context.Context, m *host.CPUMeter, from, to time.Time) metered {
	sleepUntil(ctx, from)
	err := m.Begin()
	sleepUntil(ctx, to)
	if err = errors.Join(err, m.End()); err != nil {
		return metered{err: err}
	}
	cpu, err := m.Result()
	return metered{CPU: cpu, err: err}
}

func sleepUntil(ctx context.Context, at time.Time) {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// errNothingArrived: no datagram arrived, or no rate of the search stayed within
// the loss bound.
var errNothingArrived = errors.New("no rate was found at which datagrams arrive within the loss bound")

// minOfferedShare is the least share of the offered rate that must be sent for the
// cell to be what its factors say.
const minOfferedShare = 0.95

// collect turns the results of all pairs into the sample's values: rates add up,
// latencies merge, and the loss is that of all datagrams together.
func collect(s *cell.Sample, results []traffic.Result) error {
	v := map[cell.Metric]float64{}
	var lost, sent uint64
	var offered, sentRate float64
	var histograms []string
	var shares []uint64
	warned := map[string]bool{}
	for _, res := range results {
		switch s.Work {
		case experiment.TCP:
			v[cell.Throughput] += res.BitsPerSecond
			shares = append(shares, res.StreamBytes...)
		case experiment.UDP:
			if res.BitsPerSecond == 0 {
				return errNothingArrived
			}
			v[cell.Throughput] += res.BitsPerSecond
			lost, sent = lost+res.Lost, sent+res.PacketsSent
		case experiment.Loaded:
			v[cell.Throughput] += res.BitsPerSecond
			lost, sent = lost+res.Lost, sent+res.Transactions+res.Late+res.Lost+res.PacketsSent
		case experiment.Packets:
			v[cell.Packets] += res.PacketsPerSecond
			lost, sent = lost+res.Lost, sent+res.PacketsSent
		case experiment.CRR:
			v[cell.Connections] += res.TransactionsPerSecond
		}
		offered, sentRate = offered+res.OfferedBitsPerSecond, sentRate+res.SentBitsPerSecond
		if res.Latency != "" {
			histograms = append(histograms, res.Latency)
		}
		s.Lag = max(s.Lag, res.LagP99)
		for _, text := range res.Warnings {
			ofOneSample := strings.HasPrefix(text, traffic.FewTransactions) // percentiles are those of all samples
			if !warned[text] && !ofOneSample {
				warned[text] = true
				s.Warnings = append(s.Warnings, warningOf(text))
			}
		}
	}
	if offered > 0 && sentRate < minOfferedShare*offered {
		s.Warnings = append(s.Warnings, cell.Warning{Code: "slow-sender", Severity: 1 - sentRate/offered, Text: "the sender could not keep up with the offered rate"})
	}
	if sent > 0 {
		v[cell.Loss] = float64(lost) / float64(sent)
	}
	if f := traffic.Fairness(shares); f > 0 {
		v[cell.Fairness] = f
	}
	s.Values = v
	if s.Work == experiment.CRR || len(histograms) == 0 {
		return nil
	}
	merged, err := stats.MergeHistograms(histograms)
	if err != nil {
		return fmt.Errorf("merge latencies: %w", err)
	}
	for _, m := range cell.Percentiles(s.Loop()) {
		percent, _ := m.Percentile()
		v[m] = float64(merged.ValueAtQuantile(percent))
	}
	s.Latency, err = traffic.EncodeLatency(merged)
	return err
}

// warningOf returns a warning of the load generator. The code is its text up to a
// colon without numbers, which differ between samples. The severity is the count that
// the text begins with, if any.
func warningOf(text string) cell.Warning {
	head, _, _ := strings.Cut(text, ":")
	isNumber := func(word string) bool { return strings.ContainsAny(word, "0123456789") }
	code := strings.Join(slices.DeleteFunc(strings.Fields(head), isNumber), " ")
	count, _, _ := strings.Cut(text, " ")
	n, _ := strconv.Atoi(count)
	return cell.Warning{Code: code, Severity: float64(n), Text: text}
}

// Limits beyond which a sample does not count.
const (
	maxForeignCores = 0.15 // of one processor, by processes that are not ours; sampled accounting can't see less
	maxStealShare   = 0.10 // of the machine, by the hypervisor
	maxLagShare     = 0.5  // of the median latency, by which the generator may be late
	maxLateShare    = 0.05 // of the duration, by which a client may begin late
	maxWindowError  = 0.50 // of the duration, by which the window of the processor time may be off: it is used as a rate
)

// disturbedSearch returns why a sample does not count whose search for a rate used that processor time.
func disturbedSearch(cpu cell.CPU) cell.Warning {
	if cpu.Wall > 0 && cpu.Foreign/cpu.Wall > maxForeignCores {
		foreign := cpu.Foreign / cpu.Wall
		return cell.Warning{Code: "foreign-load", Severity: foreign, Text: fmt.Sprintf("other programs used %.2f processors during the search", foreign)}
	}
	return cell.Warning{}
}

// disturbance returns why a sample does not count; the zero Warning if it does.
func disturbance(s cell.Sample, results []traffic.Result, cpus int, job experiment.Job) cell.Warning {
	duration := job.Work.Duration
	var late time.Duration
	for _, res := range results {
		late = max(late, res.StartedLate)
	}
	bad := func(code string, severity float64, format string, args ...any) cell.Warning {
		return cell.Warning{Code: code, Severity: severity, Text: fmt.Sprintf(format, args...)}
	}
	if late > time.Duration(maxLateShare*float64(duration)) {
		return bad("late-client", late.Seconds(), "a client began %s late", late.Round(time.Millisecond))
	}
	if off := math.Abs(s.CPU.Wall - duration.Seconds()); off > maxWindowError*duration.Seconds() {
		return bad("meter", off, "the machine was too busy to read its processor time (%.3f s instead of %.3f s)", s.CPU.Wall, duration.Seconds())
	}
	if foreign := s.CPU.Foreign / s.CPU.Wall; foreign > maxForeignCores && job.Cell.Network != "host-loopback" {
		return bad("foreign-load", foreign, "other programs used %.2f processors", foreign)
	}
	if steal := s.CPU.Steal / s.CPU.Wall / float64(cpus); steal > maxStealShare {
		return bad("steal", steal, "the hypervisor took %.0f %% of the machine", steal*100)
	}
	if p50 := s.Values[cell.LatencyP50]; p50 > 0 && float64(s.Lag) > maxLagShare*p50 {
		return bad("late-generator", float64(s.Lag), "the generator was %s late", s.Lag)
	}
	return cell.Warning{}
}
