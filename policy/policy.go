package policy

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/dnsname"
	"cleat/packet"
	"cleat/usernet"
)

// DNS ports: plain (RFC 1035), and over TLS or QUIC (RFC 7858, RFC 9250).
const (
	dnsPort    = 53
	dnsTLSPort = 853
)

// dnsIdle is the idle time after which a guest's UDP conversation with the forwarder
// ends. Resolvers wait 5 s for an answer before they ask again.
const dnsIdle = 10 * time.Second

// Policy judges flows by rules. Create one with New. Its methods are safe for concurrent
// use. It implements usernet.Policy and sandbox.NamePolicy.
type Policy struct {
	mu      sync.Mutex // serializes changes
	state   atomic.Pointer[state]
	learned learned
	own     *own
	nat64   *nat64
}

// state is everything that a flow is judged by. It is immutable.
type state struct {
	*set
	net      Network
	mappings map[netip.Addr]mapped
	// discovers is set if IPv6 flows wait for the network's NAT64 prefixes: not if the
	// rules state them, and not without a resolver to ask.
	discovers bool
}

// mapped is the target of a mapped address.
type mapped struct {
	to netip.Addr
	// guarded is set if a built-in denial covers to.
	guarded bool
}

// Config is the initial configuration of a Policy. The zero Config is useful: it allows
// everything except the built-in denials.
type Config struct {
	Rules Rules
	Network
}

// Network describes the network that a Policy judges for.
type Network struct {
	// Map lists addresses that lead elsewhere. Flows to them are judged on both sides: a
	// deny of either applies, and an allow of either suffices. Built-in denials do not
	// apply, because the mapping was requested explicitly.
	Map []Mapping
	// Names are the names that our DNS forwarder resolves to such addresses. A rule that
	// allows another name does not open what the built-in denials cover, such as the
	// host's loopback: its owner would only have to give it the mapped address.
	Names []string
	// Resolvers are the guest-visible addresses of the DNS forwarder, which answers on
	// port 53 of TCP and UDP.
	Resolvers []netip.Addr
	// Gateways are our own addresses on the guest's link. Nothing listens there, so flows
	// to them are refused unless they are mapped.
	Gateways []netip.Addr
	// DNS opens a conversation with the forwarder: a stream for TCP, datagrams for UDP.
	// If nil, there is no forwarder, and DNS is judged like everything else. It must not
	// block.
	DNS func(usernet.Flow) net.Conn
}

// Mapping makes one address lead to another.
type Mapping struct {
	Guest netip.Addr // the address that the guest uses
	Host  netip.Addr // the address it leads to
}

// New checks the rules and returns a Policy. It starts nothing. The error is a
// *RuleError, or says that HostSockets contradicts the rules.
func New(cfg Config) (*Policy, error) {
	s, err := newSet(cfg.Rules)
	if err != nil {
		return nil, err
	}
	p := &Policy{learned: learned{byAddr: map[netip.Addr][]*credit{}}, own: newOwn(maxAgain), nat64: newNAT64()}
	p.own.set(slices.Sorted(maps.Keys(s.exact)))
	p.nat64.want(s.deniesIPv4)
	p.state.Store(newState(s, cfg.Network))
	return p, nil
}

func newState(s *set, n Network) *state {
	n.Map, n.Names, n.Resolvers, n.Gateways = slices.Clone(n.Map), slices.Clone(n.Names), slices.Clone(n.Resolvers), slices.Clone(n.Gateways)
	st := &state{set: s, net: n, mappings: map[netip.Addr]mapped{}, discovers: s.deniesIPv4 && len(s.src.NAT64) == 0 && n.DNS != nil}
	for _, m := range n.Map {
		st.mappings[plainAddr(m.Guest)] = mapped{m.Host, Builtin(m.Host) != ""}
	}
	return st
}

// Bind replaces the description of the network.
func (p *Policy) Bind(n Network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Store(newState(p.state.Load().set, n))
}

// Set replaces the rules. It returns the same errors as New, and then changes nothing.
// Flows that were allowed continue. Names that the guest asked for before apply under the
// new rules too; Run looks up new exact names at once.
func (p *Policy) Set(r Rules) error {
	s, err := newSet(r)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own.set(slices.Sorted(maps.Keys(s.exact)))
	p.nat64.want(s.deniesIPv4)
	p.learned.sort(s.named)
	p.state.Store(newState(s, p.state.Load().net))
	return nil
}

// Rules returns the current rules, in the form that ParseRule returns.
func (p *Policy) Rules() Rules {
	r := p.state.Load().src
	return Rules{r.Default, r.HostSockets, slices.Clone(r.NAT64), slices.Clone(r.Rules)}
}

// Learn credits addresses to a name that the guest asked our forwarder for. Only the
// forwarder may call it, only with the question's name (any case, with or without the
// final dot), and before the guest sees the answer.
func (p *Policy) Learn(name string, addrs []netip.Addr, ttl time.Duration) {
	name = dnsname.Fold(name)
	if name == nat64Name { // the guest must not learn the prefixes before us
		p.nat64.own.learn(name, addrs, ttl)
	}
	p.learned.learn(name, addrs, ttl, p.state.Load().named(name))
}

