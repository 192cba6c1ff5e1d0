package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A server that has not answered for so long gets company. Answers that take
	// a resolver longer are rare, a lost packet or a dead server is not; clients
	// ask again after 5 s.
	hedgeAfter = 800 * time.Millisecond
	// A later server's "no such name" waits so long for an earlier server, which
	// may know better.
	deferNegative = 1500 * time.Millisecond
	// Tries of all servers together, for one question.
	maxTries = 6
	// No question takes longer, whatever resolv.conf says: the client is gone.
	maxDeadline = 20 * time.Second
)

// way says how a question is asked.
type way struct {
	stream bool // an answer that does not fit a datagram is fetched by TCP
	tcp    bool // the question goes by TCP at once
}

// exchange asks the servers. The answer is as it came, under an id of ours. The
// error says why no server answered.
//
// The answer, and others that were not chosen, are held by b.
func (f *Forwarder) exchange(ctx context.Context, b *bill, q *question, stream bool) ([]byte, answer, error) {
	p := f.servers.plan(time.Now())
	for _, server := range p.probe {
		f.spawn(func() { f.probe(b.purse, server, q, way{stream, p.tcp}) })
	}
	ctx, cancel := context.WithTimeout(ctx, p.deadline)
	e := &exchange{f: f, b: b, p: p, results: make(chan try, p.tries), waiting: make([]int, len(p.servers))}
	defer e.tries.Wait()
	defer cancel()
	start := func() { e.start(ctx, q, way{stream, p.tcp}) }
	start()
	timer := time.NewTimer(hedgeAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return e.end(ctx)
		case t := <-e.results:
			e.waiting[t.rank]--
			switch {
			case e.take(t), e.hopeless():
				return e.end(ctx)
			case e.held != nil:
				timer.Reset(deferNegative)
			case e.started < len(p.servers):
				start()
				timer.Reset(hedgeAfter)
			}
		case <-timer.C:
			if e.held != nil {
				return e.end(ctx)
			}
			start()
			if e.hopeless() {
				return e.end(ctx)
			}
			timer.Reset(hedgeAfter)
		}
	}
}

// probe asks a server that has not answered lately, to see whether it does now.
func (f *Forwarder) probe(p *purse, server netip.AddrPort, q *question, w way) {
	select {
	case p.retries <- struct{}{}:
	default:
		return
	}
	defer func() { <-p.retries }()
	ctx, cancel := context.WithTimeout(f.ctx, hedgeAfter)
	defer cancel()
	b := bill{purse: p}
	defer b.settle(0)
	if t := f.ask(ctx, &b, server, q, w); t.err == nil {
		f.servers.answered(server)
	}
}

// exchange is one question under way.
type exchange struct {
	f       *Forwarder
	b       *bill
	p       plan
	started int
	tries   sync.WaitGroup
	results chan try
	waiting []int // tries without outcome, by rank

	best     *try // what to pass on
	held     *try // a negative answer that an earlier server may overrule
	refusal  *try // the first answer by which a server said that it can't help
	failures []error
	silent   bool // some failure was no answer at all: asking again may help
}

// start asks the next server in turn, unless all tries are spent, or there are
// too many at once.
func (e *exchange) start(ctx context.Context, q *question, w way) {
	if e.started >= e.p.tries {
		return
	}
	first := e.started == 0
	if !first {
		select {
		case e.b.retries <- struct{}{}:
		default:
			return
		}
	}
	rank := e.started % len(e.p.servers)
	e.started++
	e.waiting[rank]++
	e.tries.Go(func() {
		t := e.f.ask(ctx, e.b, e.p.servers[rank], q, w)
		t.rank = rank
		if !first {
			<-e.b.retries
		}
		e.results <- t
	})
}

// hopeless tells whether nothing is waited for, and nothing is gained by asking
// again.
func (e *exchange) hopeless() bool {
	if slices.Max(e.waiting) > 0 || e.started < len(e.p.servers) {
		return false
	}
	return e.started >= e.p.tries || !e.silent
}

// overrulable tells whether a server earlier than rank may still answer.
func (e *exchange) overrulable(rank int) bool {
	return slices.Max(append(e.waiting[:rank:rank], 0)) > 0
}

// take looks at the outcome of a try and tells whether it settles the matter.
func (e *exchange) take(t try) bool {
	var refused errServer
	switch {
	case t.err == nil:
		e.f.servers.answered(t.server)
		if !t.negative() {
			e.best = &t
			return true
		}
		if e.held == nil || t.rank < e.held.rank {
			e.held = &t
		}
	case errors.As(t.err, &refused):
		e.f.servers.answered(t.server)
		if e.refusal == nil {
			e.refusal = &t
		}
	case errors.Is(t.err, errMalformed), errors.Is(t.err, errForged), errors.Is(t.err, errLimit):
	case errors.Is(t.err, unix.ECONNREFUSED), errors.Is(t.err, unix.EHOSTUNREACH), errors.Is(t.err, unix.ENETUNREACH):
		e.silent = true
		e.f.servers.missed(time.Now(), true, t.server)
	default: // nobody's fault, such as too many open files
		e.silent = true
	}
	if t.err != nil {
		e.failures = append(e.failures, fmt.Errorf("ask %s: %w", t.server, t.err))
	}
	return e.held != nil && !e.overrulable(e.held.rank)
}

// end says what the answer is, and notes who was overtaken: if nobody answered
// in time, everybody was. The end of the Forwarder is nobody's fault.
func (e *exchange) end(ctx context.Context) ([]byte, answer, error) {
	best := e.best
	if best == nil {
		best = e.held
	}
	for rank, n := range e.waiting {
		overtaken := best != nil && rank < best.rank
		if n > 0 && (overtaken || best == nil && errors.Is(ctx.Err(), context.DeadlineExceeded)) {
			e.f.servers.missed(time.Now(), false, e.p.servers[rank])
		}
	}
	switch {
	case best != nil:
		return best.raw, best.ans, nil
	case e.refusal != nil:
		return e.refusal.raw, e.refusal.ans, nil
	case len(e.failures) == 0:
		return nil, answer{}, fmt.Errorf("ask %v: %w", e.p.servers, ctx.Err())
	}
	return nil, answer{}, errors.Join(e.failures...)
}
