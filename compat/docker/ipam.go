package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/ipam"
	"cleat/network/named"
)

// addressSpace is the name of the space of all our pools.
const addressSpace = "cleat"

// pendingPool is how long a pool may have no network. Docker creates it at once.
const pendingPool = time.Minute

// requestPool chooses the subnet of a network: that of an existing network, the requested one, or a free
// one. Nothing of Cleat's is created yet: CreateNetwork follows.
func (c *call) requestPool(ctx context.Context, r *requestPool) (any, error) {
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := c.newPool(r)
	if err != nil {
		return nil, err
	}
	old, err := c.store.pool(p.ID)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if p, err = c.again(old, p); err != nil {
			return nil, err
		}
	}
	if err := c.store.writePool(p); err != nil {
		return nil, err
	}
	shown, data := p.Prefix, map[string]string{}
	if p.Exists {
		data[typeGateway] = netip.PrefixFrom(p.Gateway, p.Prefix.Bits()).String()
		if isAny(r.Pool) {
			shown = anyPool
		}
	}
	return requestedPool{PoolID: p.ID, Pool: shown.String(), Data: data}, nil
}

// anyPool is the subnet that Docker sees of an existing network unless it was given another one. dockerd
// rejects a subnet to which the host has a route, and requests another one for ever (requestPoolHelper,
// libnetwork/network.go of 20.10), except for this one.
var anyPool = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

func isAny(pool string) bool { return pool == "" || pool == anyPool.String() }

// again returns a pool that is requested once more: for another network of Docker on the same network of
// Cleat, or because the daemon did not get the answer.
func (c *call) again(old, p *pool) (*pool, error) {
	switch {
	case p.Exists:
		old.Users++
	case old.Bound || time.Since(old.Created) > pendingPool:
		if of, err := c.named(old.Network); err != nil || old.Bound && of != nil {
			return nil, errors.Join(err, &attach.TakenError{Resource: "network", Name: p.Prefix.String(), Owner: "network " + old.Network})
		}
		return p, nil // a pool that the daemon has forgotten
	}
	return old, nil
}

func (c *call) newPool(r *requestPool) (*pool, error) {
	p := &pool{Users: 1, Created: time.Now().UTC().Truncate(time.Second)}
	for _, key := range slices.Sorted(maps.Keys(r.Options)) {
		if name, _ := optionName(key); name != "network" && key != "network" {
			return nil, unknownOption(key, []string{"network"})
		}
		p.Network = r.Options[key]
	}
	if isAny(r.Pool) && r.SubPool != "" {
		return nil, &attach.SpecError{Param: "ip-range", Value: r.SubPool, Reason: "needs a subnet"}
	}
	var err error
	if !isAny(r.Pool) {
		if p.Prefix, err = netip.ParsePrefix(r.Pool); err != nil {
			return nil, &attach.SpecError{Param: "subnet", Value: r.Pool, Reason: "want a network, e.g. 10.20.0.0/24"}
		}
		p.Prefix = p.Prefix.Masked()
	}
	if r.SubPool != "" {
		if p.Range, err = netip.ParsePrefix(r.SubPool); err != nil || !p.Prefix.Contains(p.Range.Addr()) || p.Range.Bits() < p.Prefix.Bits() {
			return nil, &attach.SpecError{Param: "ip-range", Value: r.SubPool, Reason: "is not in the subnet " + r.Pool}
		}
	}
	if p.Network != "" {
		n, err := c.named(p.Network)
		if err != nil {
			return nil, err
		}
		if n != nil {
			return p, p.of(n, r.V6)
		}
	}
	if !p.Prefix.IsValid() {
		avoid, err := c.pending()
		if err != nil {
			return nil, err
		}
		if p.Prefix, err = named.FreeSubnet(c.networks, r.V6, avoid); err != nil {
			return nil, err
		}
	}
	p.ID = addressSpace + "/" + p.Prefix.String()
	return p, nil
}

// of makes p the subnet of an existing network.
func (p *pool) of(n *named.Network, v6 bool) error {
	p.Exists = true
	i := slices.IndexFunc(n.Subnets, func(sub named.Subnet) bool {
		return p.Prefix.IsValid() && sub.Prefix == p.Prefix || !p.Prefix.IsValid() && sub.Prefix.Addr().Is6() == v6
	})
	if i < 0 {
		return &attach.SpecError{Param: "subnet", Value: fmt.Sprint(p.Prefix), Reason: "network " + n.Name + " has no such subnet", Allowed: subnetsOf(n)}
	}
	if p.Range.IsValid() {
		return &attach.SpecError{Param: "ip-range", Value: p.Range.String(), Reason: "network " + n.Name + " exists, and Docker can't change it"}
	}
	p.Prefix, p.Gateway = n.Subnets[i].Prefix, n.Subnets[i].Gateway
	p.ID = addressSpace + "/" + n.Name + "/" + p.Prefix.String()
	return nil
}

// pending returns the subnets of networks that are being created.
func (c *call) pending() (all []netip.Prefix, err error) {
	pools, err := c.store.pools()
	for _, p := range pools {
		if !p.Bound && time.Since(p.Created) < pendingPool {
			all = append(all, p.Prefix)
		}
	}
	return all, err
}

