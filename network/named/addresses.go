package named

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/network/ipam"
)

// pool returns the addresses of a network.
func (s *session) pool(n *Network) *ipam.Pool {
	return &ipam.Pool{Dir: s.store.addressesDir(n.Name), Subnets: n.blocks()}
}

func (e *Endpoint) owner() ipam.Owner { return ipam.Owner(endpointID(e.Container)) }

// within returns those prefixes that a prefix contains.
func within(p netip.Prefix, all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(o netip.Prefix) bool { return !p.Contains(o.Addr()) })
}

// allocate claims an address of each subnet for an endpoint: the requested one, the one that is
// reserved for it, the one that a container of this name had before, or the next free one.
func (s *session) allocate(o *operation, n *Network, e *Endpoint) error {
	if n.Span != nil && n.Span.Held {
		return &HeldError{n.Name}
	}
	pool := s.pool(n)
	own, err := s.hostAddresses(&n.NetworkSpec)
	if err != nil {
		return err
	}
	for _, a := range own {
		for i := range pool.Subnets {
			if pool.Subnets[i].Prefix.Contains(a) {
				pool.Subnets[i].Exclude = append(slices.Clip(pool.Subnets[i].Exclude), netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for i := range pool.Subnets { // not those of other containers
		pool.Subnets[i].Exclude = slices.Concat(pool.Subnets[i].Exclude, within(pool.Subnets[i].Prefix, n.Reserve.notFor(e.Container)))
	}
	for _, sub := range n.Subnets {
		if n.Manager != "" && len(e.Wanted.Addresses) > 0 {
			continue // claimWanted
		}
		note := func(a netip.Addr) error {
			e.Addresses = append(e.Addresses, a)
			return o.record(record{Network: n.Name, Endpoint: e})
		}
		taken := len(e.Addresses)
		a, err := s.allocateIn(pool, sub, n, e, note)
		e.Addresses = e.Addresses[:taken] // record may have been called several times
		if err != nil {
			return err
		}
		e.Addresses = append(e.Addresses, a)
	}
	if n.Manager != "" {
		return s.claimWanted(o, pool, n, e)
	}
	return nil
}

// claimWanted claims all addresses that an engine has chosen, of which a subnet may have several.
func (s *session) claimWanted(o *operation, pool *ipam.Pool, n *Network, e *Endpoint) error {
	for _, a := range e.Wanted.Addresses {
		note := func(netip.Addr) error {
			both := *e
			both.Addresses = append(slices.Clip(e.Addresses), a)
			return o.record(record{Network: n.Name, Endpoint: &both})
		}
		if err := s.explain(n.Name, pool.Claim(a, e.owner(), note)); err != nil {
			return err
		}
		e.Addresses = append(e.Addresses, a)
	}
	return nil
}

func (s *session) allocateIn(pool *ipam.Pool, sub Subnet, n *Network, e *Endpoint, note func(netip.Addr) error) (netip.Addr, error) {
	for _, a := range slices.Concat(e.Wanted.Addresses, n.Reserve.of(e.Container)) {
		if !sub.Prefix.Contains(a) {
			continue
		}
		if name := n.Reserve.owner(a); name != "" && !isFor(name, e.Container) {
			return a, &AddressReservedError{Addr: a, Network: n.Name, For: name}
		}
		return a, s.explain(n.Name, e.claim(pool, a, note))
	}
	prefer := func(part netip.Prefix) netip.Addr { return pool.Remembered(part, e.owner()) }
	return s.takeFree(pool, n, sub.Prefix, e.owner(), prefer, note)
}

// takeFree takes a free address of a subnet for an owner: in each part the preferred one, if it is valid and free.
func (s *session) takeFree(pool *ipam.Pool, n *Network, subnet netip.Prefix, owner ipam.Owner, prefer func(part netip.Prefix) netip.Addr, note func(netip.Addr) error) (a netip.Addr, err error) {
	err = &ipam.FullError{Subnet: subnet}
	for _, part := range pool.Subnets { // one, unless the network spans hosts
		if subnet.Contains(part.Prefix.Addr()) && errors.As(err, new(*ipam.FullError)) {
			a, err = pool.Allocate(part.Prefix, owner, prefer(part.Prefix), note)
		}
	}
	return a, s.explain(n.Name, err)
}

// explain names the container where an error of package ipam names an endpoint.
func (s *session) explain(network string, err error) error {
	var taken *ipam.TakenError
	var unusable *ipam.UnusableError
	var full *ipam.FullError
	switch {
	case errors.As(err, &full):
		for i := range full.Owners {
			owner := &full.Owners[i].Owner
			*owner = ipam.Owner(s.containerOf(network, string(*owner)))
		}
	case errors.As(err, &taken):
		if _, reserved := taken.Owner.Reserved(); reserved {
			return err
		}
		return &AddressTakenError{Addr: taken.Addr, Network: network, Container: s.containerOf(network, string(taken.Owner))}
	case errors.As(err, &unusable):
		return badSpec("ip", unusable.Addr.String(), fmt.Sprintf("is %s network %s", unusable.Reason, network))
	}
	return err
}

// AddressTakenError means that another container has an address.
type AddressTakenError struct {
	Addr               netip.Addr
	Network, Container string
}

func (e *AddressTakenError) Error() string {
	return fmt.Sprintf("address %s of network %s belongs to %s", e.Addr, e.Network, e.Container)
}

// release frees the addresses of an endpoint. They stay noted under the container's name, which
// gets them again if nobody else has them by then.
func (s *session) release(e *Endpoint) error {
	n, err := s.store.Network(e.Network)
	if errors.As(err, new(*NoNetworkError)) {
		return nil // its addresses went with it
	}
	if err != nil {
		return err
	}
	pool := s.pool(n)
	for _, a := range e.Addresses {
		if n.subnet(a) == nil {
			continue // leased
		}
		if m := e.Wanted.Managed; m != nil && m.Reservation != "" && slices.Contains(e.Wanted.Addresses, a) { // its engine releases the address itself
			err := pool.Transfer(a, e.owner(), holdNow(m.Reservation), nil)
			if err != nil && !errors.As(err, new(*ipam.TakenError)) {
				return err
			}
			continue
		}
		var err error
		if n.Span == nil || slices.ContainsFunc(n.Span.Blocks, func(b netip.Prefix) bool { return b.Contains(a) }) {
			err = pool.Remember(a, e.owner())
		}
		if err := errors.Join(err, pool.Release(a, e.owner())); err != nil {
			return err
		}
	}
	return nil
}
