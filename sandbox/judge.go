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

// newJudge puts together what decides about flows. The rules come first: they
// know the mappings, the resolver, the names, and the built-in denials. Where
// Config.Policy is a *policy.Policy, it is the rules; another Policy is asked
// about what the rules let through.
func (n *Network) newJudge() error {
	own, ok := n.cfg.Policy.(*policy.Policy)
	if !ok || own == nil {
		var err error
		if own, err = policy.New(policy.Config{}); err != nil {
			return fmt.Errorf("configure network: %w", err)
		}
	}
	if own.HostSockets() == policy.HostSocketsNone && n.cfg.Tier == TierSeccomp {
		return configError("Tier", string(TierSeccomp), "another tier with this policy, which says \"host-sockets none\"")
	}
	n.rules, n.judge = own, own
	if !ok && n.cfg.Policy != nil {
		n.judge = &both{rules: own, own: n.cfg.Policy, denials: !n.cfg.NoDefaultDenials}
	}
	n.quiet = n.judge
	if n.cfg.OnRefused != nil {
		n.judge = &telling{n.judge, own, n.cfg.OnRefused}
	}
	bound := policy.Network{Gateways: []netip.Addr{n.cfg.Gateway4, n.cfg.Gateway6}}
	for _, m := range n.cfg.mappings() {
		bound.Map = append(bound.Map, m.Mapping)
	}
	bound.Names = slices.Collect(maps.Keys(n.cfg.hostNames()))
	if !n.cfg.DNS.Off {
		resolver, err := dns.New(dns.Config{Servers: n.cfg.DNS.Servers, Names: n.cfg.hostNames(), Learn: own.Learn, MayAsk: n.mayAsk(own), Ledger: n.ledger})
		if err != nil {
			return fmt.Errorf("configure network: %w", err)
		}
		n.resolver = resolver
		bound.Resolvers = n.cfg.DNS.Listen
		bound.DNS = n.converse
	}
	own.Bind(bound)
	return nil
}

// hostNames are the names of the host's loopback, where there is a way to it:
// ours, and the one that programs know from Podman.
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

// converse opens a guest's conversation with the resolver.
func (n *Network) converse(f usernet.Flow) net.Conn {
	if f.Protocol == TCP {
		return n.resolver.Stream()
	}
	return n.resolver.Packets()
}

// lookup finds the addresses of names in rules.
func (n *Network) lookup() policy.Lookup {
	if n.resolver != nil {
		return n.resolver.Lookup
	}
	return func(context.Context, string) ([]netip.Addr, time.Duration, error) {
		return nil, 0, errors.New("DNS is off")
	}
}

// hook is Config.Hook with names, for flows that can be carried over a
// connection.
func (n *Network) hook() usernet.Hook {
	if n.cfg.Hook == nil {
		return nil
	}
	return func(ctx context.Context, f usernet.Flow) usernet.Verdict {
		if f.Protocol != TCP && f.Protocol != UDP {
			return Verdict{}
		}
		return n.cfg.Hook(ctx, f, n.rules.Names(f.Destination.Addr()))
	}
}

// both is a Policy of the user's behind our rules.
type both struct {
	rules   *policy.Policy
	own     Policy
	denials bool
}

// Judge implements Policy.
func (b *both) Judge(f Flow) Verdict {
	v := b.rules.Judge(f)
	switch v.Action {
	case Use: // the resolver
		return v
	case Refuse, Drop:
		if b.denials || b.rules.Explain(f).Builtin == "" {
			return v
		}
		v = Verdict{}
	}
	var own Verdict
	if named, ok := b.own.(NamePolicy); ok {
		own = named.JudgeNamed(f, b.rules.Names(f.Destination.Addr()))
	} else {
		own = b.own.Judge(f)
	}
	if own.Action == Allow {
		return v // Redirect, where a mapping says so
	}
	return own
}
