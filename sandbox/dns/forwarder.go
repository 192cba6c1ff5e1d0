package dns

import (
	"context"
	"io"
	"net"
	"net/netip"
	"time"
)

// Config says whom a Forwarder asks. The zero Config asks the resolvers of
// /etc/resolv.conf.
type Config struct {
	// ResolvConf opens the host's resolv.conf anew each time it may have
	// changed; nil: /etc/resolv.conf. A sealed process gives a function that can
	// still open it.
	ResolvConf func() (io.ReadCloser, error)
	// Servers are asked in place of resolv.conf's; nil: those.
	Servers []netip.AddrPort
	// Names are answered here, with these addresses: lower case, no final dot.
	Names map[string][]netip.Addr
	// Learn is told the addresses of an answer before the guest sees it, by the
	// name that the guest asked for; nil: nobody is.
	Learn func(name string, addrs []netip.Addr, ttl time.Duration)
	// MayAsk tells whether a name may be asked for; others do not exist. nil:
	// all may.
	MayAsk func(name string) bool
	// Dial opens a connected socket to a server; nil: a plain one.
	Dial func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)
	// Queries bounds the questions under way; 0: 256.
	Queries int
}

// Forwarder answers questions. Make it with New; its methods are safe for
// concurrent use.
type Forwarder struct{}

// New checks the configuration. It starts nothing and reads no file.
func New(cfg Config) (*Forwarder, error) { return &Forwarder{}, nil }

// Run answers what comes by Packets and Stream until ctx ends, and owns all
// goroutines. Without it they end at once.
func (f *Forwarder) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Packets opens a conversation of a UDP flow: each Write is a question, each
// Read an answer. It does not block and is for Verdict.Conn.
func (f *Forwarder) Packets() net.Conn { return nil }

// Stream opens a conversation of a TCP connection (RFC 7766).
func (f *Forwarder) Stream() net.Conn { return nil }

// Lookup finds the addresses of a name for ourselves. It implements
// policy.Lookup.
func (f *Forwarder) Lookup(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	return nil, 0, nil
}

// Stats are counters since the start.
type Stats struct {
	Questions uint64 // that made sense
	Malformed uint64 // what the guest sent and did not
	Answers   uint64 // that were passed on
	Failed    uint64 // questions that no server answered: SERVFAIL
	Dropped   uint64 // questions beyond Config.Queries
	Forged    uint64 // packets that claimed to be an answer and were not
}

// Stats are the counters.
func (f *Forwarder) Stats() Stats { return Stats{} }
