package named

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"cleat/network/ipam"
)

// An engine may ask for an address before it says which container gets it, as Docker does. HoldAddress
// reserves the address under the name of the engine, from which the container's endpoint takes it over
// (Managed.Reservation). Nobody else gets it in between, and no kill gives it to two. When the container
// leaves, the address is reserved again until the engine releases it (DropAddress).

// heldSince is between the name of an engine and the time in the note of a reservation.
const heldSince = " since "

// holdNow returns the owner of an address that an engine holds from now on.
func holdNow(engine string) ipam.Owner {
	return ipam.Reservation(engine + heldSince + time.Now().UTC().Format(time.RFC3339))
}

// heldBy reports whether an address is held for an engine, and since when.
func heldBy(owner ipam.Owner, engine string) (since time.Time, is bool) {
	note, reserved := owner.Reserved()
	text, is := strings.CutPrefix(note, engine+heldSince)
	if !reserved || !is || engine == "" {
		return since, false
	}
	since, err := time.Parse(time.RFC3339, text)
	return since, err == nil
}

// HoldAddress reserves an address of a network for an engine: a, or a free one of the subnet with this
// prefix if a is zero. The errors are those of Connect.
func HoldAddress(ctx context.Context, cfg Config, network string, subnet netip.Prefix, a netip.Addr, engine string) (netip.Addr, error) {
	return whenFree(ctx, cfg, func() (netip.Addr, error) { return holdAddress(ctx, cfg, network, subnet, a, engine) })
}

func holdAddress(ctx context.Context, cfg Config, network string, subnet netip.Prefix, a netip.Addr, engine string) (netip.Addr, error) {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return a, err
	}
	defer s.close()
	if !a.IsValid() {
		return s.holdAny(ctx, n, subnet, engine)
	}
	if err := s.bringAddress(ctx, n, a); err != nil {
		return a, err
	}
	pool, err := s.poolForAll(n)
	if err != nil {
		return a, err
	}
	if name := n.Reserve.owner(a); name != "" {
		return a, &AddressReservedError{Addr: a, Network: n.Name, For: name}
	}
	if owner, err := pool.Owner(a); err == nil {
		if _, held := heldBy(owner, engine); held { // perhaps since this second, so that Claim would succeed
			return a, &AddressTakenError{Addr: a, Network: n.Name, Container: "another container of " + engine}
		}
	}
	return a, s.explain(n.Name, pool.Claim(a, holdNow(engine), nil))
}

// holdAny reserves a free address. If this host has none left of a network that spans hosts, it gets more.
func (s *session) holdAny(ctx context.Context, n *Network, subnet netip.Prefix, engine string) (a netip.Addr, err error) {
	hold := func() error {
		pool, err := s.poolForAll(n)
		if err != nil {
			return err
		}
		none := func(netip.Prefix) netip.Addr { return netip.Addr{} }
		a, err = s.takeFree(pool, n, subnet, holdNow(engine), none, nil)
		return err
	}
	if err = hold(); s.mayGetMore(n, err) {
		if err = s.moreAddresses(ctx, n, netip.Addr{}); err == nil {
			err = hold()
		}
	}
	return a, err
}

// poolForAll returns the addresses of a network without those that are reserved for containers by name.
func (s *session) poolForAll(n *Network) (*ipam.Pool, error) {
	pool := s.pool(n)
	own, err := s.hostAddresses(&n.NetworkSpec)
	if err != nil {
		return nil, err
	}
	for _, addrs := range n.Reserve {
		own = append(own, addrs...)
	}
	for i := range pool.Subnets {
		sub := &pool.Subnets[i]
		sub.Exclude = append([]netip.Prefix{}, sub.Exclude...)
		for _, a := range own {
			if sub.Prefix.Contains(a) {
				sub.Exclude = append(sub.Exclude, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return pool, nil
}

// DropAddress frees an address that is held for an engine. It does nothing if a container has the address.
func DropAddress(cfg Config, network string, a netip.Addr, engine string) error {
	s, n, err := openNetwork(cfg, network)
	if errors.As(err, new(*NoNetworkError)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.close()
	pool := s.pool(n)
	owner, err := pool.Owner(a)
	if _, held := heldBy(owner, engine); !held {
		return err
	}
	return pool.Release(a, owner)
}

// HeldAddresses returns the addresses of a network that are held for an engine, and since when.
func HeldAddresses(cfg Config, network, engine string) (map[netip.Addr]time.Time, error) {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return nil, err
	}
	defer s.close()
	entries, err := s.pool(n).Entries()
	all := map[netip.Addr]time.Time{}
	for _, e := range entries {
		if since, held := heldBy(e.Owner, engine); held {
			all[e.Addr] = since
		}
	}
	return all, err
}

// claim claims a requested address. If it is held for the endpoint's engine, the endpoint takes it over.
func (e *Endpoint) claim(pool *ipam.Pool, a netip.Addr, note func(netip.Addr) error) error {
	err := pool.Claim(a, e.owner(), note)
	var taken *ipam.TakenError
	if m := e.Wanted.Managed; m != nil && errors.As(err, &taken) {
		if _, held := heldBy(taken.Owner, m.Reservation); held {
			return pool.Transfer(a, taken.Owner, e.owner(), note)
		}
	}
	return err
}

// FreeSubnet returns a subnet that a network could have: one that neither the host nor another network
// uses, and that overlaps none of avoid.
func FreeSubnet(cfg Config, v6 bool, avoid []netip.Prefix) (netip.Prefix, error) {
	s, err := open(cfg)
	if err != nil {
		return netip.Prefix{}, err
	}
	defer s.close()
	all, err := s.store.Networks()
	if err != nil {
		return netip.Prefix{}, err
	}
	taken, err := s.occupied(all)
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, p := range avoid {
		taken = append(taken, occupied{p, "a network that is being created"})
	}
	var spec NetworkSpec
	if v6 {
		err = spec.addFree(ipam.DefaultPools6(machineID()), subnetBits6, taken)
	} else {
		err = spec.addFree(ipam.DefaultPools4(), subnetBits4, taken)
	}
	if err != nil {
		return netip.Prefix{}, err
	}
	return spec.Subnets[0].Prefix, nil
}
