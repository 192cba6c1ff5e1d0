package policy

import (
	"context"
	"net"
	"net/netip"
	"time"

	"cleat/usernet"
)

// Policy judges flows by rules. Make it with New. Its methods are safe for
// concurrent use; it implements usernet.Policy and sandbox.NamePolicy.
type Policy struct{}

// Config is what a Policy begins with. The zero Config is useful.
type Config struct {
	Rules Rules
	Network
}

// Network is what a Policy must know of the network around it.
type Network struct {
	// Map are addresses that lead elsewhere. Flows to them are judged on both
	// sides: a deny of either holds, an allow of either suffices. Since somebody
	// asked for the mapping, built-in denials don't apply to it.
	Map []Mapping
	// Resolvers are the guest-visible addresses of the DNS forwarder, which
	// answers at port 53 of TCP and UDP.
	Resolvers []netip.Addr
	// DNS opens a conversation with the forwarder: a stream for TCP, datagrams
	// for UDP. nil: there is none, and DNS is judged like everything else. It
	// must not block.
	DNS func(usernet.Flow) net.Conn
}

// Mapping makes one address mean another one.
type Mapping struct {
	Guest netip.Addr // as the guest writes it
	Host  netip.Addr // what it leads to
}

// New checks the rules and makes a Policy. It starts nothing.
func New(cfg Config) (*Policy, error) { return &Policy{}, nil }

// Bind replaces what the Policy knows of the network.
func (p *Policy) Bind(n Network) {}

// Set replaces the rules. Flows that were let through live on. Names that the
// guest asked for before count under the new rules too; exact names that are
// new are looked up by Run, at once.
func (p *Policy) Set(r Rules) error { return nil }

// Rules are the rules in force.
func (p *Policy) Rules() Rules { return Rules{} }

// Judge implements usernet.Policy with the names that were learned. It does not
// block, and redirects what Network.Map and Network.DNS ask for. Inbound flows
// are allowed.
func (p *Policy) Judge(f usernet.Flow) usernet.Verdict { return usernet.Verdict{} }

// JudgeNamed is Judge with names that somebody else learned, in place of the
// guest's; addresses of exact names that the Policy itself looked up count
// nevertheless. It does not keep names.
func (p *Policy) JudgeNamed(f usernet.Flow, names []string) usernet.Verdict {
	return usernet.Verdict{}
}

// Explain says which rule decides about a flow, and why. names are as for
// JudgeNamed; with none given those that were learned count.
func (p *Policy) Explain(f usernet.Flow, names ...string) Decision { return Decision{} }

// Decision is what becomes of a flow, and the reason.
type Decision struct {
	Action usernet.Action
	To     netip.AddrPort // Redirect
	// Rule is the one that decided; nil where none did.
	Rule *Rule
	// Builtin is set where Rule is a built-in denial.
	Builtin bool
	// Names are those that the destination was known by.
	Names  []string
	Reason string // for a person, e.g. `denied: link-local (built in; --allow 169.254.0.0/16 lifts it)`
}

// Learn credits addresses to a name that the guest asked our forwarder for.
// Only the forwarder may call it, and only with the question's name.
func (p *Policy) Learn(name string, addrs []netip.Addr, ttl time.Duration) {}

// Names are those that led the guest to an address lately, the latest first.
func (p *Policy) Names(a netip.Addr) []string { return nil }

// MayAsk tells whether the guest may ask the forwarder for a name. It may not
// where the rules allow nothing but names and this is none of them: its answer
// would be of no use but to carry data out.
func (p *Policy) MayAsk(name string) bool { return true }

// A Lookup finds the addresses of a name, of both families, and how long they
// hold. An error means that the name could not be looked up; a name without
// addresses is none.
type Lookup func(ctx context.Context, name string) (addrs []netip.Addr, ttl time.Duration, err error)

// Prime looks up the exact names of the rules once, and returns when each was
// answered or ctx ended: called before the guest starts, it makes rules by name
// hold from the first packet. The error names what could not be looked up, for
// a warning; Run keeps trying.
func (p *Policy) Prime(ctx context.Context, lookup Lookup) error { return nil }

// Run looks up the exact names of the rules whenever their answers end, until
// ctx ends.
func (p *Policy) Run(ctx context.Context, lookup Lookup) error { <-ctx.Done(); return nil }
