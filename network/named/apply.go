package named

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"cleat/internal/statedir"
)

// A PlannedChange is one change that Apply makes.
type PlannedChange struct {
	Text      string `json:"change"` // e.g. "connect api to web"
	Network   string `json:"network"`
	Container string `json:"container,omitempty"`

	do func(ctx context.Context, cfg Config) error
}

// ImmutableError means that a network differs from a file in what can't be changed while it
// exists.
type ImmutableError struct {
	Network string
	Fields  []string
}

func (e *ImmutableError) Error() string {
	return fmt.Sprintf("network %s exists with other values of %s", e.Network, fieldsText(e.Fields))
}

// Plan returns the changes that make the host as a file wants it: what is missing is made,
// what differs is changed. Networks and containers that the file does not name stay, unless
// prune is set. It changes nothing.
func Plan(ctx context.Context, cfg Config, w *Wanted, prune bool) ([]PlannedChange, error) {
	p := &applier{cfg: cfg, store: cfg.store()}
	for _, d := range w.networks {
		if err := p.network(ctx, d, prune); err != nil {
			return nil, err
		}
	}
	if !prune {
		return p.changes, nil
	}
	networks, err := p.store.Networks()
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		name := n.Name
		// The engine of a network with a manager says how long there is one.
		if n.Manager == "" && !slices.ContainsFunc(w.networks, func(d desired) bool { return d.spec.Name == name }) {
			p.add("remove network "+name, name, "", func(ctx context.Context, cfg Config) error {
				_, err := Remove(ctx, cfg, name, true)
				return err
			})
		}
	}
	return p.changes, nil
}

// Apply makes planned changes in order. Each is atomic. It calls done after each, and stops at
// the first that fails.
func Apply(ctx context.Context, cfg Config, changes []PlannedChange, done func(PlannedChange)) error {
	for _, c := range changes {
		if err := c.do(ctx, cfg); err != nil {
			return fmt.Errorf("%s: %w", c.Text, err)
		}
		done(c)
	}
	return nil
}

type applier struct {
	cfg     Config
	store   Store
	changes []PlannedChange
}

func (p *applier) add(text, network, container string, do func(context.Context, Config) error) {
	p.changes = append(p.changes, PlannedChange{Text: text, Network: network, Container: container, do: do})
}

func (p *applier) network(ctx context.Context, d desired, prune bool) error {
	n, err := p.store.Network(d.spec.Name)
	var none *NoNetworkError
	switch {
	case errors.As(err, &none):
		p.add("create network "+d.spec.String(), d.spec.Name, "", func(ctx context.Context, cfg Config) error {
			_, err := Create(ctx, cfg, d.spec)
			return err
		})
	case err != nil:
		return err
	default:
		if fields := n.differs(d.spec); len(fields) > 0 {
			return &ImmutableError{n.Name, fields}
		}
		if text := n.changes(d.spec); text != "" {
			p.add(fmt.Sprintf("change network %s: %s", n.Name, text), n.Name, "", func(ctx context.Context, cfg Config) error {
				return Change(ctx, cfg, d.spec)
			})
		}
	}
	return p.containers(ctx, d, prune)
}

func (p *applier) containers(ctx context.Context, d desired, prune bool) error {
	network := d.spec.Name
	var kept []string // ids of endpoints that the file names
	for _, ref := range slices.Sorted(maps.Keys(d.containers)) {
		want := d.containers[ref]
		e, err := p.store.find(network, ref)
		if errors.As(err, new(*NotConnectedError)) {
			if elsewhere, err := p.isElsewhere(ctx, network, ref); err != nil {
				return err
			} else if elsewhere {
				continue // its own host connects it
			}
			p.add(fmt.Sprintf("connect %s to %s", ref, network), network, ref, func(ctx context.Context, cfg Config) error {
				_, err := Connect(ctx, cfg, network, ref, want)
				return err
			})
			continue
		}
		if err != nil {
			return err
		}
		kept = append(kept, endpointID(e.Container))
		p.endpoint(e, ref, want)
	}
	if !prune {
		return nil
	}
	all, err := p.store.Endpoints(network)
	for _, e := range all {
		if e.Container.Manager != "" {
			continue // its engine says how long it is connected
		}
		if ref := e.Container.QualifiedName(); !slices.Contains(kept, endpointID(e.Container)) {
			p.add(fmt.Sprintf("disconnect %s from %s", ref, network), network, ref, func(ctx context.Context, cfg Config) error {
				_, err := Disconnect(ctx, cfg, network, ref)
				return err
			})
		}
	}
	return err
}

// isElsewhere reports whether another host has a container on a network, and this one does not have it.
func (p *applier) isElsewhere(ctx context.Context, network, ref string) (bool, error) {
	host, err := p.store.hostOf(network, ref)
	if err != nil || host == "" {
		return false, err
	}
	_, ns, err := p.cfg.Attach.Find(ctx, ref)
	if err != nil {
		return true, nil
	}
	return false, ns.Close()
}

