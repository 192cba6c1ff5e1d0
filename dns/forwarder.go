package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/dnsname"
	"cleat/internal/ledger"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/singleflight"
)

const (
	defaultQueries = 128
	// waitingFactor limits the queries that wait for others to end, as a multiple of
	// Config.Queries.
	waitingFactor = 4
	// maxConversations limits the conversations over UDP. A guest that sends 1,000
	// queries a second, each from its own port, has 500 plus those that wait for answers.
	maxConversations = 4096
	// maxStreams limits the conversations over TCP, which cost a goroutine and a buffer
	// each.
	maxStreams = 512
)

// nat64Name has IPv6 addresses where the network has a NAT64 (RFC 7050). Only these are
// looked up: its IPv4 addresses are known, and would pass for half an answer if the other
// query failed.
const nat64Name = "ipv4only.arpa"

// Config configures a Forwarder. The zero Config uses the resolvers in /etc/resolv.conf.
type Config struct {
	// ResolvConf opens the host's resolv.conf. It is called repeatedly to notice changes.
	// nil means /etc/resolv.conf. A sealed process provides a function that can still
	// open the file.
	ResolvConf func() (io.ReadCloser, error)
	// Servers, if not nil, replace those in resolv.conf.
	Servers []netip.AddrPort
	// Skip, if not nil, reports whether a server must not be asked: a server that sends its
	// own queries to this Forwarder would cause a loop. If it leaves no server, queries get
	// SERVFAIL. It is called before each query, and must be safe for concurrent use.
	Skip func(server netip.AddrPort) bool
	// Names are answered locally with these addresses. Names are in lower case without a
	// final dot.
	Names map[string][]netip.Addr
	// Learn, if not nil, receives the addresses of an answer before the guest sees it,
	// with the name that the guest asked for (lower case, no final dot). It must be safe
	// for concurrent use.
	Learn func(name string, addrs []netip.Addr, ttl time.Duration)
	// MayAsk, if not nil, reports whether a name may be queried; other names do not exist
	// (NXDOMAIN). It must be safe for concurrent use.
	MayAsk func(name string) bool
	// Dial opens a connected socket to a server; network is "udp" or "tcp". nil means an
	// ordinary socket.
	Dial func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)
	// Queries limits the queries in progress and, with half as many again, their
	// descriptors. 0 means 128.
	Queries int
	// Ledger is charged for the guest's conversations and queries. nil grants everything.
	Ledger *ledger.Ledger
}

// Forwarder answers queries. Create one with New. Its methods are safe for concurrent
// use.
type Forwarder struct {
	cfg      Config
	servers  *servers
	buffers  sync.Pool // *[udpBuffer]byte
	guest    *budget
	own      *budget            // for Lookup
	inFlight singleflight.Group // deduplicates the guest's queries, by key

	ctx context.Context // ends when Run ends
	end context.CancelFunc

	mu      sync.Mutex
	ended   bool
	udp     map[conversation]struct{}
	tcp     map[conversation]struct{}
	waiting int // queries, including those in progress
	wg      sync.WaitGroup

	stats struct {
		questions, malformed, answers, failed, denied, dropped, forged atomic.Uint64
	}
}

// New validates the configuration and reads resolv.conf. An unreadable resolv.conf is not
// an error, because it may appear later. New starts nothing.
func New(cfg Config) (*Forwarder, error) {
	for _, s := range cfg.Servers {
		if !s.IsValid() || s.Port() == 0 {
			return nil, fmt.Errorf("configure DNS: server %q: want an address and a port", s)
		}
	}
	for name, addrs := range cfg.Names {
		if _, err := dnsmessage.NewName(name + "."); err != nil || name != dnsname.Of(name) {
			return nil, fmt.Errorf("configure DNS: name %q: want lower case and no final dot", name)
		}
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" }) {
			return nil, fmt.Errorf("configure DNS: name %q: want addresses without zone", name)
		}
	}
	if cfg.Queries < 0 {
		return nil, fmt.Errorf("configure DNS: queries %d: want 1 or more", cfg.Queries)
	}
	cfg.Queries = cmp.Or(cfg.Queries, defaultQueries)
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, server.String())
		}
	}
	f := &Forwarder{
		cfg:     cfg,
		servers: newServers(cfg),
		guest:   newBudget(cfg.Ledger, cfg.Queries, (cfg.Queries+1)/2),
		own:     newBudget(nil, ownQueries, ownRetries),
		udp:     map[conversation]struct{}{},
		tcp:     map[conversation]struct{}{},
	}
	f.buffers.New = func() any { return new([udpBuffer]byte) }
	f.ctx, f.end = context.WithCancel(context.Background())
	return f, nil
}

// Run serves until ctx ends, and returns ctx's error. It then ends all conversations and
// returns when the last query is finished. Queries before Run are served, queries after
// it are not.
func (f *Forwarder) Run(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	f.ended = true
	udp, tcp := f.udp, f.tcp
	f.udp, f.tcp = nil, nil
	f.mu.Unlock()
	f.end()
	for _, talks := range []map[conversation]struct{}{udp, tcp} {
		for t := range talks {
			t.end()
		}
	}
	f.wg.Wait()
	return ctx.Err()
}

