package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"cleat/dns"
	"cleat/policy"
	"cleat/usernet"
)

// newJudge assembles what decides about flows. The rules come first: they know the mappings,
// the resolver, the names and the built-in denials. If Config.Policy is a *policy.Policy it
// provides the rules; another Policy judges what the rules let through.
func (n *Network) newJudge() error {
	rules, ok := n.cfg.Policy.(*policy.Policy)
	if !ok || rules == nil {
		var err error
		if rules, err = policy.New(policy.Config{}); err != nil {
			return fmt.Errorf("configure network: %w", err)
		}
	}
	if rules.HostSockets() == policy.HostSocketsNone && n.cfg.Tier == TierSeccomp {
		return configError("Tier", string(TierSeccomp), "another tier with this policy, which says \"host-sockets none\"")
	}
	n.rules, n.silent = rules, rules
	if !ok && n.cfg.Policy != nil {
		n.silent = &customPolicy{rules: rules, custom: n.cfg.Policy, denials: !n.cfg.NoDefaultDenials}
	}
	n.judge = n.silent
	if n.cfg.OnRefused != nil {
		n.judge = &reportingPolicy{n.silent, rules, n.cfg.OnRefused}
	}
	names := n.cfg.hostNames()
	network := policy.Network{Gateways: []netip.Addr{n.cfg.Gateway4, n.cfg.Gateway6}, Names: slices.Collect(maps.Keys(names))}
	for _, m := range n.cfg.mappings() {
		network.Map = append(network.Map, m.Mapping)
	}
	if !n.cfg.DNS.Off {
		resolver, err := dns.New(dns.Config{Servers: n.cfg.DNS.Servers, Names: names, Learn: rules.Learn, MayAsk: n.mayLookUp, Ledger: n.ledger})
		if err != nil {
			return fmt.Errorf("configure network: %w", err)
		}
		n.resolver = resolver
		network.Resolvers = n.cfg.DNS.Listen
		network.DNS = func(f Flow) net.Conn {
			if f.Protocol == TCP {
				return resolver.Stream()
			}
			return resolver.Packets()
		}
	}
	rules.Bind(network)
	return nil
}

// hostNames returns the names of the host's loopback, if it can be reached: our own, and the
// one that programs know from Podman.
func (c *Config) hostNames() map[string][]netip.Addr {
	var addrs []netip.Addr
	for _, a := range []netip.Addr{c.HostLoopback4, c.HostLoopback6} {
		if a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	if addrs == nil {
		return nil
	}
	return map[string][]netip.Addr{"host.cleat.internal": addrs, "host.containers.internal": addrs}
}

// lookup returns the function that looks up names in rules.
func (n *Network) lookup() policy.Lookup {
	if n.resolver != nil {
		return n.resolver.Lookup
	}
	return func(context.Context, string) ([]netip.Addr, time.Duration, error) {
		return nil, 0, errors.New("DNS is off")
	}
}

// mayLookUp reports whether the resolver may look up a name for the guest. It reports a
// refusal to Config.OnRefused.
func (n *Network) mayLookUp(name string) bool {
	if n.rules.MayAsk(name) {
		return true
	}
	if n.cfg.OnRefused != nil {
		n.cfg.OnRefused(Flow{Protocol: UDP, Destination: netip.AddrPortFrom(n.cfg.DNS.Listen[0], 53)}, Decision{
			Action: Refuse, Names: []string{name}, Reason: "not looked up: the rules allow only other names"})
	}
	return false
}

// hook adapts Config.Hook, for flows that a net.Conn can carry.
func (n *Network) hook() usernet.Hook {
	if n.cfg.Hook == nil {
		return nil
	}
	return func(ctx context.Context, f Flow) Verdict {
		if f.Protocol != TCP && f.Protocol != UDP {
			return Verdict{}
		}
		return n.cfg.Hook(ctx, f, n.rules.Names(f.Destination.Addr()))
	}
}

// customPolicy is a Policy of the user's behind the rules.
type customPolicy struct {
	rules   *policy.Policy
	custom  Policy
	denials bool // the built-in denials apply
}

// Judge implements Policy.
func (p *customPolicy) Judge(f Flow) Verdict {
	v := p.rules.Judge(f)
	switch v.Action {
	case Use: // the resolver
		return v
	case Refuse, Drop:
		if p.denials || p.rules.Explain(f).Builtin == "" {
			return v
		}
		v = Verdict{}
	}
	var custom Verdict
	if named, ok := p.custom.(NamePolicy); ok {
		custom = named.JudgeNamed(f, p.rules.Names(f.Destination.Addr()))
	} else {
		custom = p.custom.Judge(f)
	}
	if custom.Action == Allow {
		return v // a Redirect if a mapping applies
	}
	return custom
}

// reportingPolicy reports each flow that a policy refuses to Config.OnRefused.
type reportingPolicy struct {
	usernet.Policy
	rules  *policy.Policy
	report func(Flow, Decision)
}

// Judge implements Policy.
func (p *reportingPolicy) Judge(f Flow) Verdict {
	v := p.Policy.Judge(f)
	if v.Action != Refuse && v.Action != Drop {
		return v
	}
	d := p.rules.Explain(f)
	if d.Action != Refuse && d.Action != Drop {
		d = Decision{Action: v.Action, Names: d.Names, Reason: "Config.Policy refuses it"}
	}
	p.report(f, d)
	return v
}
