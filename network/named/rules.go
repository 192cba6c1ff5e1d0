package named

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// Rules are the rules of all networks in the kernel.
type Rules interface {
	Apply(firewall.Change) error
	Sync(firewall.State) error
	Check(firewall.State) ([]firewall.Difference, error)
	Lacks(firewall.State) ([]firewall.Difference, error)
	Remove() error
	ForgetConnections(c firewall.Change, within time.Duration) (int, error)
}

// tableOf returns the table of rules of a state directory in the host's namespace.
func tableOf(store Store, host *netns.NS) firewall.Table {
	t := firewall.Table{NS: host, Name: "cleat-net", Ended: store.RunPath(".ended")}
	if !store.IsDefault() {
		h := fnv.New32a()
		h.Write([]byte(store.Path()))
		t.Name, t.Devices = fmt.Sprintf("cleat-net-%08x", h.Sum32()), fmt.Sprintf("cl%08xin", h.Sum32())
	}
	return t
}

// rules returns the rules of a network without its endpoints. A network of the parent's has
// none: its packets don't pass the host.
func (n *Network) rules() firewall.State {
	if !n.OnHost() {
		return firewall.State{}
	}
	f := firewall.Network{Devices: []string{n.device()}, Gateways: n.gateways(), Internal: n.Internal, VRF: n.VRF, Outbound: n.Outbound}
	switch n.HostAccess {
	case HostAll:
		f.HostAccess = firewall.HostAccessAll
	case HostGateway:
		f.HostAccess = firewall.HostAccessGateway
	}
	for _, sub := range n.Subnets {
		f.Prefixes = append(f.Prefixes, sub.Prefix)
		f.MasqueradeIPv4 = f.MasqueradeIPv4 || sub.Prefix.Addr().Is4() && !n.NoNAT
		f.MasqueradeIPv6 = f.MasqueradeIPv6 || sub.Prefix.Addr().Is6() && !n.NoNAT
	}
	return firewall.State{Networks: []firewall.Network{f}, Remotes: n.Span.remotes(), Sealed: n.Span.sealed()}
}

// rulesWith returns the rules of a network with its endpoints.
func (n *Network) rulesWith(endpoints []*Endpoint) firewall.State {
	all := n.rules()
	for _, e := range endpoints {
		its := n.endpointRules(e)
		for _, part := range its.Networks {
			all.Networks[0].Devices = append(all.Networks[0].Devices, part.Devices...)
			all.Networks[0].Endpoints = append(all.Networks[0].Endpoints, part.Endpoints...)
		}
		all.Ports = append(all.Ports, its.Ports...)
		all.Resolvers = append(all.Resolvers, its.Resolvers...)
	}
	return all
}

// endpointRules returns the rules of an endpoint, beside those of its network.
func (n *Network) endpointRules(e *Endpoint) firewall.State {
	all := firewall.State{Ports: n.portsOf(e)}
	if !n.OnHost() {
		return all
	}
	all.Resolvers = n.resolversOf(e)
	part := n.rules().Networks[0]
	part.Prefixes, part.Devices = nil, nil
	device := n.device()
	if n.Driver == Routed {
		device = n.peer(e.Container)
		part.Devices = []string{device}
	}
	part.Endpoints = []firewall.Endpoint{{Device: device, Addrs: e.Addresses}}
	all.Networks = []firewall.Network{part}
	return all
}

// peerPrefix is how the names of the host's ends of containers' links on routed networks begin.
const peerPrefix = "clr"

// peer returns the name of the host's end of a container's link on a routed network.
func (n *Network) peer(c attach.Container) string { return n.peerOf(endpointID(c)) }

// peerOf does the same for the id of an endpoint.
func (n *Network) peerOf(id string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s", n.Name, id)
	return fmt.Sprintf(peerPrefix+"%012x", h.Sum64()&(1<<48-1))
}

// resolversOf returns the queries of an endpoint to servers of the host that the network's gateways answer.
func (n *Network) resolversOf(e *Endpoint) (all []firewall.Resolver) {
	if e.Wanted.Managed == nil {
		return nil
	}
	for _, asked := range e.Wanted.Managed.Resolvers {
		for _, a := range e.Addresses {
			if sub := n.subnet(a); sub != nil && a.Is4() == asked.Is4() && asked != sub.Gateway {
				all = append(all, firewall.Resolver{Client: a, Asked: asked, Server: sub.Gateway})
			}
		}
	}
	return all
}

// handOverName returns the name on the host of a link that an engine moves into its container.
func (n *Network) handOverName(c attach.Container) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s", n.Name, endpointID(c))
	return fmt.Sprintf("clh%012x", h.Sum64()&(1<<48-1))
}

// portsOf returns the published ports of an endpoint, for each of its addresses. The address of
// a port whose host address is of the other family is not among them.
func (n *Network) portsOf(e *Endpoint) []firewall.Port {
	protocols := map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP, "sctp": firewall.SCTP}
	var all []firewall.Port
	for _, p := range e.Wanted.Ports {
		for _, a := range e.Addresses {
			if p.HostPort == 0 || !p.covers(a) {
				continue // no port was chosen yet
			}
			all = append(all, firewall.Port{Protocol: protocols[p.Protocol], HostAddr: p.HostAddr, HostPort: p.HostPort, Count: p.Count,
				To: netip.AddrPortFrom(a, p.Port), BypassFirewall: p.BypassFirewall, VRF: n.VRF})
		}
	}
	return all
}