type conversation interface{ end() }

// join charges for a conversation and adds it to others. It reports whether the limits
// permit that.
func (f *Forwarder) join(t conversation, others *map[conversation]struct{}, most int, cost ledger.Cost) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || len(*others) >= most || !f.guest.ledger.Charge(cost) {
		f.stats.dropped.Add(1)
		return false
	}
	(*others)[t] = struct{}{}
	return true
}

func (f *Forwarder) leave(t conversation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.udp, t)
	delete(f.tcp, t)
}

// Packets opens a conversation for a UDP flow: each Write is a query and does not block,
// each Read returns an answer, and io.EOF marks the end. It is meant for Verdict.Conn. It
// returns nil if there are too many conversations or Run has ended.
func (f *Forwarder) Packets() net.Conn {
	c := &packets{f: f}
	c.news.L = &c.mu
	c.linger = time.AfterFunc(streamIdle, c.idle)
	if !f.join(c, &f.udp, maxConversations, packetsCost) {
		c.linger.Stop()
		return nil
	}
	return c
}

// Stream opens a conversation for a TCP connection (RFC 7766). It returns nil as Packets
// does.
func (f *Forwarder) Stream() net.Conn {
	guest, ours := net.Pipe()
	c := &stream{f: f, conn: ours, turn: make(chan struct{}, 1)}
	if !f.join(c, &f.tcp, maxStreams, streamCost) {
		return nil
	}
	end := func() { f.leave(c); f.guest.ledger.Refund(streamCost) }
	if !f.spawn(func() { c.serve(); end() }) {
		end()
		return nil
	}
	return &guestStream{guest, c}
}

// spawn starts a goroutine that Run waits for.
func (f *Forwarder) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.wg.Go(do)
	return true
}

// Learned is what an answer says about a name. The zero value is nothing.
type Learned struct {
	Name  string // as queried, in lower case and without the final dot
	Addrs []netip.Addr
	TTL   time.Duration // for which the addresses are valid
}

// LengthBytes is the size of the length that precedes a message over TCP (RFC 1035 section
// 4.2.2).
const LengthBytes = 2

// Submit is for a server with sockets of its own, which serves several clients: a
// conversation of Packets would cost it a goroutine for each client, and Config.Learn does
// not know the client.
//
// Submit copies one message and reports whether the limits permit it. If so, done is called
// once, from another goroutine, with the answer behind its length (LengthBytes), or with nil
// if there is none: a stream must then be closed. The frame is valid until done returns.
// done may block: it delays no other query. Run returns after done.
func (f *Forwarder) Submit(msg []byte, stream bool, done func(frame []byte, l Learned)) bool {
	return f.submit(msg, stream, func(frame []byte, l Learned) {
		defer f.guest.release(len(frame))
		done(frame, l)
	})
}

// submit copies a query and reports whether the limits permit it. If so, done is called
// once with the answer including its length prefix, or nil; done must release the bytes
// of both.
func (f *Forwarder) submit(msg []byte, stream bool, done func([]byte, Learned)) bool {
	cost := questionCost
	cost.Bytes += len(msg)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.waiting >= waitingFactor*f.cfg.Queries || !f.guest.ledger.Charge(cost) {
		f.stats.dropped.Add(1)
		return false
	}
	f.waiting++
	msg = slices.Clone(msg)
	f.wg.Go(func() {
		defer f.guest.ledger.Refund(cost)
		var answer []byte
		var l Learned
		select {
		case f.guest.slots <- struct{}{}:
			answer, l = f.answerFrame(msg, stream)
			<-f.guest.slots
		case <-f.ctx.Done():
		}
		f.mu.Lock()
		f.waiting--
		f.mu.Unlock()
		done(answer, l)
	})
	return true
}

// answerFrame returns the answer to a message with its length prefix, and holds its bytes.
// It returns nil if there is no answer.
func (f *Forwarder) answerFrame(msg []byte, stream bool) ([]byte, Learned) {
	b := account{budget: f.guest}
	frame, l := f.answer(&b, msg, stream)
	if !b.settle(len(frame)) {
		f.stats.dropped.Add(1)
		return nil, Learned{}
	}
	return frame, l
}

