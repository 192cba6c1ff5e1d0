package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/network/attach"
	"cleat/network/named"
)

// networkOf returns a network of Docker and that of Cleat.
func (c *call) networkOf(id string) (*dockerNetwork, *named.Network, error) {
	n, err := c.store.network(id)
	if err != nil {
		return nil, nil, err
	}
	if n == nil {
		return nil, nil, fmt.Errorf("network %s is unknown: it was created with another state directory, or another driver; remove it and create it again", id)
	}
	of, err := c.named(n.Network)
	if err == nil && of == nil {
		err = &named.NoNetworkError{Name: n.Network}
	}
	return n, of, err
}

// createEndpoint notes what Docker wants for a container, and chooses the addresses that Docker has not
// chosen.
func (c *call) createEndpoint(ctx context.Context, r *createEndpoint) (any, error) {
	old, err := c.store.endpoint(r.EndpointID)
	if err != nil {
		return nil, err
	}
	n, of, err := c.networkOf(r.NetworkID)
	if err != nil {
		return nil, err
	}
	given := iface{}
	if r.Interface != nil {
		given = *r.Interface
	}
	if old != nil { // the daemon repeats a request whose answer it did not get
		return createdEndpoint{old.missingIn(given)}, nil
	}
	e := &dockerEndpoint{ID: r.EndpointID, NetworkID: n.ID, Created: time.Now().UTC()}
	if e.Options, err = parseEndpoint(r.Options); err != nil {
		return nil, err
	}
	if err := e.take(given, of); err != nil {
		return nil, err
	}
	if err := c.choose(ctx, e, of); err != nil {
		return nil, errors.Join(err, c.dropChosen(e, of.Name))
	}
	if err := c.store.prepare(); err != nil {
		return nil, err
	}
	return createdEndpoint{e.missingIn(given)}, c.store.writeEndpoint(e)
}

// take takes the addresses that Docker has chosen.
func (e *dockerEndpoint) take(given iface, of *named.Network) error {
	for _, text := range []string{given.Address, given.AddressIPv6} {
		if text == "" {
			continue
		}
		a, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("address %q: %w", text, err)
		}
		if !slices.ContainsFunc(of.Subnets, func(sub named.Subnet) bool { return sub.Prefix.Contains(a.Addr()) }) {
			return &attach.SpecError{Param: "ip", Value: a.Addr().String(), Reason: "is in no subnet of network " + of.Name, Allowed: subnetsOf(of)}
		}
		e.Addresses = append(e.Addresses, a)
	}
	if given.MacAddress == "" {
		e.MAC = attach.RandomMAC()
		return nil
	}
	var err error
	if e.MAC, err = link.ParseMAC(given.MacAddress); err != nil {
		return fmt.Errorf("read Ethernet address %q: %w", given.MacAddress, err)
	}
	return nil
}

// choose holds addresses of the subnets in which Docker has chosen none.
func (c *call) choose(ctx context.Context, e *dockerEndpoint, of *named.Network) error {
	for _, sub := range of.Subnets {
		if slices.ContainsFunc(e.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == sub.Prefix.Addr().Is4() }) {
			continue
		}
		a, err := named.HoldAddress(ctx, c.networks, of.Name, sub.Prefix, netip.Addr{}, Manager)
		if err != nil {
			return err
		}
		bits := sub.Prefix.Bits()
		if of.Driver == named.Routed {
			bits = a.BitLen()
		}
		e.Chosen = append(e.Chosen, a)
		e.Addresses = append(e.Addresses, netip.PrefixFrom(a, bits))
	}
	return nil
}

// dropChosen frees the addresses that choose has held.
func (c *call) dropChosen(e *dockerEndpoint, network string) error {
	var errs []error
	for _, a := range e.Chosen {
		errs = append(errs, named.DropAddress(c.networks, network, a, Manager))
	}
	return errors.Join(errs...)
}

// missingIn returns what Docker has not chosen; nil if it has chosen everything: an answer must not
// repeat what the request has.
func (e *dockerEndpoint) missingIn(given iface) *iface {
	var chosen iface
	for _, p := range e.Addresses {
		switch {
		case p.Addr().Is4() && given.Address == "":
			chosen.Address = p.String()
		case p.Addr().Is6() && given.AddressIPv6 == "":
			chosen.AddressIPv6 = p.String()
		}
	}
	if given.MacAddress == "" {
		chosen.MacAddress = e.MAC.String()
	}
	if chosen == (iface{}) {
		return nil
	}
	return &chosen
}

// deleteEndpoint disconnects a container. It succeeds if there is nothing to do.
func (c *call) deleteEndpoint(ctx context.Context, r *endpointRef) (any, error) {
	e, err := c.store.endpoint(r.EndpointID)
	if err != nil || e == nil {
		return struct{}{}, err
	}
	n, err := c.store.network(e.NetworkID)
	if err != nil {
		return nil, err
	}
	if n != nil {
		if err := named.Leave(ctx, c.networks, n.Network, e.container()); err != nil {
			return nil, err
		}
		if err := c.dropChosen(e, n.Network); err != nil {
			return nil, err
		}
	}
	return struct{}{}, statedir.Remove(c.store.endpointFile(e.ID))
}

// container returns the container of an endpoint as far as Docker has told: identify finds its name.
func (e *dockerEndpoint) container() attach.Container {
	return attach.Container{Manager: Manager, Engine: Manager, Key: e.ID, Name: e.ID[:min(len(e.ID), shortID)], Path: e.Key}
}

// endpointInfo answers `docker inspect`.
func (c *call) endpointInfo(_ context.Context, r *endpointRef) (any, error) {
	e, err := c.store.endpoint(r.EndpointID)
	if err != nil || e == nil {
		return operInfo{map[string]any{}}, err
	}
	value := map[string]any{"com.docker.network.endpoint.macaddress": e.MAC.String()}
	if n, err := c.store.network(e.NetworkID); err == nil && n != nil {
		value[optionOurs+"network"] = n.Network
	}
	return operInfo{value}, nil
}
