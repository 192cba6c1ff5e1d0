package traffic

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// warmUp is the round that neither end counts; counted rounds follow it.
const warmUp = 1

// runUDP serves rounds until the client stops.
func (t *session) runUDP(ctx context.Context) error {
	for {
		m, err := t.far.next(ctx)
		switch {
		case err != nil:
			return clientEnded(err)
		case m.Kind == kindStop:
			return nil
		case m.Kind == kindStart && t.params.Reverse:
			return t.sendUDP(ctx, m.Round)
		case m.Kind == kindStart:
			for _, f := range t.greeted() {
				f.begin(m.Round)
			}
			err = t.far.send(message{Kind: kindStarted, Round: m.Round})
		case m.Kind == kindSent && m.Report != nil:
			flows := t.greeted()
			gap := t.came.longest()
			settle(ctx, flows, m.Report.Packets, m.Grace)
			r := tallies(flows)
			r.Buffer, r.Gap = t.granted, gap
			err = t.far.send(message{Kind: kindReport, Round: m.Round, Report: &r})
		}
		if err != nil {
			return clientEnded(err)
		}
	}
}

// greeted returns the flows that have arrived so far.
func (t *session) greeted() []*flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	var flows []*flow
	for _, f := range t.flows {
		if f != nil {
			flows = append(flows, f)
		}
	}
	return flows
}

// sendUDP is the server's part of a reversed test.
func (t *session) sendUDP(ctx context.Context, round uint16) error {
	if err := t.far.send(message{Kind: kindStarted, Round: round}); err != nil {
		return clientEnded(err)
	}
	ctx2, release := t.stoppable(ctx)
	plan := blastPlan{
		round: round, size: t.params.MessageBytes, bitsPerSecond: t.params.Rate, gso: t.params.GSO,
		omit: t.params.Omit, duration: t.params.Duration,
	}
	r, err := plan.send(ctx2, t.greeted())
	stopped := ctx2.Err() != nil
	release()
	if err != nil {
		return err
	}
	if err := t.far.send(message{Kind: kindSent, Round: round, Report: &r}); err != nil || stopped {
		return clientEnded(err)
	}
	return t.untilStop(ctx)
}

const (
	leastGrace   = 100 * time.Millisecond // silence; longer than a hiccup of a scheduler or a queue
	longestGrace = 3 * time.Second        // 4 MB of socket buffer at 10 Mbit/s
	settleCheck  = 5 * time.Millisecond
)

// settle waits until everything that was sent has arrived, nothing has arrived for the
// grace time, or ctx ends.
func settle(ctx context.Context, flows []*flow, sent uint64, grace time.Duration) {
	grace = min(max(grace, leastGrace), longestGrace)
	tick := time.NewTicker(settleCheck)
	defer tick.Stop()
	began := nanos()
	progress, before := began, uint64(0)
	for {
		got := arrived(flows)
		now := nanos()
		if got != before {
			progress, before = now, got
		}
		if got >= sent || time.Duration(now-progress) >= grace || time.Duration(now-began) >= longestGrace {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func arrived(flows []*flow) uint64 {
	var sum uint64
	for _, f := range flows {
		f.mu.Lock()
		sum += f.tally.packets
		f.mu.Unlock()
	}
	return sum
}

// tallies adds up the counts of the flows. Jitter is the mean over the flows.
func tallies(flows []*flow) report {
	var r report
	var first, last, jitter int64
	active := int64(0)
	for _, f := range flows {
		f.mu.Lock()
		t := f.tally
		f.mu.Unlock()
		r.Bytes += t.bytes
		r.EarlyBytes += t.early
		r.EarlyTime = f.early
		r.Packets += t.packets
		r.Unique += t.track.unique
		r.Reordered += t.track.reordered
		r.Duplicated += t.track.duplicated
		if t.packets == 0 {
			continue
		}
		if active == 0 || t.first < first {
			first = t.first
		}
		last = max(last, t.last)
		jitter += int64(t.track.jitter)
		active++
	}
	if active > 0 {
		r.Duration = time.Duration(last - first)
		r.EarlyTime = min(r.EarlyTime, r.Duration)
		r.Jitter = time.Duration(jitter / active)
	}
	return r
}

// blastPlan is a round of datagrams on several flows.
type blastPlan struct {
	round         uint16
	size          int
	bitsPerSecond float64 // of all flows; 0 means as fast as possible
	gso           bool
	omit          time.Duration
	duration      time.Duration
	opened        func() // called when counting begins; may be nil
}

// send runs the round and returns what was sent in the counted part.
func (p blastPlan) send(ctx context.Context, flows []*flow) (report, error) {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	if p.omit > 0 {
		warm := p
		warm.round, warm.duration = warmUp, p.omit
		if _, err := warm.once(flows, &stop); err != nil {
			return report{}, err
		}
	}
	if p.opened != nil {
		p.opened()
	}
	return p.once(flows, &stop)
}

func (p blastPlan) once(flows []*flow, stop *atomic.Bool) (report, error) {
	if len(flows) == 0 {
		return report{}, ErrNoDatagrams
	}
	start := nanos()
	until := start + int64(p.duration)
	blasts := make([]*blast, len(flows))
	var wg sync.WaitGroup
	for i, f := range flows {
		b := &blast{
			flow: f, round: p.round, size: p.size, gso: p.gso, start: start, until: until, stop: stop,
			rate: p.bitsPerSecond / float64(8*p.size) / float64(len(flows)),
		}
		blasts[i] = b
		wg.Go(b.run)
	}
	wg.Wait()
	r := report{Duration: time.Duration(nanos() - start), Partial: stop.Load()}
	lag := newLatency()
	for _, b := range blasts {
		if b.lastErr != nil {
			return report{}, b.lastErr
		}
		r.Packets += b.sent.Load()
		lag.Merge(b.lag)
	}
	r.Bytes = r.Packets * uint64(p.size)
	r.LagP99 = time.Duration(lag.ValueAtQuantile(99))
	return r, nil
}