// answer processes one message of the guest. It returns nil if there is no answer.
func (f *Forwarder) answer(b *account, msg []byte, stream bool) ([]byte, Learned) {
	q, err := parseQuestion(msg)
	var code rcodeError
	switch {
	case errors.As(err, &code):
		f.stats.malformed.Add(1)
		return framed(q.reply(dnsmessage.RCode(code))), Learned{}
	case err != nil:
		f.stats.malformed.Add(1)
		return nil, Learned{}
	}
	f.stats.questions.Add(1)
	if addrs, ours := f.cfg.Names[q.name]; ours {
		return framed(q.synthetic(addrs)), f.learn(Learned{q.name, addrs, syntheticTTL * time.Second})
	}
	if f.cfg.MayAsk != nil && !f.cfg.MayAsk(q.name) {
		f.stats.denied.Add(1)
		return framed(q.reply(dnsmessage.RCodeNameError)), Learned{}
	}
	got := f.resolve(&q, stream)
	defer got.release()
	fits := stream || len(got.raw) <= q.udpBytes
	switch {
	case errors.Is(got.err, errLimit), got.err == nil && fits && !b.hold(LengthBytes+len(got.raw)):
		f.stats.dropped.Add(1)
		return framed(q.reply(dnsmessage.RCodeServerFailure)), Learned{}
	case got.err != nil:
		f.stats.failed.Add(1)
		return framed(q.reply(dnsmessage.RCodeServerFailure)), Learned{}
	}
	l := f.learn(Learned{q.name, got.ans.addrs, got.ans.ttl})
	f.stats.answers.Add(1)
	if !fits {
		return framed(q.truncated(got.raw)), l
	}
	return q.frame(got.raw), l
}

// resolved is the servers' answer.
type resolved struct {
	raw     []byte
	ans     answer
	err     error
	release func() // refunds raw, once; whoever copies raw holds the copy's bytes
}

// resolve asks the servers, once for all identical queries at a time: each further
// exchange would give another chance to somebody who guesses ports and ids (RFC 5452
// section 5).
func (f *Forwarder) resolve(q *question, stream bool) resolved {
	v, _, _ := f.inFlight.Do(q.key(stream), func() (any, error) {
		b := &account{budget: f.guest}
		raw, a, err := f.exchange(f.ctx, b, q, stream)
		b.settle(len(raw))
		return resolved{raw, a, err, sync.OnceFunc(func() { b.settle(0) })}, nil
	})
	return v.(resolved)
}

// learn reports l to Config.Learn, and returns it.
func (f *Forwarder) learn(l Learned) Learned {
	if f.cfg.Learn != nil && len(l.Addrs) > 0 {
		f.cfg.Learn(l.Name, l.Addrs, l.TTL)
	}
	return l
}

// Lookup returns the addresses of a name, of both families, and their TTL. It is for the
// helper itself. A name that does not exist has no addresses. It implements policy.Lookup
// and works before Run.
func (f *Forwarder) Lookup(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	name = dnsname.Fold(name)
	if addrs, ours := f.cfg.Names[name]; ours {
		return slices.Clone(addrs), syntheticTTL * time.Second, nil
	}
	full, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, 0, fmt.Errorf("look up %s: %w", name, err)
	}
	if name == nat64Name {
		a, err := f.lookup(ctx, full, dnsmessage.TypeAAAA)
		return a.addrs, a.ttl, err
	}
	types := [2]dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}
	var found [len(types)]answer
	var errs [len(types)]error
	var wg sync.WaitGroup
	for i, typ := range types {
		wg.Go(func() { found[i], errs[i] = f.lookup(ctx, full, typ) })
	}
	wg.Wait()
	addrs := slices.Concat(found[0].addrs, found[1].addrs)
	if err := errors.Join(errs[:]...); err != nil {
		if len(addrs) > 0 {
			return addrs, 0, nil // half an answer: expire at once, so that the other half is looked up soon
		}
		return nil, 0, err
	}
	for i := range found {
		if len(found[i].addrs) == 0 {
			found[i].ttl = syntheticTTL * time.Second
		}
	}
	return addrs, min(found[0].ttl, found[1].ttl), nil
}

// lookup queries one record type of a name.
func (f *Forwarder) lookup(ctx context.Context, name dnsmessage.Name, typ dnsmessage.Type) (answer, error) {
	select {
	case f.own.slots <- struct{}{}:
		defer func() { <-f.own.slots }()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	b := account{budget: f.own}
	defer b.settle(0)
	q := question{
		header: dnsmessage.Header{RecursionDesired: true},
		q:      dnsmessage.Question{Name: name, Type: typ, Class: dnsmessage.ClassINET},
		name:   plain(name), edns: true, udpBytes: maxUDPAnswer,
	}
	_, a, err := f.exchange(ctx, &b, &q, true)
	if err == nil && a.code != dnsmessage.RCodeSuccess && a.code != dnsmessage.RCodeNameError {
		err = errServer(a.code)
	}
	return a, err
}

// Stats are counters since the start.
type Stats struct {
	Questions uint64 `json:"questions"` // valid queries
	Malformed uint64 `json:"malformed"` // other messages from the guest
	Answers   uint64 `json:"answers"`   // answers passed on
	Failed    uint64 `json:"failed"`    // queries without an answer from any server: SERVFAIL
	Denied    uint64 `json:"denied"`    // queries for names that may not be asked for
	Dropped   uint64 `json:"dropped"`   // queries and conversations over the limits
	Forged    uint64 `json:"forged"`    // messages that claimed to be a server's answer and were not
}

// Stats returns the counters.
func (f *Forwarder) Stats() Stats {
	s := &f.stats
	return Stats{
		Questions: s.questions.Load(), Malformed: s.malformed.Load(), Answers: s.answers.Load(), Failed: s.failed.Load(),
		Denied: s.denied.Load(), Dropped: s.dropped.Load(), Forged: s.forged.Load(),
	}
}
