package named

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"cleat/network/ipam"
)

// An engine may ask for an address before it says which container gets it, as Docker does. HoldAddress
// reserves the address under a note, from which the container's endpoint takes it over
// (Managed.Reservation). Nobody else gets it in between, and no kill gives it to two.

// HoldAddress reserves an address of a network: a, or a free one of the subnet with this prefix if a is
// zero. The errors are those of Connect.
func HoldAddress(_ context.Context, cfg Config, network string, subnet netip.Prefix, a netip.Addr, note string) (netip.Addr, error) {
	s, err := open(cfg)
	if err != nil {
		return a, err
	}
	defer s.close()
	n, err := s.store.Network(network)
	if err != nil {
		return a, err
	}
	pool, err := s.poolForAll(n)
	if err != nil {
		return a, err
	}
	owner := ipam.Reservation(note)
	if !a.IsValid() {
		a, err := pool.Allocate(subnet, owner, netip.Addr{}, nil)
		return a, s.explain(n.Name, err)
	}
	if name := n.Reserve.owner(a); name != "" {
		return a, &AddressReservedError{Addr: a, Network: n.Name, For: name}
	}
	if held, err := pool.Owner(a); err == nil && held == owner {
		return a, &AddressTakenError{Addr: a, Network: n.Name, Container: note}
	}
	return a, s.explain(n.Name, pool.Claim(a, owner, nil))
}

// poolForAll returns the addresses of a network without those that are reserved for containers by name.
func (s *session) poolForAll(n *Network) (*ipam.Pool, error) {
	pool := s.pool(n)
	own, err := s.hostAddresses(&n.NetworkSpec)
	if err != nil {
		return nil, err
	}
	for i := range pool.Subnets {
		sub := &pool.Subnets[i]
		sub.Exclude = append([]netip.Prefix{}, sub.Exclude...)
		for _, addrs := range n.Reserve {
			own = append(own, addrs...)
		}
		for _, a := range own {
			if sub.Prefix.Contains(a) {
				sub.Exclude = append(sub.Exclude, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return pool, nil
}

// DropAddress frees an address that is reserved under a note.
func DropAddress(cfg Config, network string, a netip.Addr, note string) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	n, err := s.store.Network(network)
	if errors.As(err, new(*NoNetworkError)) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.pool(n).Release(a, ipam.Reservation(note))
}

// HeldAddresses returns the addresses of a network that are reserved under notes with a prefix, with their
// notes.
func HeldAddresses(cfg Config, network, prefix string) (map[netip.Addr]string, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	n, err := s.store.Network(network)
	if err != nil {
		return nil, err
	}
	entries, err := s.pool(n).Entries()
	all := map[netip.Addr]string{}
	for _, e := range entries {
		if note, reserved := e.Owner.Reserved(); reserved && strings.HasPrefix(note, prefix) {
			all[e.Addr] = note
		}
	}
	return all, err
}

// claim claims a requested address. If it is reserved for the endpoint, the endpoint takes it over.
func (e *Endpoint) claim(pool *ipam.Pool, a netip.Addr, note func(netip.Addr) error) error {
	err := pool.Claim(a, e.owner(), note)
	var taken *ipam.TakenError
	if m := e.Wanted.Managed; m != nil && m.Reservation != "" && errors.As(err, &taken) && taken.Owner == ipam.Reservation(m.Reservation) {
		return pool.Transfer(a, taken.Owner, e.owner(), note)
	}
	return err
}
