package named

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"cleat/network/firewall"
)

// Everywhere is in place of a host's address in ports that all hosts publish.
const Everywhere = "everywhere"

// A container of a network that spans hosts may publish a port on all of them. Its own host publishes the port as any
// other one. The other hosts hear of the port with the endpoint, translate connections to the container's address, and
// give them an address of their own in the network as the source, so that the answers pass them again. A host whose
// port somebody has there does without, and reports it.

// ElsewherePort is a port that a container of another host publishes everywhere.
type ElsewherePort struct {
	Network, Host, Container string // e.g. "web", "b" and "docker:api"
	Port                     Port
	Addresses                []netip.Addr // of the container
	// Taken is why this host does not publish the port; nil: it does.
	Taken *PortTakenError
}

// owner describes the container in messages.
func (p *ElsewherePort) owner() string {
	return fmt.Sprintf("%s of host %s on network %s", p.Container, p.Host, p.Network)
}

// String says what does not work.
func (p *ElsewherePort) String() string {
	text := fmt.Sprintf("port %s of %s is not published on this host", p.Port, p.owner())
	if p.Taken != nil {
		text += fmt.Sprintf(": %s port %d is in use by %s", p.Port.Protocol, p.Taken.HostPort, p.Taken.Owner)
	}
	return text
}

// elsewhere returns the ports that containers of other hosts publish everywhere, in one order on all hosts.
func (s Store) elsewhere(networks []*Network) (all []*ElsewherePort, err error) {
	for _, n := range networks {
		if n.Span == nil {
			continue
		}
		hosts, err := s.remoteHostsThat(n.Name, publishesEverywhere)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			all = append(all, h.elsewhere(n.Name)...)
		}
	}
	return all, nil
}

// elsewhere returns the ports that the host's containers publish everywhere.
func (h *remoteHost) elsewhere(network string) (all []*ElsewherePort) {
	for _, e := range h.Endpoints {
		for _, p := range e.Published {
			if p.Everywhere {
				all = append(all, &ElsewherePort{Network: network, Host: h.Host, Container: e.Container, Port: p, Addresses: e.Addresses})
			}
		}
	}
	return all
}

// judgeElsewhere finds out which of the ports this host can publish.
func (pop population) judgeElsewhere() error {
	all := pop.elsewhere
	for i, p := range all {
		taken := func(q Port, owner string) {
			if p.Taken == nil && p.Port.overlaps(q) {
				p.Taken = &PortTakenError{Port: p.Port, HostPort: max(p.Port.HostPort, q.HostPort), Owner: owner}
			}
		}
		for _, e := range pop.endpoints {
			for _, q := range e.Wanted.Ports {
				taken(q, fmt.Sprintf("%s on network %s", e.Container.ShortName(), e.Network))
			}
		}
		for _, q := range all[:i] {
			if q.Taken == nil {
				taken(q.Port, q.owner())
			}
		}
		if p.Taken != nil {
			continue
		}
		err := pop.named(p.Network).checkSockets(p.Port)
		if err != nil && !errors.As(err, &p.Taken) {
			return err
		}
	}
	return nil
}

// named returns a network, which exists.
func (pop population) named(name string) *Network {
	return pop.networks[slices.IndexFunc(pop.networks, func(n *Network) bool { return n.Name == name })]
}

// rulesElsewhere returns the rules for the ports that this host publishes for others.
func (s *session) rulesElsewhere(p population) (state firewall.State, err error) {
	if err := p.judgeElsewhere(); err != nil {
		return state, err
	}
	for _, one := range p.elsewhere {
		n := p.named(one.Network)
		if one.Taken != nil {
			continue
		}
		e := &Endpoint{Network: n.Name, Wanted: Connection{Ports: []Port{one.Port}}}
		for _, a := range one.Addresses {
			i := slices.IndexFunc(n.OwnAddresses(), func(o netip.Addr) bool { return o.Is4() == a.Is4() })
			if i < 0 {
				continue // this host has no address of the family there, so answers would not pass it
			}
			e.Addresses = append(e.Addresses, a)
			state.Relays = append(state.Relays, firewall.Relay{To: a, From: n.OwnAddresses()[i]})
		}
		state.Ports = append(state.Ports, n.portsOf(e)...)
	}
	return state, nil
}

// checkElsewhere returns a *PortTakenError if a container of another host publishes a port everywhere.
func (s *session) checkElsewhere(p Port) error {
	networks, err := s.store.Networks()
	if err != nil {
		return err
	}
	all, err := s.store.elsewhere(networks)
	if err != nil {
		return err
	}
	for _, q := range all {
		if p.overlaps(q.Port) {
			return &PortTakenError{Port: p, HostPort: max(p.HostPort, q.Port.HostPort), Owner: q.owner()}
		}
	}
	return nil
}

// SyncElsewhere makes this host publish the ports that containers of other hosts publish everywhere, if it can, and
// returns those ports. before is what it returned last: without a difference it leaves the rules alone.
func SyncElsewhere(ctx context.Context, cfg Config, before []*ElsewherePort) ([]*ElsewherePort, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	p, err := s.population()
	if err == nil {
		err = p.judgeElsewhere()
	}
	if err != nil || reflect.DeepEqual(p.elsewhere, before) {
		return before, err
	}
	return p.elsewhere, s.syncRules(ctx)
}

// publishedBy returns the ports that containers of another host publish everywhere, as rules.
func (h *remoteHost) publishedBy(n *Network) (all []firewall.Port) {
	for _, e := range h.Endpoints {
		all = append(all, n.portsOf(&Endpoint{Addresses: e.Addresses, Wanted: Connection{Ports: e.everywhere()}})...)
	}
	return all
}

// everywhere returns the ports that the container publishes everywhere.
func (e *RemoteEndpoint) everywhere() []Port {
	return slices.DeleteFunc(slices.Clone(e.Published), func(p Port) bool { return !p.Everywhere })
}

// republish makes the rules as containers of another host publish ports everywhere. Connections by ports that are gone
// end.
func (s *session) republish(ctx context.Context, n *Network, old, now *remoteHost) error {
	if err := s.syncRules(ctx); err != nil {
		return err
	}
	still := now.publishedBy(n)
	gone := slices.DeleteFunc(old.publishedBy(n), func(p firewall.Port) bool { return slices.Contains(still, p) })
	if len(gone) == 0 {
		return nil
	}
	return s.forget(firewall.Change{Remove: firewall.State{Ports: gone}})
}