// Names returns the names that recently led the guest to an address, latest first. It
// omits names that only the Policy itself looked up.
func (p *Policy) Names(a netip.Addr) []string {
	return p.learned.names(nil, plainAddr(a))
}

// MayAsk reports whether the guest may ask the forwarder for a name. It may not if the
// rules allow only names and this is not one of them: the answer would be useless, and
// queries can carry data out.
func (p *Policy) MayAsk(name string) bool {
	s := p.state.Load()
	return !s.onlyNames || s.allowsName(dnsname.Fold(name))
}

// Prime looks up those exact names of the rules that were not looked up yet. It returns
// when each was answered or ctx ended. Called before the guest starts, it makes rules
// with names apply from the first packet. The error lists the names that could not be
// looked up, by this call or by Run; it is meant as a warning, because Run keeps trying.
func (p *Policy) Prime(ctx context.Context, lookup Lookup) error {
	names, _ := p.own.due(time.Now())
	p.own.lookUp(ctx, names, lookup)
	return p.own.failed(ctx.Err())
}

// Run looks up the exact names of the rules whenever their answers expire and, where a
// rule denies something in IPv4, the network's NAT64 prefixes. It blocks until ctx ends
// and returns ctx's error.
func (p *Policy) Run(ctx context.Context, lookup Lookup) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.nat64.own.run(ctx, lookup) })
	p.own.run(ctx, lookup)
	wg.Wait()
	return ctx.Err()
}

// Judge implements usernet.Policy with the learned names. It does not block, and
// redirects what Network.Map and Network.DNS ask for. Inbound flows are allowed, because
// a Forward was set up for them.
func (p *Policy) Judge(f usernet.Flow) usernet.Verdict {
	if f.Inbound {
		return usernet.Verdict{}
	}
	var array [maxNamesPerAddress + 8]string
	st := p.state.Load()
	return st.verdict(f, p.judge(st, f, p.names(st, array[:0], f)))
}

// JudgeNamed is Judge with names from the caller in place of the learned ones. Addresses
// of exact names that the Policy itself looked up still apply. It does not keep names.
func (p *Policy) JudgeNamed(f usernet.Flow, names []string) usernet.Verdict {
	if f.Inbound {
		return usernet.Verdict{}
	}
	var array [maxNamesPerAddress + 8]string
	st := p.state.Load()
	return st.verdict(f, p.judge(st, f, p.ownNames(st, append(array[:0], names...), f)))
}

// names appends all names of a flow's destination that rules may mention.
func (p *Policy) names(st *state, have []string, f usernet.Flow) []string {
	if !st.hasNames {
		return have
	}
	return p.ownNames(st, p.learned.names(have, plainAddr(f.Destination.Addr())), f)
}

func (p *Policy) ownNames(st *state, have []string, f usernet.Flow) []string {
	if !st.hasNames {
		return have
	}
	dst := plainAddr(f.Destination.Addr())
	have = p.own.names(have, dst)
	if m, ok := st.mappings[dst]; ok {
		have = p.own.names(have, plainAddr(m.to))
	}
	return have
}

// judge decides about an outbound flow whose destination has names.
func (p *Policy) judge(st *state, f usernet.Flow, names []string) outcome {
	dst := plainAddr(f.Destination.Addr())
	var array [maxForms]netip.Addr
	known := p.nat64.now.Load()
	forms := appendForms(array[:0], dst, false, st.src.NAT64, known.prefixes)
	var o outcome
	if len(forms) == 0 {
		o = st.judge(f, names, nil)
	} else {
		o = p.judgeForms(st, f, names, forms)
	}
	if o.action == usernet.Allow && dst.Is6() && st.discovers && !known.answered {
		return p.judgeUndiscovered(st, f, names, known.failed, o)
	}
	return o
}

// judgeUndiscovered is judge for an IPv6 destination while the network's NAT64 prefixes
// are unknown. allowed is the outcome if there are none.
func (p *Policy) judgeUndiscovered(st *state, f usernet.Flow, names []string, failed bool, allowed outcome) outcome {
	var array [maxForms]netip.Addr
	forms := appendForms(array[:0], plainAddr(f.Destination.Addr()), true, st.src.NAT64)
	o := p.judgeForms(st, f, names, forms)
	if o.action != usernet.Refuse {
		return allowed
	}
	if o.why = byUndiscovered; !failed {
		o.action = usernet.Drop // until the look-up has ended; the guest sends again
	}
	return o
}

// judgeForms is judge for a destination that contains IPv4 addresses. It is a separate
// function because it needs more stack.
func (p *Policy) judgeForms(st *state, f usernet.Flow, names []string, addrs []netip.Addr) outcome {
	var forms [maxForms]form
	var room [maxForms][maxNamesPerAddress + 8]string
	for i, a := range addrs {
		forms[i].addr = a
		if st.hasNames {
			forms[i].names = p.own.names(p.learned.names(room[i][:0], a), a)
		}
	}
	return st.judge(f, names, forms[:len(addrs)])
}

