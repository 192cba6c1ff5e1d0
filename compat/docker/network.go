package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/named"
)

// labelID is the label of a network of Cleat that Docker has created: the ID of Docker's network. So
// a request that is repeated, because a keeper was killed, finds it.
const labelID = "docker.network.id"

// nameless begins the names of networks of Cleat whose name Docker does not tell. shortID is the
// number of digits of an ID that follow, as `docker network ls` shows them.
const (
	nameless = "docker-"
	shortID  = 12
)

// createNetwork creates a network of Cleat for one of Docker, or lets Docker's be an existing one.
func (c *call) createNetwork(ctx context.Context, r *createNetwork) (any, error) {
	if err := checkID("network ID", r.NetworkID); err != nil {
		return nil, err
	}
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := c.store.network(r.NetworkID)
	if err != nil || n != nil { // the daemon repeats a request whose answer it did not get
		return struct{}{}, err
	}
	spec, given, err := networkSpec(r.Options)
	if err != nil {
		return nil, err
	}
	n = &dockerNetwork{ID: r.NetworkID, API: apiOf(c.peer), Direct: spec.Direct}
	pools, err := c.poolsOf(r)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		n.Held = n.Held || p != nil
		if p == nil || p.Network == "" {
			continue
		}
		if spec.Name != "" && spec.Name != p.Network {
			return nil, &attach.SpecError{Param: optionOurs + "network", Value: spec.Name, Reason: "the IPAM driver was told network " + p.Network}
		}
		spec.Name = p.Network
	}
	if spec.Name == "" {
		spec.Name = nameless + r.NetworkID[:min(len(r.NetworkID), shortID)]
	}
	n.Network = spec.Name
	existing, err := c.named(spec.Name)
	switch {
	case err != nil:
	case existing == nil:
		err = c.create(ctx, n, spec.NetworkSpec, r)
	case existing.Labels[labelID] == r.NetworkID: // of the request that is repeated
		n.Created = true
	default:
		if err = c.use(existing, given, r); err == nil {
			err = managesAddresses(existing, pools, r)
		}
	}
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		if p == nil {
			continue
		}
		if p.Network, p.Bound = n.Network, true; p.Exists && n.Created {
			p.Exists = false
		}
		if err := c.store.writePool(p); err != nil {
			return nil, err
		}
	}
	return struct{}{}, c.store.writeNetwork(n)
}

// named returns a network of Cleat; nil if there is none of this name.
func (c *call) named(name string) (*named.Network, error) {
	n, err := named.Store{Store: c.networks.Attach.Store}.Network(name)
	if errors.As(err, new(*named.NoNetworkError)) {
		return nil, nil
	}
	return n, err
}

// create creates the network of Cleat.
func (c *call) create(ctx context.Context, n *dockerNetwork, spec named.NetworkSpec, r *createNetwork) error {
	spec.Labels = map[string]string{labelID: n.ID}
	for _, d := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		sub, ok, err := c.subnet(d)
		if err != nil {
			return err
		}
		if ok {
			spec.Subnets = append(spec.Subnets, sub)
		}
	}
	if v6, _ := r.Options[optionIPv6].(bool); v6 && len(r.IPv6Data) == 0 {
		spec.IPv6 = true
	}
	if spec.Driver == named.Routed && !n.Held && len(spec.Subnets) > 0 {
		return &attach.SpecError{Param: optionOurs + "driver", Value: spec.Driver, Reason: "needs addresses of our IPAM driver: --ipam-driver cleat"}
	}
	got, err := named.Create(ctx, c.networks, spec)
	if err != nil {
		return err
	}
	n.Created = true
	c.note(got)
	return nil
}

// subnet returns a subnet of a new network. It is not ok for the IPAM driver "null", which leaves the
// addresses to us.
func (c *call) subnet(d poolData) (sub named.Subnet, ok bool, err error) {
	if sub.Prefix, err = netip.ParsePrefix(d.Pool); err != nil {
		return sub, false, fmt.Errorf("pool %q: %w", d.Pool, err)
	}
	if sub.Prefix.Bits() == 0 {
		return sub, false, nil
	}
	if g, err := netip.ParsePrefix(d.Gateway); err == nil {
		sub.Gateway = g.Addr()
	}
	for name, text := range d.AuxAddresses {
		address, _, _ := strings.Cut(text, "/") // the documentation has no prefix length, dockerd has one
		a, err := netip.ParseAddr(address)
		if err != nil {
			return sub, false, fmt.Errorf("auxiliary address %s=%q: %w", name, text, err)
		}
		sub.Exclude = append(sub.Exclude, netip.PrefixFrom(a, a.BitLen()))
	}
	p, err := c.poolAt(d)
	if p != nil {
		sub.Range = p.Range
	}
	return sub, true, err
}