// addEndpoint adds an endpoint to the rules, in place of what they have of it. That is nil if they have
// nothing, or nobody knows.
func (s *session) addEndpoint(ctx context.Context, n *Network, e, before *Endpoint) error {
	with, without, err := s.flowsOf(e, before)
	if err != nil {
		return err
	}
	c := firewall.Change{Add: n.endpointRules(e)}
	if before != nil {
		c.Remove = n.endpointRules(before)
	}
	c.Add.Flows, c.Remove.Flows = with, without
	return s.applyRules(ctx, c)
}

// removeEndpoint removes an endpoint from the rules.
func (s *session) removeEndpoint(ctx context.Context, n *Network, e *Endpoint) error {
	with, without, err := s.flowsOf(e, nil)
	if err != nil {
		return err
	}
	c := firewall.Change{Remove: n.endpointRules(e)}
	its := c
	c.Add.Flows, c.Remove.Flows = without, with
	s.Files.takeForgotten(e.Addresses) // unless its owner has taken them, which another process may have connected
	if err := s.applyRules(ctx, c); err != nil || s.Attach.Background == nil {
		return errors.Join(err, s.forget(its))
	}
	// Whoever gets an address or a port before that forgets the connections of former owners itself.
	_, err = s.later(nil, func(s *session) error {
		if _, err := s.Rules.ForgetConnections(its, forgetWithin); err != nil {
			return err
		}
		s.Files.addForgotten(s.unowned(n, e.Addresses))
		return nil
	})
	return err
}

// applyRules changes the rules in the kernel. If they are not as the files say, because somebody
// else changed them or a command died, all of them are made so. The table goes with the last
// network.
func (s *session) applyRules(ctx context.Context, c firewall.Change) error {
	if len(c.Remove.Networks) > 0 {
		if some, err := s.store.hasHostNetworks(); err == nil && !some {
			return s.syncRules(ctx)
		}
	}
	err := s.Rules.Apply(c)
	if errors.Is(err, firewall.ErrDrift) || errors.Is(err, firewall.ErrOwned) {
		return s.syncRules(ctx)
	}
	return err
}

// routeLoopback makes published ports reachable at the host's loopback addresses, through a device
// that may not exist at the moment.
func (s *session) routeLoopback(device string) error {
	_, err := link.Find(s.host, device)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err == nil {
		err = tableOf(s.store, s.host).RouteLoopback(device)
	}
	return err
}

// syncRules makes the rules in the kernel as the files say.
func (s *session) syncRules(ctx context.Context) error {
	all, err := s.wantedRules()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(ownerEndsWithin); ; {
		if len(all.Networks) == 0 {
			err = s.Rules.Remove()
		} else {
			err = s.Rules.Sync(all)
		}
		if !errors.Is(err, firewall.ErrOwned) || s.SyncElsewhere == nil {
			return err
		}
		// The owner may be about to end, and then takes no requests any more.
		if err = s.SyncElsewhere(ctx); err == nil || time.Now().After(deadline) || !sleep(ctx, 10*time.Millisecond) {
			return err
		}
	}
}

// ownerEndsWithin is more than the time from when a keeper takes no requests any more until it no longer
// owns the rules.
const ownerEndsWithin = 2 * time.Second

// SyncRules makes the rules in the kernel as the files say.
func SyncRules(ctx context.Context, cfg Config) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	return s.syncRules(ctx)
}

// population returns all networks with their endpoints.
func (s *session) population() (population, error) { return s.store.population() }

// wantedRules returns the rules of all networks.
func (s *session) wantedRules() (firewall.State, error) {
	var all firewall.State
	p, err := s.population()
	if err != nil {
		return all, err
	}
	for _, n := range p.networks {
		var its []*Endpoint
		for _, e := range p.endpoints {
			if e.Network == n.Name {
				its = append(its, e)
			}
		}
		state := n.rulesWith(its)
		all.Networks = append(all.Networks, state.Networks...)
		all.Ports = append(all.Ports, state.Ports...)
		all.Resolvers = append(all.Resolvers, state.Resolvers...)
		all.Remotes = append(all.Remotes, state.Remotes...)
		all.Sealed = append(all.Sealed, state.Sealed...)
	}
	elsewhere, err := s.rulesElsewhere(p)
	if err != nil {
		return all, err
	}
	all.Ports, all.Relays = append(all.Ports, elsewhere.Ports...), elsewhere.Relays
	rules, err := rulesOf(p.networks)
	if err != nil {
		return all, err
	}
	all.Flows = compile(rules, p)
	return all, nil
}

// flowsOf returns the flows with an endpoint, and with what it was before (nil: nothing), if it makes a
// difference: a rule names its container. Otherwise it reads no other endpoints.
func (s *session) flowsOf(e, before *Endpoint) (with, without []firewall.Flow, err error) {
	networks, err := s.store.Networks()
	if err != nil {
		return nil, nil, err
	}
	rules, err := rulesOf(networks)
	if err != nil || !slices.ContainsFunc(rules, func(r Rule) bool { return r.names(e) || before != nil && r.names(before) }) {
		return nil, nil, err
	}
	p, err := s.population()
	if err != nil {
		return nil, nil, err
	}
	others := slices.DeleteFunc(p.endpoints, func(o *Endpoint) bool {
		return o.Network == e.Network && endpointID(o.Container) == endpointID(e.Container)
	})
	p.endpoints = others
	if before != nil {
		p.endpoints = append(slices.Clip(others), before)
	}
	without = compile(rules, p)
	p.endpoints = append(slices.Clip(others), e)
	return compile(rules, p), without, nil
}

// names reports whether the rule selects an endpoint as such, and not only with its network.
func (r *Rule) names(e *Endpoint) bool {
	of := func(s Selector) bool { return s.namesEndpoints() && s.matches(e) }
	return of(r.From) || of(r.To)
}
