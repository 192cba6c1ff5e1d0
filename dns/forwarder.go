package dns

import (
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
	// Questions that wait for others to end, as a multiple of Config.Queries.
	waitingFactor = 4
	// Conversations at once: a guest that asks 1,000 times a second, from a port
	// of its own each time, has 500 and those that wait for answers.
	maxConversations = 4096
	// Those over TCP cost a goroutine and a buffer each.
	maxStreams = 512
)

// nat64Name has IPv6 addresses where the network has a NAT64 (RFC 7050). Only these are looked up:
// its IPv4 addresses are known, and would pass for half an answer where the question for the
// others had none.
const nat64Name = "ipv4only.arpa"

// Config says whom a Forwarder asks. The zero Config asks the resolvers of
// /etc/resolv.conf.
type Config struct {
	// ResolvConf opens the host's resolv.conf, again and again, to see whether it
	// has changed; nil: /etc/resolv.conf. A sealed process gives a function that
	// can still open it.
	ResolvConf func() (io.ReadCloser, error)
	// Servers are asked in place of resolv.conf's; nil: those.
	Servers []netip.AddrPort
	// Names are answered here, with these addresses: lower case, no final dot.
	Names map[string][]netip.Addr
	// Learn is told the addresses of an answer before the guest sees it, by the
	// name that the guest asked for (lower case, no final dot); nil: nobody is.
	// It is called by several goroutines.
	Learn func(name string, addrs []netip.Addr, ttl time.Duration)
	// MayAsk tells whether a name may be asked for; others do not exist
	// (NXDOMAIN). nil: all may. It is called by several goroutines.
	MayAsk func(name string) bool
	// Dial opens a connected socket to a server; network is "udp" or "tcp". nil:
	// a plain one.
	Dial func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)
	// Queries bounds the questions under way, and with half as many again the
	// descriptors that they take; 0: 128.
	Queries int
	// Ledger is charged with what the guest's conversations and questions take. nil
	// grants everything.
	Ledger *ledger.Ledger
}

// Forwarder answers questions. Make it with New; its methods are safe for
// concurrent use.
type Forwarder struct {
	cfg     Config
	servers *servers
	buffers sync.Pool // *[udpBuffer]byte
	guest   *purse
	own     *purse             // for Lookup
	same    singleflight.Group // the guest's questions that wait for one answer, by their keys

	ctx context.Context // ends with Run
	end context.CancelFunc

	mu      sync.Mutex
	ended   bool
	udp     map[talk]struct{}
	tcp     map[talk]struct{}
	waiting int // questions, those under way among them
	wg      sync.WaitGroup

	stats struct {
		questions, malformed, answers, failed, denied, dropped, forged atomic.Uint64
	}
}

// New checks the configuration and reads resolv.conf; one that can't be read is
// no error, since it may come. It starts nothing.
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
	if cfg.Queries == 0 {
		cfg.Queries = defaultQueries
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, server.String())
		}
	}
	f := &Forwarder{
		cfg:     cfg,
		servers: newServers(cfg),
		guest:   newPurse(cfg.Ledger, cfg.Queries, (cfg.Queries+1)/2),
		own:     newPurse(nil, ownQueries, ownRetries),
		udp:     map[talk]struct{}{},
		tcp:     map[talk]struct{}{},
	}
	f.buffers.New = func() any { return new([udpBuffer]byte) }
	f.ctx, f.end = context.WithCancel(context.Background())
	return f, nil
}

// Run lets the Forwarder work until ctx ends, whose error it returns; then it
// ends all conversations and returns when the last question is dealt with. What
// begins before Run is served, too, but nothing after it.
func (f *Forwarder) Run(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	f.ended = true
	udp, tcp := f.udp, f.tcp
	f.udp, f.tcp = nil, nil
	f.mu.Unlock()
	f.end()
	for _, talks := range []map[talk]struct{}{udp, tcp} {
		for t := range talks {
			t.end()
		}
	}
	f.wg.Wait()
	return ctx.Err()
}

// talk is a conversation.
type talk interface{ end() }

// join charges a conversation and enters it among others. It reports whether the limits
// permit that.
func (f *Forwarder) join(t talk, others *map[talk]struct{}, most int, cost ledger.Cost) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || len(*others) >= most || !f.guest.ledger.Charge(cost) {
		f.stats.dropped.Add(1)
		return false
	}
	(*others)[t] = struct{}{}
	return true
}

func (f *Forwarder) leave(t talk) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.udp, t)
	delete(f.tcp, t)
}

// Packets opens a conversation of a UDP flow: each Write is a question and does
// not block, each Read an answer, and io.EOF the end. It is for Verdict.Conn. nil
// means that there are too many conversations, or that Run has ended.
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

// Stream opens a conversation of a TCP connection (RFC 7766). nil is as for
// Packets.
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

// submit takes a question, which it copies, and reports whether the limits permit it. done
// is called once for each that was taken, with the answer behind its length, or nil; it must
// release the bytes of both.
func (f *Forwarder) submit(msg []byte, stream bool, done func([]byte)) bool {
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
		select {
		case f.guest.slots <- struct{}{}:
			answer = f.settled(msg, stream)
			<-f.guest.slots
		case <-f.ctx.Done():
		}
		f.mu.Lock()
		f.waiting--
		f.mu.Unlock()
		done(answer)
	})
	return true
}

