package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
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
	// So many messages that are not the answer, on a socket connected to the
	// server, are no accident: the server is asked by TCP then (RFC 5452 section
	// 9.3 has the idea).
	maxForged = 3
)

// smallBuffer is room for the answers that are asked for in practice, with some
// to spare for servers that don't care.
const smallBuffer = 4096

// errServer is an answer by which a server says that it can't help.
type errServer dnsmessage.RCode

func (e errServer) Error() string { return "server answered " + dnsmessage.RCode(e).String() }

// try is the outcome of asking one server once.
type try struct {
	rank   int // of the server: its place in the plan
	server netip.AddrPort
	raw    []byte
	ans    answer
	err    error
}

// negative tells whether the answer says that there is nothing.
func (t *try) negative() bool { return !t.ans.records && !t.ans.truncated }

// exchange asks the servers. The answer is as it came, but for the id. With
// stream, an answer that does not fit a datagram is fetched by TCP. The error
// says why no server answered.
func (f *Forwarder) exchange(ctx context.Context, msg []byte, q *question, stream bool) ([]byte, answer, error) {
	p := f.servers.plan(time.Now())
	for _, server := range p.probe {
		f.spawn(func() { f.probe(server, msg, q, stream, p.tcp) })
	}
	ctx, cancel := context.WithTimeout(ctx, p.deadline)
	e := &exchange{f: f, p: p, results: make(chan try, p.tries), waiting: make([]int, len(p.servers))}
	defer e.tries.Wait()
	defer cancel()
	start := func() { e.start(ctx, msg, q, stream) }
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
func (f *Forwarder) probe(server netip.AddrPort, msg []byte, q *question, stream, tcp bool) {
	select {
	case f.retries <- struct{}{}:
	default:
		return
	}
	defer func() { <-f.retries }()
	ctx, cancel := context.WithTimeout(f.ctx, hedgeAfter)
	defer cancel()
	if t := f.ask(ctx, server, msg, q, stream, tcp); t.err == nil {
		f.servers.answered(server)
	}
}

// exchange is one question under way.
type exchange struct {
	f       *Forwarder
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
func (e *exchange) start(ctx context.Context, msg []byte, q *question, stream bool) {
	if e.started >= e.p.tries {
		return
	}
	first := e.started == 0
	if !first {
		select {
		case e.f.retries <- struct{}{}:
		default:
			return
		}
	}
	rank := e.started % len(e.p.servers)
	e.started++
	e.waiting[rank]++
	e.tries.Go(func() {
		t := e.f.ask(ctx, e.p.servers[rank], msg, q, stream, e.p.tcp)
		t.rank = rank
		if !first {
			<-e.f.retries
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
	case errors.Is(t.err, errMalformed), errors.Is(t.err, errForged):
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

// ask asks one server once: over UDP, and by TCP where resolv.conf, the answer
// or forgers suggest it.
func (f *Forwarder) ask(ctx context.Context, server netip.AddrPort, msg []byte, q *question, stream, tcp bool) try {
	t := try{server: server}
	if !tcp {
		t.raw, t.ans, t.err = f.askUDP(ctx, server, msg, q)
		tcp = errors.Is(t.err, errForged) || t.err == nil && t.ans.truncated && stream
	}
	if tcp {
		t.raw, t.ans, t.err = f.askTCP(ctx, server, msg, q)
	}
	if t.err == nil && slices.Contains(helpless, t.ans.code) {
		t.err = errServer(t.ans.code)
	}
	return t
}

// helpless are the codes by which a server says that another should be asked.
var helpless = []dnsmessage.RCode{dnsmessage.RCodeServerFailure, dnsmessage.RCodeRefused, dnsmessage.RCodeNotImplemented}

// dial opens a socket that is closed, and whose reads end, when ctx ends.
func (f *Forwarder) dial(ctx context.Context, network string, server netip.AddrPort) (net.Conn, func(), error) {
	conn, err := f.cfg.Dial(ctx, network, server)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() { stop(); conn.Close() }, nil
}

// renamed is a copy of a question under an id that nobody can guess.
func renamed(msg []byte, at int) (out []byte, id uint16) {
	out = make([]byte, at+len(msg))
	copy(out[at:], msg)
	rand.Read(out[at : at+2]) // never fails
	return out, binary.BigEndian.Uint16(out[at:])
}

func (f *Forwarder) askUDP(ctx context.Context, server netip.AddrPort, msg []byte, q *question) ([]byte, answer, error) {
	conn, done, err := f.dial(ctx, "udp", server)
	if err != nil {
		return nil, answer{}, err
	}
	defer done()
	out, id := renamed(msg, 0)
	if _, err := conn.Write(out); err != nil {
		return nil, answer{}, err
	}
	pool := &f.small
	if q.udpBytes > smallBuffer {
		pool = &f.large
	}
	buf := pool.Get().(*[]byte)
	defer pool.Put(buf)
	for forged := 0; ; {
		n, err := conn.Read(*buf)
		if err != nil {
			return nil, answer{}, err
		}
		a, err := parseAnswer((*buf)[:n], id, q)
		switch {
		case err == nil:
			return slices.Clone((*buf)[:n]), a, nil
		case errors.Is(err, errForged):
			f.stats.forged.Add(1)
			if forged++; forged >= maxForged {
				return nil, answer{}, err
			}
		default:
			return nil, answer{}, err
		}
	}
}

func (f *Forwarder) askTCP(ctx context.Context, server netip.AddrPort, msg []byte, q *question) ([]byte, answer, error) {
	conn, done, err := f.dial(ctx, "tcp", server)
	if err != nil {
		return nil, answer{}, err
	}
	defer done()
	out, id := renamed(msg, 2)
	binary.BigEndian.PutUint16(out, uint16(len(msg)))
	if _, err := conn.Write(out); err != nil {
		return nil, answer{}, err
	}
	raw, err := readMessage(conn, maxMessage)
	if err != nil {
		return nil, answer{}, err
	}
	a, err := parseAnswer(raw, id, q)
	if err != nil {
		f.stats.forged.Add(1)
	}
	return raw, a, err
}

// readMessage reads a message of at most so many bytes behind its length (RFC
// 1035 section 4.2.2).
func readMessage(r io.Reader, most int) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > most {
		return nil, fmt.Errorf("read message of %d bytes: want at most %d", n, most)
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}
