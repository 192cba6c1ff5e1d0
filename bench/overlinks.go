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

// overLinks reports whether a cell's network uses several links.
func overLinks(c cell.Cell) bool { return catalog.RoleOf(c.Network) == catalog.Multipath }

// earlyTime is the early part of a measurement over several links: a network that
// learns the properties of its links should have learned them by then.
const earlyTime = 2 * time.Second

// The client that measures round trips, beside a stream and without it.
const (
	pingRate     = 200 // per second, of all sockets together
	pingSockets  = 20  // each waits for its answer: the schedule holds for round trips up to 100 ms
	pingBytes    = 64
	idleDuration = 500 * time.Millisecond
)

// pinger returns a client that measures round trips of datagrams over the pair of c.
func (c client) pinger(duration time.Duration, s *server, isZoo bool) client {
	rate, sockets, patience := pingRate, pingSockets, time.Duration(0)
	if isZoo {
		rate, sockets, patience = zooPingRate, zooPingSockets, zooPingPatience
	}
	c.args = append([]string{experiment.UDPRR, c.pair.Dial.String(), "--json", "--duration", duration.String(), "--start-on-stdin", "--patience", patience.String(),
		"--rate", strconv.Itoa(rate), "--streams", strconv.Itoa(sockets), "--message", strconv.Itoa(pingBytes)}, s.controlFlag()...)
	return c
}

// idleLatency returns the median round trip before the work "loaded" begins; 0 for
// other work.
func (b *testbed) idleLatency(ctx context.Context, job experiment.Job, clients []client) (time.Duration, error) {
	if _, isZoo := job.Case(); isZoo || job.Work.Kind != experiment.Loaded {
		return 0, nil // the zoo's round trips are known
	}
	c := clients[0].pinger(idleDuration, b.servers[0], false)
	c.ready = func(context.Context) (time.Time, error) { return time.Now(), nil }
	r, err := c.run(ctx)
	if err != nil {
		return 0, fmt.Errorf("measure the round trip without load: %w", err)
	}
	return r.P50, nil
}

// play applies the scripted events of the testbed's links (loss, death, flap) from
// the moment the gate opens. stop ends them and waits.
func (b *testbed) play(ctx context.Context, g *gate) (stop func() error) {
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

// relate adds to a sample over several links how it compares with the payload that
// the links have room for, how long nothing arrived, and what was lost.
func relate(s *cell.Sample, job experiment.Job, results []traffic.Result) {
	if !overLinks(s.Cell) {
		return
	}
	var early, steady float64
	split := false // the receiver reports the early and the steady part
	for _, r := range results {
		split = split || r.EarlySeconds > 0
		if r.Work != experiment.TCP && !(r.Work == experiment.UDPRR && job.Datagrams()) {
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
	if !split {
		return
	}
	s.Values[cell.Steady] = steady
	from := steadyFrom(job)
	if best, ok := ideal(job, from, whole); ok { // a stalled stream is 0 % of it
		s.Values[cell.SteadyOfIdeal] = steady / best
	}
	if best, ok := ideal(job, 0, min(from, whole)); ok && from == earlyTime {
		s.Values[cell.EarlyOfIdeal] = early / best
	}
}

// steadyFrom returns when the steady part of a measurement begins. The rate of the
// early part is reported only if it is earlyTime long.
func steadyFrom(job experiment.Job) time.Duration { return cmp.Or(job.Work.Steady, earlyTime) }

// offeredRate returns the rate at which the job offers datagrams, in bit/s; 0: none is set.
func offeredRate(job experiment.Job) float64 {
	if c, ok := job.Case(); ok && job.Datagrams() {
		return zooOffered(c)
	}
	rate, _ := job.Offered()
	return rate
}

// ideal returns the payload rate in bit/s that a job's links have room for between
// two moments of its measurement, or the offered rate if it is less. ok is false if
// it can't be computed.
func ideal(job experiment.Job, from, to time.Duration) (bitsPerSec float64, ok bool) {
	c := job.Cell
	if !slices.Contains([]string{experiment.TCP, experiment.UDP, experiment.Loaded}, job.Work.Kind) {
		return 0, false
	}
	room, ok := specOf(job).Multipath().Ideal(multipath.Load{
		Network: c.Network, Datagrams: job.Datagrams(), MessageBytes: c.MessageBytes, MTU: c.MTU,
		IPv6: c.Factors["outer"] == "ipv6", Encrypted: c.Factors["crypto"] == "on", Duplicate: c.Factors["scheduler"] == "duplicate",
	}, multipath.Interval{Whole: job.Work.Duration, From: from, To: to})
	if offered := offeredRate(job); offered > 0 { // no more can arrive than was sent
		room = min(room, offered*float64(max(c.Pairs, 1)))
	}
	return room, ok
}