// poolAt returns the pool of a network that is created; nil if it is of another IPAM driver.
func (c *call) poolAt(d poolData) (*pool, error) {
	if d.AddressSpace != addressSpace {
		return nil, nil
	}
	all, err := c.store.pools()
	// The last one is that of the network that is being created, if others have the same subnet.
	slices.SortStableFunc(all, func(a, b *pool) int { return b.Created.Compare(a.Created) })
	i := slices.IndexFunc(all, func(p *pool) bool {
		if d.Pool == anyPool.String() {
			return p.Exists && netip.PrefixFrom(p.Gateway, p.Prefix.Bits()).String() == d.Gateway
		}
		return p.Prefix.String() == d.Pool
	})
	if i < 0 {
		return nil, err
	}
	return all[i], nil
}

// poolsOf returns the pools of a network that is created, nil for those of other IPAM drivers.
func (c *call) poolsOf(r *createNetwork) (all []*pool, err error) {
	for _, d := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		p, err := c.poolAt(d)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (c *call) releasePool(ctx context.Context, r *releasePool) (any, error) {
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer c.store.tidy()
	p, err := c.store.pool(r.PoolID)
	if err != nil || p == nil {
		return struct{}{}, err
	}
	if p.Users--; p.Users > 0 {
		return struct{}{}, c.store.writePool(p)
	}
	return struct{}{}, statedir.Remove(c.store.poolFile(p.ID))
}

// requestAddress gives out an address: that of a gateway or an auxiliary one of a network that is being
// created, or that of a container, which is held until Join.
func (c *call) requestAddress(ctx context.Context, r *requestAddress) (any, error) {
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := c.store.pool(r.PoolID)
	if err == nil && p == nil {
		err = fmt.Errorf("pool %q is unknown; remove the network and create it again: docker network rm", r.PoolID)
	}
	if err != nil {
		return nil, err
	}
	var a netip.Addr
	if r.Address != "" {
		if a, err = netip.ParseAddr(r.Address); err != nil || !p.Prefix.Contains(a) {
			return nil, &attach.SpecError{Param: "ip", Value: r.Address, Reason: "is not in the subnet " + p.Prefix.String()}
		}
	}
	bits := p.Prefix.Bits()
	switch {
	case r.Options[optionAddress] == typeGateway:
		a, err = c.gateway(p, a)
	case !p.Bound && !p.Exists:
		err = c.auxiliary(p, a)
	default:
		a, bits, err = c.hold(ctx, p, a)
	}
	if err != nil {
		return nil, err
	}
	return requestedAddress{Address: netip.PrefixFrom(a, bits).String(), Data: map[string]string{}}, nil
}

// gateway makes an address the gateway: the first one if it is zero.
func (c *call) gateway(p *pool, a netip.Addr) (netip.Addr, error) {
	if p.Exists || p.Bound {
		if a.IsValid() && p.Gateway.IsValid() && a != p.Gateway {
			return a, &attach.SpecError{Param: "gateway", Value: a.String(), Reason: "is not that of network " + p.Network, Use: p.Gateway.String()}
		}
		return p.Gateway, nil
	}
	if !a.IsValid() {
		a = p.Prefix.Addr().Next()
		if p.Range.IsValid() && p.Range.Addr() != p.Prefix.Addr() {
			a = p.Range.Addr()
		}
	}
	p.Gateway = a
	return a, c.store.writePool(p)
}

// auxiliary excludes an address from those of containers.
func (c *call) auxiliary(p *pool, a netip.Addr) error {
	if !a.IsValid() {
		return errors.New("an auxiliary address is missing")
	}
	if a == p.Gateway || slices.Contains(p.Aux, a) {
		return &ipam.TakenError{Addr: a}
	}
	p.Aux = append(p.Aux, a)
	return c.store.writePool(p)
}

// hold reserves an address for a container. On a routed network it has no network in common with others.
func (c *call) hold(ctx context.Context, p *pool, a netip.Addr) (netip.Addr, int, error) {
	n, err := c.named(p.Network)
	if err == nil && n == nil {
		err = &named.NoNetworkError{Name: p.Network}
	}
	if err != nil {
		return a, 0, err
	}
	a, err = named.HoldAddress(ctx, c.networks, n.Name, p.Prefix, a, Manager)
	if errors.As(err, new(*ipam.FullError)) || isTaken(err) { // perhaps by containers that are gone
		if released, _ := named.ReleaseForgotten(ctx, c.networks, n.Name); len(released) > 0 {
			a, err = named.HoldAddress(ctx, c.networks, n.Name, p.Prefix, a, Manager)
		}
	}
	if n.Driver == named.Routed {
		return a, p.Prefix.Addr().BitLen(), err
	}
	return a, p.Prefix.Bits(), err
}

func isTaken(err error) bool {
	return errors.As(err, new(*named.AddressTakenError)) || errors.As(err, new(*ipam.TakenError))
}

func (c *call) releaseAddress(ctx context.Context, r *releaseAddress) (any, error) {
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := c.store.pool(r.PoolID)
	if err != nil || p == nil {
		return struct{}{}, err
	}
	a, err := netip.ParseAddr(r.Address)
	if err != nil || p.Network == "" {
		return struct{}{}, nil
	}
	return struct{}{}, named.DropAddress(c.networks, p.Network, a, Manager)
}
