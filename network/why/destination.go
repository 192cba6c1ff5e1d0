package why

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/named"
)

// target is one address that is probed.
type target struct {
	addr     netip.Addr
	at       *machine        // that has the address; nil: a machine outside this host
	endpoint *named.Endpoint // whose address it is; nil: none
	// published is the container to which the port of the host is published; nil: none.
	published *publication
	route     route // of the source
	outcome   outcome
	said      string // what the probe experienced, in words
}

// newTarget returns a target that was not probed yet.
func newTarget(a netip.Addr, at *machine, e *named.Endpoint) *target {
	return &target{addr: a, at: at, endpoint: e, outcome: untried}
}

// findDestination finds what the destination's name means. Only a name that means several
// containers, or an unknown NAME of an existing NETWORK, is an error.
func (v *investigation) findDestination(ctx context.Context) error {
	name := v.q.To.Name
	if name == Host {
		v.to = []*machine{v.host}
		for _, a := range v.hostAddresses() {
			v.aim(ctx, a)
		}
		return nil
	}
	if a, err := netip.ParseAddr(name); err == nil {
		v.aim(ctx, a.Unmap())
		return nil
	}
	if !strings.ContainsAny(name, "/:@") {
		v.name = name
		if found := v.visible(name); len(found) > 0 {
			v.aimAtAll(ctx, found)
			return nil
		}
	}
	found, err := v.endpointsOf(name)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		v.aimAtAll(ctx, found)
		return nil
	}
	return v.findUnconnected(ctx, name)
}

// findUnconnected finds a destination that is on no network: a container, or a DNS name.
func (v *investigation) findUnconnected(ctx context.Context, name string) error {
	m, err := v.unconnected(ctx, name)
	var stopped *find.NotRunning
	switch {
	case err == nil:
		v.to = []*machine{m}
		addrs, err := addresses(m.ns)
		for _, a := range addrs {
			v.targets = append(v.targets, newTarget(a, m, nil))
		}
		return err
	case errors.As(err, &stopped):
		v.to = []*machine{{label: name, err: err}}
		return nil
	case v.name != "" && (errors.As(err, new(*find.NotFound)) || errors.Is(err, netns.ErrNotFound) || errors.As(err, new(*find.Unasked))):
		return nil // a DNS name, perhaps
	}
	return err
}

// visible returns the endpoints that have a name on the source's networks.
func (v *investigation) visible(name string) []*named.Endpoint {
	short, network, qualified := strings.Cut(name, ".")
	return v.matching(func(e *named.Endpoint) bool {
		return v.from.on(e.Network) != nil && (hasName(e, name) || qualified && e.Network == network && hasName(e, short))
	})
}

// hostAddresses returns the addresses at which the source finds the host: the gateways of its
// networks.
func (v *investigation) hostAddresses() []netip.Addr {
	var all []netip.Addr
	for _, e := range v.from.endpoints {
		n := v.network(e.Network)
		if n == nil || !n.OnHost() {
			continue
		}
		for _, sub := range n.Subnets {
			all = append(all, sub.Gateway)
		}
	}
	if len(all) == 0 {
		all, _ = addresses(v.host.ns)
	}
	return all
}

// aimAtAll makes the addresses of endpoints targets: those on the source's networks or, if
// there are none, all.
func (v *investigation) aimAtAll(ctx context.Context, all []*named.Endpoint) {
	near := slices.DeleteFunc(slices.Clone(all), func(e *named.Endpoint) bool { return v.from.on(e.Network) == nil })
	if len(near) > 0 {
		all = near
	}
	for _, e := range all {
		m := v.destinationOf(ctx, e)
		for _, a := range e.Addresses {
			v.targets = append(v.targets, newTarget(a, m, e))
		}
	}
}

// destinationOf returns the container of an endpoint, and makes it a destination.
func (v *investigation) destinationOf(ctx context.Context, e *named.Endpoint) *machine {
	m := v.machineOf(ctx, e)
	if !slices.Contains(v.to, m) {
		v.to = append(v.to, m)
	}
	return m
}

// aim makes an address a target.
func (v *investigation) aim(ctx context.Context, a netip.Addr) {
	if slices.ContainsFunc(v.targets, func(t *target) bool { return t.addr == a }) {
		return
	}
	t := newTarget(a, nil, nil)
	v.targets = append(v.targets, t)
	if a.IsLoopback() {
		t.at = v.from
		return
	}
	found := v.matching(func(e *named.Endpoint) bool { return slices.Contains(e.Addresses, a) })
	if i := slices.IndexFunc(found, func(e *named.Endpoint) bool { return v.from.on(e.Network) != nil }); i > 0 {
		found = found[i:] // networks of a parent may have addresses in common
	}
	if len(found) > 0 {
		t.endpoint, t.at = found[0], v.destinationOf(ctx, found[0])
		return
	}
	if on, err := addresses(v.host.ns); err == nil && slices.Contains(on, a) {
		t.at = v.host
		if !slices.Contains(v.to, v.host) {
			v.to = append(v.to, v.host)
		}
		t.published = v.publication(ctx, a)
	}
}
