package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/multipath"
	"cleat/traffic"
)

// overLinks tells whether a cell's network uses several links.
func overLinks(c cell.Cell) bool { return catalog.RoleOf(c.Network) == catalog.Multipath }

// earlyTime is what of a measurement over several links is told apart: the time
// within which a network that learns what its links are like should have done so.
const earlyTime = 2 * time.Second

// What measures the round trip, beside a stream and without it.
const (
	pingRate  = 200 // a second, of all sockets together
	pingSocks = 20  // each waits for its answer: round trips of up to 100 ms keep to the schedule
	pingBytes = 64
	idlePings = 500 * time.Millisecond
)

// pings are the arguments of a client that asks for round trips by datagrams.
func pings(c client, duration time.Duration, s *server) client {
	c.args = []string{experiment.UDPRR, c.pair.Dial.String(), "--json", "--duration", duration.String(), "--start-on-stdin",
		"--rate", strconv.Itoa(pingRate), "--streams", strconv.Itoa(pingSocks), "--message", strconv.Itoa(pingBytes)}
	if s.control != "" {
		c.args = append(c.args, "--control", "unix:"+s.control)
	}
	return c
}

// beside is the client of the work "loaded" that measures round trips while c
// sends.
func (c client) beside(job experiment.Job, s *server) client { return pings(c, job.Work.Duration, s) }

// idleLatency is the median round trip before the work "loaded" begins; 0 for
// other work.
func (b *testbed) idleLatency(ctx context.Context, job experiment.Job, clients []client) (time.Duration, error) {
	if job.Work.Kind != experiment.Loaded {
		return 0, nil
	}
	c := pings(clients[0], idlePings, b.servers[0])
	c.ready = func(context.Context) (time.Time, error) { return time.Now(), nil }
	r, err := c.run(ctx)
	if err != nil {
		return 0, fmt.Errorf("measure the round trip without load: %w", err)
	}
	return r.P50, nil
}

// play lets happen to the bed's links what the experiment wants, as soon as the
// gate opens. The function it returns ends that, and waits for it.
func (b *testbed) play(ctx context.Context, g *gate) (played func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		select {
		case <-g.opened:
			done <- b.Play(ctx, g.at, g.duration)
		case <-ctx.Done():
			done <- nil
		}
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// relate adds to a sample over several links how it compares with what they have
// room for, and how it came about.
func relate(s *cell.Sample, job experiment.Job, results []traffic.Result) {
	if !overLinks(s.Cell) {
		return
	}
	var early, steady float64
	apart := false // the receiver has told the parts apart
	for _, r := range results {
		apart = apart || r.EarlySeconds > 0
		if r.Work != experiment.TCP {
			s.Values[cell.LostPackets] += float64(r.Lost)
		}
		early, steady = early+r.EarlyBitsPerSecond, steady+r.SteadyBitsPerSecond
		if r.Outage > 0 {
			s.Values[cell.Outage] = max(s.Values[cell.Outage], float64(r.Outage))
		}
	}
	whole := job.Work.Duration
	all, ok := ideal(job, 0, whole)
	if !ok {
		return
	}
	s.Values[cell.Ideal] = all
	s.Values[cell.OfIdeal] = s.Values[cell.Throughput] / all
	if !apart {
		return
	}
	from := steadyFrom(job)
	if best, ok := ideal(job, from, whole); ok { // nothing at all is 0 % of it
		s.Values[cell.SteadyOfIdeal] = steady / best
	}
	if best, ok := ideal(job, 0, min(from, whole)); ok && from == earlyTime {
		s.Values[cell.EarlyOfIdeal] = early / best
	}
}

// steadyFrom is where the part of a measurement begins whose rate is told as
// steady; of what comes before, the rate is told only if it is earlyTime long.
func steadyFrom(job experiment.Job) time.Duration { return cmp.Or(job.Work.Steady, earlyTime) }

// ideal is the payload that a job's links have room for between two moments of
// its measurement, or what is offered should that be less, in bit/s; ok is false
// where that can't be said.
func ideal(job experiment.Job, from, to time.Duration) (bitsPerSec float64, ok bool) {
	c := job.Cell
	if !slices.Contains([]string{experiment.TCP, experiment.UDP, experiment.Loaded}, job.Work.Kind) {
		return 0, false
	}
	room, ok := specOf(job).Multipath().Ideal(multipath.Load{
		Network: c.Network, Datagrams: job.Work.Kind == experiment.UDP, MessageBytes: c.MessageBytes, MTU: c.MTU,
		IPv6: c.Factors["outer"] == "ipv6", Encrypted: c.Factors["crypto"] == "on", Duplicate: c.Factors["scheduler"] == "duplicate",
	}, multipath.Interval{Whole: job.Work.Duration, From: from, To: to})
	if offered, _ := job.Offered(); offered > 0 { // no more can arrive than is sent
		room = min(room, offered*float64(max(c.Pairs, 1)))
	}
	return room, ok
}
