package named

import (
	"context"
	"errors"
	"slices"

	"cleat/network/attach"
)

// Publish publishes more ports of a container on a network. On error everything is as before.
// If network is empty, the container must be on one network only.
func Publish(ctx context.Context, cfg Config, network, ref string, ports []Port) (*Result, error) {
	return update(ctx, cfg, network, ref, func(n *Network, e *Endpoint) error {
		for i := range ports {
			if err := ports[i].normalize(); err != nil {
				return err
			}
		}
		e.Wanted.Ports = append(slices.Clone(e.Wanted.Ports), ports...)
		return n.checkConnection(&e.Wanted)
	})
}

// NotPublishedError means that a container does not publish a port.
type NotPublishedError struct {
	Port      Port
	Container string
	Ports     []Port // that it publishes
}

func (e *NotPublishedError) Error() string {
	return e.Container + " does not publish " + e.Port.String()
}

// Unpublish withdraws published ports. A port is found by its host's side; without one
// (HostPort 0) by the container's port, wherever it is published. No ports means all.
func Unpublish(ctx context.Context, cfg Config, network, ref string, ports []Port) (*Result, error) {
	return update(ctx, cfg, network, ref, func(_ *Network, e *Endpoint) error {
		if len(ports) == 0 {
			e.Wanted.Ports = nil
			return nil
		}
		for _, p := range ports {
			left := slices.DeleteFunc(slices.Clone(e.Wanted.Ports), p.names)
			if len(left) == len(e.Wanted.Ports) {
				return &NotPublishedError{Port: p, Container: e.Container.ShortName(), Ports: e.Wanted.Ports}
			}
			e.Wanted.Ports = left
		}
		return nil
	})
}

// names reports whether p, as it was typed, means the published port q.
func (p Port) names(q Port) bool {
	return p.Protocol == q.Protocol && p.Port == q.Port && p.Count == q.Count &&
		(p.HostPort == 0 || p.HostPort == q.HostPort) && (!p.HostAddr.IsValid() || p.HostAddr == q.HostAddr)
}

// update changes what is wanted of an endpoint.
func update(ctx context.Context, cfg Config, network, ref string, change func(*Network, *Endpoint) error) (*Result, error) {
	return updateThat(ctx, cfg, func(s Store) (*Endpoint, error) { return s.findAnywhere(network, ref) }, change)
}

// SetPorts makes a container that Join has connected publish these ports and no others. On error
// everything is as before.
func SetPorts(ctx context.Context, cfg Config, network string, container attach.Container, ports []Port) (*Result, error) {
	find := func(s Store) (*Endpoint, error) { return s.Endpoint(network, endpointID(container)) }
	return updateThat(ctx, cfg, find, func(n *Network, e *Endpoint) error {
		e.Wanted.Ports = slices.Clone(ports)
		return n.checkConnection(&e.Wanted)
	})
}

// updateThat changes what is wanted of the endpoint that find returns.
func updateThat(ctx context.Context, cfg Config, find func(Store) (*Endpoint, error), change func(*Network, *Endpoint) error) (*Result, error) {
	return whenFree(ctx, cfg, func() (*Result, error) { return tryUpdate(ctx, cfg, find, change) })
}

func tryUpdate(ctx context.Context, cfg Config, find func(Store) (*Endpoint, error), change func(*Network, *Endpoint) error) (*Result, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	e, err := find(s.store)
	if err != nil {
		return nil, err
	}
	n, err := s.store.Network(e.Network)
	if err != nil {
		return nil, err
	}
	id := endpointID(e.Container)
	o, err := s.begin(ctx, operationName(e.Network, id), record{Network: e.Network, Endpoint: e})
	if err != nil {
		return nil, err
	}
	old, err := s.store.Endpoint(e.Network, id) // again: it may have changed since
	if err != nil {
		return nil, errors.Join(err, o.end())
	}
	now := *old
	if err := change(n, &now); err != nil {
		return nil, errors.Join(err, o.end())
	}
	// What either has is settled: what the file has is put into the kernel, the rest removed.
	both := now
	both.Wanted.Ports = union(old.Wanted.Ports, now.Wanted.Ports)
	err = s.replace(ctx, o, n, old, &now, &both)
	if err == nil { // a program may have taken a port since the claim
		added := now
		added.Wanted.Ports = now.portsSince(old)
		if err = n.checkReserved(&added); err != nil {
			err = errors.Join(err, s.store.writeEndpoint(old)) // so that abort removes what is new
		}
	}
	if err != nil {
		return nil, abort(ctx, o, s.settleUnknown, &both, err)
	}
	r := &Result{Network: n, Endpoint: &now, Notes: s.notes}
	added := now
	added.Wanted.Ports = now.portsSince(old)
	return r, s.endConnected(o, n, record{Endpoint: &added, ForgetPorts: true, Withdrawn: old.portsSince(&now)})
}

// portsSince returns the ports that e has and old has not.
func (e *Endpoint) portsSince(old *Endpoint) []Port {
	return slices.DeleteFunc(slices.Clone(e.Wanted.Ports), func(p Port) bool { return slices.Contains(old.Wanted.Ports, p) })
}

func union[T comparable](a, b []T) []T {
	all := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// replace claims the ports of an endpoint that are new, writes its file, and settles it. It
// adds the ports that it chooses to both.
func (s *session) replace(ctx context.Context, o *operation, n *Network, old, now, both *Endpoint) error {
	if err := s.claimPorts(ctx, o, n, now, both); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	if err := s.store.writeEndpoint(now); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	return s.settleEndpoint(ctx, both, old)
}

// findAnywhere finds an endpoint on a network or, if that is empty, on the only network that a
// container is on.
func (s Store) findAnywhere(network, ref string) (*Endpoint, error) {
	if network != "" {
		if _, err := s.Network(network); err != nil {
			return nil, err
		}
		return s.find(network, ref)
	}
	names, err := s.networkNames()
	if err != nil {
		return nil, err
	}
	var found []*Endpoint
	none := &NotConnectedError{Container: ref}
	for _, name := range names {
		e, err := s.find(name, ref)
		var not *NotConnectedError
		switch {
		case err == nil:
			found = append(found, e)
		case errors.As(err, &not):
			none.Containers = append(none.Containers, not.Containers...)
		default:
			return nil, err
		}
	}
	switch len(found) {
	case 0:
		return nil, none
	case 1:
		return found[0], nil
	}
	var on []string
	for _, e := range found {
		on = append(on, e.Network)
	}
	return nil, &attach.SpecError{Param: "network", Reason: ref + " is on several networks", Allowed: on}
}