// endpoint plans the changes of a connected container: of its ports in place, of anything else
// by connecting it again.
func (p *applier) endpoint(e *Endpoint, ref string, want Connection) {
	have, wanted := e.Wanted, want
	have.Ports, wanted.Ports = nil, nil
	if !reflect.DeepEqual(have.canonical(), wanted.canonical()) {
		p.add(fmt.Sprintf("connect %s to %s again, with other values", ref, e.Network), e.Network, ref, func(ctx context.Context, cfg Config) error {
			if _, err := Disconnect(ctx, cfg, e.Network, ref); err != nil {
				return err
			}
			_, err := Connect(ctx, cfg, e.Network, ref, want)
			return err
		})
		return
	}
	var gone, added []Port
	for _, q := range e.Wanted.Ports {
		if !slices.ContainsFunc(want.Ports, func(p Port) bool {
			return p.names(q) && p.BypassFirewall == q.BypassFirewall && p.Everywhere == q.Everywhere
		}) {
			gone = append(gone, q)
		}
	}
	for _, q := range want.Ports {
		if !slices.ContainsFunc(e.Wanted.Ports, func(p Port) bool {
			return q.names(p) && p.BypassFirewall == q.BypassFirewall && p.Everywhere == q.Everywhere
		}) {
			added = append(added, q)
		}
	}
	if len(gone) > 0 {
		p.add(fmt.Sprintf("withdraw port %s of %s", texts(gone), ref), e.Network, ref, func(ctx context.Context, cfg Config) error {
			_, err := Unpublish(ctx, cfg, e.Network, ref, gone)
			return err
		})
	}
	if len(added) > 0 {
		p.add(fmt.Sprintf("publish port %s of %s", texts(added), ref), e.Network, ref, func(ctx context.Context, cfg Config) error {
			_, err := Publish(ctx, cfg, e.Network, ref, added)
			return err
		})
	}
}

// canonical returns c with empty lists and maps as nil.
func (c Connection) canonical() Connection {
	if len(c.Addresses) == 0 {
		c.Addresses = nil
	}
	if len(c.Aliases) == 0 {
		c.Aliases = nil
	}
	if len(c.Labels) == 0 {
		c.Labels = nil
	}
	return c
}

// changes describes how a network differs from a spec in what can be changed.
func (n *Network) changes(want NetworkSpec) string {
	var fields []string
	add := func(name string, differs bool) {
		if differs {
			fields = append(fields, name)
		}
	}
	add("internal", n.Internal != want.Internal)
	add("nat", n.NoNAT != want.NoNAT)
	add("host_access", n.HostAccess != want.HostAccess)
	add("rules", !slices.Equal(n.Rules, want.Rules) || n.DefaultDeny != want.DefaultDeny)
	add("reserve", !n.Reserve.equal(want.Reserve))
	add("dns", !slices.Equal(n.DNS, want.DNS))
	add("labels", !maps.Equal(n.Labels, want.Labels))
	for _, w := range want.Subnets {
		if sub := n.subnet(w.Prefix.Addr()); sub != nil {
			add("addresses", sub.Range != w.Range || !slices.Equal(sub.Exclude, w.Exclude))
		}
	}
	return fieldsText(fields)
}

// Change gives a network other values in what can be changed while containers are on it: its
// way out, what of the host is reached, rules, name servers, labels, and which addresses are
// chosen.
func Change(ctx context.Context, cfg Config, want NetworkSpec) error {
	if err := want.normalize(); err != nil {
		return err
	}
	if n, err := cfg.store().Network(want.Name); err == nil && n.Spans && cfg.Registrar != nil {
		return cfg.Registrar.Change(ctx, n.changed(want).NetworkSpec)
	}
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	unlock, err := s.store.lockNetworks(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := s.store.Network(want.Name)
	if err != nil {
		return err
	}
	return s.replaceNetwork(ctx, old, old.changed(want))
}

// changed returns the network with the values of want that Change changes.
func (n *Network) changed(want NetworkSpec) *Network {
	now := *n
	now.Internal, now.NoNAT, now.HostAccess, now.DNS, now.Labels = want.Internal, want.NoNAT, want.HostAccess, want.DNS, want.Labels
	now.Rules, now.DefaultDeny, now.Reserve = want.Rules, want.DefaultDeny, want.Reserve
	now.Subnets = slices.Clone(n.Subnets)
	for _, w := range want.Subnets {
		if sub := now.subnet(w.Prefix.Addr()); sub != nil {
			sub.Range, sub.Exclude = w.Range, w.Exclude
		}
	}
	return &now
}

// replaceNetwork writes a network's file, and makes the kernel and the name server so.
func (s *session) replaceNetwork(ctx context.Context, old, now *Network) error {
	o, err := s.begin(ctx, now.Name, record{Network: now.Name, Spec: old})
	if err != nil {
		return err
	}
	if err := statedir.WriteJSON(s.store.networkFile(now.Name), now); err != nil {
		return errors.Join(err, o.end())
	}
	if err := s.settleNetwork(ctx, old); err != nil { // removes what is only old, and adds what is only new
		return errors.Join(err, o.giveUp())
	}
	return o.end()
}