// use checks that Docker's network can be an existing network of Cleat.
func (c *call) use(n *named.Network, given []string, r *createNetwork) error {
	if i := slices.IndexFunc(given, func(name string) bool { return name != "network" && name != "direct" }); i >= 0 {
		return &attach.SpecError{Param: "option", Value: optionOurs + given[i], Reason: "network " + n.Name + " exists, and Docker can't change it"}
	}
	if n.DHCP {
		return &attach.SpecError{Param: optionOurs + "network", Value: n.Name, Reason: "gets its addresses from a DHCP server, which Docker does not ask"}
	}
	if internal, _ := r.Options[optionInternal].(bool); internal != n.Internal {
		return &attach.SpecError{Param: "internal", Value: fmt.Sprint(internal), Reason: fmt.Sprintf("network %s has internal=%v", n.Name, n.Internal)}
	}
	for _, d := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		p, err := netip.ParsePrefix(d.Pool)
		if err != nil || p.Bits() == 0 {
			continue
		}
		i := slices.IndexFunc(n.Subnets, func(sub named.Subnet) bool { return sub.Prefix == p })
		if i < 0 {
			return &attach.SpecError{Param: "subnet", Value: d.Pool, Reason: "is none of network " + n.Name, Allowed: subnetsOf(n),
				Use: "--ipam-driver cleat --ipam-opt " + optionOurs + "network=" + n.Name}
		}
		if g, err := netip.ParsePrefix(d.Gateway); err == nil && g.Addr() != n.Subnets[i].Gateway {
			return &attach.SpecError{Param: "gateway", Value: g.Addr().String(), Reason: "is not that of network " + n.Name, Use: n.Subnets[i].Gateway.String()}
		}
	}
	return nil
}

// managesAddresses returns an error if another IPAM driver gives the addresses of a network that spans hosts: it
// does not know those of the other hosts. pools are those of r.
func managesAddresses(n *named.Network, pools []*pool, r *createNetwork) error {
	if !n.Spans {
		return nil
	}
	for i, d := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		if p, err := netip.ParsePrefix(d.Pool); err == nil && p.Bits() > 0 && pools[i] == nil {
			return &attach.SpecError{Param: "ipam-driver", Value: d.AddressSpace, Reason: "does not know which addresses of network " + n.Name + " belong to other hosts",
				Use: "--ipam-driver cleat --ipam-opt " + optionOurs + "network=" + n.Name}
		}
	}
	return nil
}

func subnetsOf(n *named.Network) (all []string) {
	for _, sub := range n.Subnets {
		all = append(all, sub.Prefix.String())
	}
	return all
}

// note logs what an operation has to say. Docker has no place for it.
func (c *call) note(r *named.Result) {
	for _, n := range r.Notes {
		c.Log("network %s: %s", r.Network.Name, n)
	}
}

// deleteNetwork removes a network of Docker and, if Docker has created it and nobody else is on it, that
// of Cleat.
func (c *call) deleteNetwork(ctx context.Context, r *networkRef) (any, error) {
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer c.store.tidy()
	n, err := c.store.network(r.NetworkID)
	if err != nil || n == nil {
		return struct{}{}, err
	}
	if n.Created {
		err := c.removeCreated(ctx, n)
		if err != nil {
			return nil, err
		}
	}
	return struct{}{}, statedir.Remove(c.store.networkFile(n.ID))
}

func (c *call) removeCreated(ctx context.Context, n *dockerNetwork) error {
	of, err := c.named(n.Network)
	if err != nil || of == nil || of.Labels[labelID] != n.ID {
		return err // somebody removed it
	}
	if _, err := named.ReleaseForgotten(ctx, c.networks, n.Network); err != nil {
		return err
	}
	_, err = named.Remove(ctx, c.networks, n.Network, false)
	var inUse *named.InUseError
	switch {
	case errors.As(err, &inUse):
		c.Log("network %s stays after Docker's was removed: %v", n.Network, err)
		return nil
	case errors.As(err, new(*named.NoNetworkError)):
		return nil
	}
	return err
}