// outcome is the decision about a flow.
type outcome struct {
	action usernet.Action
	to     netip.Addr // for Redirect
	rule   int32      // -1 if no rule decided
	why    why
	// embedded is the IPv4 address in the destination that rule applies to, or zero if
	// rule applies to the destination itself.
	embedded [4]byte
}

// why is the reason for a decision without a rule.
type why uint8

const (
	_ why = iota // a rule, or the default

	byResolver   // a query to our forwarder
	byCapture    // a query to another server, answered by our forwarder
	byNoCapture  // DNS that our forwarder can't answer
	byNothing    // our own address, where nothing listens
	byNoQuestion // nothing is reachable, so no name needs to be resolved

	byUndiscovered // may lead to a denied IPv4 address through an unknown NAT64
)

// judge decides about an outbound flow whose destination has names and may contain IPv4
// addresses.
func (st *state) judge(f usernet.Flow, names []string, forms []form) outcome {
	q := query{proto: f.Protocol, port: f.Destination.Port(), dst: plainAddr(f.Destination.Addr()), names: names, forms: forms, ownNames: st.net.Names}
	if q.proto == packet.ICMPv6 {
		q.proto = packet.ICMP
	}
	m, mapped := st.mappings[q.dst]
	if mapped {
		q.to, q.guarded = plainAddr(m.to), m.guarded
	}
	if ported := q.proto == packet.TCP || q.proto == packet.UDP; ported && (q.port == dnsPort || q.port == dnsTLSPort) {
		if out, done := st.judgeDNS(&q); done {
			return out
		}
	}
	if !mapped && (slices.Contains(st.net.Resolvers, q.dst) || slices.Contains(st.net.Gateways, q.dst)) {
		return outcome{action: usernet.Refuse, rule: -1, why: byNothing}
	}
	rule, embedded, allowed := st.decide(&q)
	switch {
	case !allowed:
		return outcome{action: usernet.Refuse, rule: rule, embedded: embedded}
	case mapped:
		return outcome{action: usernet.Redirect, rule: rule, to: m.to}
	}
	return outcome{rule: rule}
}

// judgeDNS decides about flows to DNS ports. The forwarder answers flows to itself unless
// a rule denies them by port or by a single address: a deny of 10.0.0.0/8 is not meant
// for the resolver that happens to have an address there. Where rules have names, the
// guest must learn addresses from nobody else: our forwarder answers what it asks other
// servers, and encrypted DNS is refused, so that programs fall back to plain DNS. A rule
// that allows such a port at a destination by number lets it out.
func (st *state) judgeDNS(q *query) (out outcome, done bool) {
	ours := q.port == dnsPort && slices.Contains(st.net.Resolvers, q.dst) && st.net.DNS != nil
	if !ours && !st.hasNames {
		return outcome{}, false
	}
	rule, embedded, allowed := st.decide(q)
	switch {
	case rule >= 0 && !allowed && st.particular(rule) && (!ours || st.aimed(rule)):
		return outcome{action: usernet.Refuse, rule: rule, embedded: embedded}, true
	case !st.canAllow:
		return outcome{action: usernet.Refuse, rule: rule, why: byNoQuestion}, true
	case ours:
		return outcome{action: usernet.Use, rule: -1, why: byResolver}, true
	case rule >= 0 && allowed && st.rules[rule].Ports != nil && st.particular(rule):
		return outcome{}, false
	case q.port == dnsPort && st.net.DNS != nil:
		return outcome{action: usernet.Use, rule: -1, why: byCapture}, true
	}
	return outcome{action: usernet.Refuse, rule: -1, why: byNoCapture}, true
}

// particular reports whether a rule matches less than everything.
func (st *state) particular(rule int32) bool {
	r := &st.rules[rule]
	return r.builtin == "" && (r.Ports != nil || r.Protocol != 0 || !r.All && !(r.Name == "" && r.Prefix.Bits() == 0))
}

// aimed reports whether a rule names a port or a single address.
func (st *state) aimed(rule int32) bool {
	r := &st.rules[rule]
	return r.Ports != nil || r.Name == "" && !r.All && r.Prefix.IsSingleIP()
}

// verdict converts an outcome for the data path.
func (st *state) verdict(f usernet.Flow, o outcome) usernet.Verdict {
	switch o.action {
	case usernet.Redirect:
		return usernet.Verdict{Action: o.action, To: netip.AddrPortFrom(o.to, f.Destination.Port())}
	case usernet.Use:
		if conn := st.net.DNS(f); conn != nil {
			return usernet.Verdict{Action: o.action, Conn: conn, Idle: dnsIdle}
		}
		return usernet.Verdict{Action: usernet.Refuse}
	}
	return usernet.Verdict{Action: o.action}
}
