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
	// hedgeAfter is the time after which a further server is asked. Resolvers seldom need
	// longer, while lost packets and dead servers are common; clients ask again after 5
	// s.
	hedgeAfter = 800 * time.Millisecond
	// deferNegative is how long a later server's negative answer waits for an earlier
	// server, which may know better.
	deferNegative = 1500 * time.Millisecond
	// maxTries limits the tries for one query, over all servers.
	maxTries = 6
	// maxDeadline is the longest time for a query, whatever resolv.conf says: the client
	// is gone by then.
	maxDeadline = 20 * time.Second
)

// errNoServer means that Config.Skip excludes every server.
var errNoServer = errors.New("every server would cause a loop")

// transport is how a query is sent.
type transport struct {
	stream bool // fetch an answer that does not fit a datagram over TCP
	tcp    bool // send the query over TCP at once
}

// exchange asks the servers and returns the answer unchanged, with the id of our query.
// If no server answered, the error says why.
//
// b holds the bytes of this answer and of others that were not chosen.
func (f *Forwarder) exchange(ctx context.Context, b *account, q *question, stream bool) ([]byte, answer, error) {
	p := f.servers.plan(time.Now())
	if len(p.servers) == 0 {
		return nil, answer{}, errNoServer
	}
	for _, server := range p.probe {
		f.spawn(func() { f.probe(b.budget, server, q, transport{stream, p.tcp}) })
	}
	ctx, cancel := context.WithTimeout(ctx, p.deadline)
	e := &exchange{f: f, b: b, p: p, results: make(chan try, p.tries), waiting: make([]int, len(p.servers))}
	defer e.tries.Wait()
	defer cancel()
	start := func() { e.start(ctx, q, transport{stream, p.tcp}) }
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

// probe asks a server that has not answered recently whether it does now.
func (f *Forwarder) probe(p *budget, server netip.AddrPort, q *question, w transport) {
	select {
	case p.retries <- struct{}{}:
	default:
		return
	}
	defer func() { <-p.retries }()
	ctx, cancel := context.WithTimeout(f.ctx, hedgeAfter)
	defer cancel()
	b := account{budget: p}
	defer b.settle(0)
	if t := f.ask(ctx, &b, server, q, w); t.err == nil {
		f.servers.answered(server)
	}
}

// exchange is one query in progress.
type exchange struct {
	f       *Forwarder
	b       *account
	p       plan
	started int
	tries   sync.WaitGroup
	results chan try
	waiting []int // unfinished tries, by rank

	best     *try // the answer to pass on
	held     *try // a negative answer that an earlier server may overrule
	refusal  *try // the first answer of a server that cannot help
	failures []error
	silent   bool // some try got no answer at all: asking again may help
}

// start asks the next server in turn, unless all tries are used up or too many are in
// progress.
func (e *exchange) start(ctx context.Context, q *question, w transport) {
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

// hopeless reports whether no try is unfinished and another would not help.
func (e *exchange) hopeless() bool {
	if slices.Max(e.waiting) > 0 || e.started < len(e.p.servers) {
		return false
	}
	return e.started >= e.p.tries || !e.silent
}

// take processes the outcome of a try and reports whether it settles the query.
func (e *exchange) take(t try) bool {
	var refused errServer
	switch {
	case t.err == nil:
		e.f.servers.answered(t.server)
		if t.ans.records || t.ans.truncated {
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
	default: // not the server's fault, such as too many open files
		e.silent = true
	}
	if t.err != nil {
		e.failures = append(e.failures, fmt.Errorf("ask %s: %w", t.server, t.err))
	}
	// A server earlier than that of the held answer may overrule it.
	return e.held != nil && !slices.ContainsFunc(e.waiting[:e.held.rank], func(n int) bool { return n > 0 })
}

// end returns the answer, and records a miss for the servers that were overtaken. If no
// server answered in time, all of them were. The end of the Forwarder counts against no
// server.
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