// settled is the answer to a message behind its length, whose bytes are held; nil: it gets
// none.
func (f *Forwarder) settled(msg []byte, stream bool) []byte {
	b := bill{purse: f.guest}
	frame := f.answer(&b, msg, stream)
	if !b.settle(len(frame)) {
		f.stats.dropped.Add(1)
		return nil
	}
	return frame
}

// answer deals with one message of the guest's; nil: it gets no answer.
func (f *Forwarder) answer(b *bill, msg []byte, stream bool) []byte {
	q, err := parseQuestion(msg)
	var code rcodeError
	switch {
	case errors.As(err, &code):
		f.stats.malformed.Add(1)
		return framed(q.reply(dnsmessage.RCode(code)))
	case err != nil:
		f.stats.malformed.Add(1)
		return nil
	}
	f.stats.questions.Add(1)
	if addrs, ours := f.cfg.Names[q.name]; ours {
		f.learn(q.name, addrs, syntheticTTL*time.Second)
		return framed(q.synthetic(addrs))
	}
	if f.cfg.MayAsk != nil && !f.cfg.MayAsk(q.name) {
		f.stats.denied.Add(1)
		return framed(q.reply(dnsmessage.RCodeNameError))
	}
	got := f.resolve(&q, stream)
	defer got.release()
	fits := stream || len(got.raw) <= q.udpBytes
	switch {
	case errors.Is(got.err, errLimit), got.err == nil && fits && !b.hold(lengthBytes+len(got.raw)):
		f.stats.dropped.Add(1)
		return framed(q.reply(dnsmessage.RCodeServerFailure))
	case got.err != nil:
		f.stats.failed.Add(1)
		return framed(q.reply(dnsmessage.RCodeServerFailure))
	}
	f.learn(q.name, got.ans.addrs, got.ans.ttl)
	f.stats.answers.Add(1)
	if !fits {
		return framed(q.truncated(got.raw))
	}
	return q.frame(got.raw)
}

// resolved is what the servers said.
type resolved struct {
	raw     []byte
	ans     answer
	err     error
	release func() // refunds raw, once; who still copies it holds the copy
}

// resolve asks the servers, once for all guests that want to know the same at the same time:
// each further exchange would be another chance for somebody who guesses ports and ids
// (RFC 5452 section 5).
func (f *Forwarder) resolve(q *question, stream bool) resolved {
	v, _, _ := f.same.Do(q.key(stream), func() (any, error) {
		b := &bill{purse: f.guest}
		raw, a, err := f.exchange(f.ctx, b, q, stream)
		b.settle(len(raw))
		return resolved{raw, a, err, sync.OnceFunc(func() { b.settle(0) })}, nil
	})
	return v.(resolved)
}

func (f *Forwarder) learn(name string, addrs []netip.Addr, ttl time.Duration) {
	if f.cfg.Learn != nil && len(addrs) > 0 {
		f.cfg.Learn(name, addrs, ttl)
	}
}

// Lookup finds the addresses of a name for ourselves, of both families, and how
// long they hold. A name that does not exist has none. It implements
// policy.Lookup and works before Run.
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
			return addrs, 0, nil // half an answer: it ends at once, so the other half is looked for soon
		}
		return nil, 0, err
	}
	ttl := syntheticTTL * time.Second
	for _, a := range found {
		if len(a.addrs) > 0 {
			ttl = min(ttl, a.ttl)
		}
	}
	if len(found[0].addrs) == 0 || len(found[1].addrs) == 0 {
		return addrs, ttl, nil
	}
	return addrs, min(found[0].ttl, found[1].ttl), nil
}

// lookup asks for one type of record of a name.
func (f *Forwarder) lookup(ctx context.Context, name dnsmessage.Name, typ dnsmessage.Type) (answer, error) {
	select {
	case f.own.slots <- struct{}{}:
		defer func() { <-f.own.slots }()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	b := bill{purse: f.own}
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

// ResolvConf is the host's, as it is now, for the guest's search list.
func (f *Forwarder) ResolvConf() ResolvConf { return f.servers.current() }

// Stats are counters since the start.
type Stats struct {
	Questions uint64 `json:"questions"` // that made sense
	Malformed uint64 `json:"malformed"` // what the guest sent and did not
	Answers   uint64 `json:"answers"`   // that were passed on
	Failed    uint64 `json:"failed"`    // questions that no server answered: SERVFAIL
	Denied    uint64 `json:"denied"`    // questions for names that may not be asked for
	Dropped   uint64 `json:"dropped"`   // questions and conversations that were too many
	Forged    uint64 `json:"forged"`    // packets that claimed to be a server's answer and were not
}

// Stats are the counters.
func (f *Forwarder) Stats() Stats {
	s := &f.stats
	return Stats{
		Questions: s.questions.Load(), Malformed: s.malformed.Load(), Answers: s.answers.Load(), Failed: s.failed.Load(),
		Denied: s.denied.Load(), Dropped: s.dropped.Load(), Forged: s.forged.Load(),
	}
}
