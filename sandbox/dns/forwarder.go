package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
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
}

// Forwarder answers questions. Make it with New; its methods are safe for
// concurrent use.
type Forwarder struct {
	cfg     Config
	servers *servers
	small   sync.Pool     // *[]byte of smallBuffer
	large   sync.Pool     // *[]byte of maxMessage
	slots   chan struct{} // questions under way
	retries chan struct{} // further tries under way

	ctx context.Context // ends with Run
	end context.CancelFunc

	mu      sync.Mutex
	ended   bool
	udp     map[talk]struct{}
	tcp     map[talk]struct{}
	waiting int // questions, those under way among them
	wg      sync.WaitGroup
	unread  atomic.Int64 // bytes of answers that wait to be read

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
		if _, err := dnsmessage.NewName(name + "."); err != nil || name != strings.ToLower(strings.Trim(name, ".")) {
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
		slots:   make(chan struct{}, cfg.Queries),
		retries: make(chan struct{}, (cfg.Queries+1)/2),
		udp:     map[talk]struct{}{},
		tcp:     map[talk]struct{}{},
	}
	f.small.New = func() any { b := make([]byte, smallBuffer); return &b }
	f.large.New = func() any { b := make([]byte, maxMessage); return &b }
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

// join enters a conversation among others, and tells whether there is room.
func (f *Forwarder) join(t talk, others *map[talk]struct{}, most int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || len(*others) >= most {
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
	if !f.join(c, &f.udp, maxConversations) {
		c.linger.Stop()
		return nil
	}
	return c
}

// Stream opens a conversation of a TCP connection (RFC 7766). nil is as for
// Packets.
func (f *Forwarder) Stream() net.Conn {
	guest, ours := net.Pipe()
	c := &stream{f: f, conn: ours}
	if !f.join(c, &f.tcp, maxStreams) {
		return nil
	}
	if !f.spawn(func() { c.serve(); f.leave(c) }) {
		f.leave(c)
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

// submit takes a question, which it copies; false: there are too many. done is
// called once for each that was taken, with the answer or nil.
func (f *Forwarder) submit(msg []byte, stream bool, done func([]byte)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.waiting >= waitingFactor*f.cfg.Queries {
		f.stats.dropped.Add(1)
		return false
	}
	f.waiting++
	msg = slices.Clone(msg)
	f.wg.Go(func() {
		var answer []byte
		select {
		case f.slots <- struct{}{}:
			answer = f.answer(f.ctx, msg, stream)
			<-f.slots
		case <-f.ctx.Done():
		}
		f.mu.Lock()
		f.waiting--
		f.mu.Unlock()
		done(answer)
	})
	return true
}

// answer deals with one message of the guest's; nil: it gets no answer.
func (f *Forwarder) answer(ctx context.Context, msg []byte, stream bool) []byte {
	q, err := parseQuestion(msg)
	var code rcodeError
	switch {
	case errors.As(err, &code):
		f.stats.malformed.Add(1)
		return q.reply(dnsmessage.RCode(code))
	case err != nil:
		f.stats.malformed.Add(1)
		return nil
	}
	f.stats.questions.Add(1)
	if addrs, ours := f.cfg.Names[q.name]; ours {
		f.learn(q.name, addrs, syntheticTTL*time.Second)
		return q.synthetic(addrs)
	}
	if f.cfg.MayAsk != nil && !f.cfg.MayAsk(q.name) {
		f.stats.denied.Add(1)
		return q.reply(dnsmessage.RCodeNameError)
	}
	raw, a, err := f.exchange(ctx, msg, &q, stream)
	if err != nil {
		f.stats.failed.Add(1)
		return q.reply(dnsmessage.RCodeServerFailure)
	}
	f.learn(q.name, a.addrs, a.ttl)
	f.stats.answers.Add(1)
	setID(raw, q.id)
	if !stream && len(raw) > q.udpBytes {
		return q.truncated(raw)
	}
	return raw
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
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if addrs, ours := f.cfg.Names[name]; ours {
		return slices.Clone(addrs), syntheticTTL * time.Second, nil
	}
	full, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, 0, fmt.Errorf("look up %s: %w", name, err)
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
	var edns dnsmessage.ResourceHeader
	if err := edns.SetEDNS0(1232, dnsmessage.RCodeSuccess, false); err != nil { // what no path fragments
		return answer{}, err
	}
	m := dnsmessage.Message{
		Header:      dnsmessage.Header{RecursionDesired: true},
		Questions:   []dnsmessage.Question{{Name: name, Type: typ, Class: dnsmessage.ClassINET}},
		Additionals: []dnsmessage.Resource{{Header: edns, Body: &dnsmessage.OPTResource{}}},
	}
	msg, err := m.Pack()
	if err != nil {
		return answer{}, err
	}
	q := question{header: m.Header, q: m.Questions[0], name: plain(name)}
	_, a, err := f.exchange(ctx, msg, &q, true)
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
