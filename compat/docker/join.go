package docker

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"time"

	"cleat/network/attach"
	"cleat/network/named"
)

// ifPrefix begins the names of links in containers, as with Docker's own drivers.
const ifPrefix = "eth"

// join connects a container. Its namespace may not exist yet: Docker moves the link there, and
// configures it.
func (c *call) join(ctx context.Context, r *join) (any, error) {
	e, err := c.store.endpoint(r.EndpointID)
	if err == nil && e == nil {
		err = errors.New("endpoint " + r.EndpointID + " is unknown")
	}
	if err != nil {
		return nil, err
	}
	n, of, err := c.networkOf(r.NetworkID)
	if err != nil {
		return nil, err
	}
	e.Key, e.Joined = r.SandboxKey, time.Now().UTC()
	if err := c.store.writeEndpoint(e); err != nil {
		return nil, err
	}
	resolvers, asked := c.hostResolvers()
	name, err := c.connect(ctx, n, of, e, resolvers, asked && of.OnHost())
	if err != nil {
		return nil, err
	}
	c.identifyLater(n, e, c.peer)
	return answerJoin(of, e, name, resolvers), nil
}

// connect makes the endpoint, and returns the name of the link on the host, "" if it is direct. If the
// container was connected before and its link is on the host again, that is used: Docker sends Leave and
// Join, without a new endpoint, when it changes how a container is connected to others.
func (c *call) connect(ctx context.Context, n *dockerNetwork, of *named.Network, e *dockerEndpoint, resolvers []netip.Addr, asked bool) (string, error) {
	container := e.container()
	old, err := named.Store{Store: c.networks.Attach.Store}.Endpoint(n.Network, container.FileName())
	switch {
	case err == nil:
		if name, is := c.onHost(old); is {
			return name, nil
		}
		if err := named.Leave(ctx, c.networks, n.Network, container); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	direct := n.Direct && fitsDirect(of, e.Key, c.peer)
	conn := named.Connection{MAC: e.MAC, RateBitsPerSec: e.Options.Rate, InboundBitsPerSec: e.Options.In, OutboundBitsPerSec: e.Options.Out,
		Aliases: e.Options.Aliases, Labels: e.Options.Labels, Managed: &named.Managed{Network: n.ID, HandOver: !direct, EngineRoutes: direct, Resolvers: resolvers, NamesInside: !asked}}
	if direct {
		conn.Interface = directName
	}
	if n.Held || len(e.Chosen) > 0 {
		conn.Managed.Reservation = Manager
	}
	for _, p := range e.Addresses {
		conn.Addresses = append(conn.Addresses, p.Addr())
	}
	got, err := named.Join(ctx, c.networks, n.Network, container, conn)
	if err != nil {
		return "", err
	}
	c.note(got)
	if direct {
		return "", nil
	}
	return got.Endpoint.Interface, nil
}

// onHost returns the name of an endpoint's link if that is on the host.
func (c *call) onHost(e *named.Endpoint) (string, bool) {
	a, err := c.networks.Attach.Store.Attachment(e.AttachmentID)
	if err != nil {
		return "", false
	}
	is, err := attach.OnHost(c.networks.Attach.Store, a)
	return a.Spec.Name, is && err == nil
}

// answerJoin tells Docker what to configure in the container.
func answerJoin(of *named.Network, e *dockerEndpoint, name string, resolvers []netip.Addr) *joined {
	j := &joined{InterfaceName: interfaceName{name, ifPrefix}, StaticRoutes: []staticRoute{}}
	for _, p := range e.Addresses {
		g := of.GatewayFor(p.Addr())
		if !g.IsValid() {
			continue
		}
		if of.Driver == named.Routed && g.Is4() {
			j.StaticRoutes = append(j.StaticRoutes, staticRoute{Destination: netip.PrefixFrom(g, g.BitLen()).String(), RouteType: connected})
		}
		switch {
		case of.Internal: // names are found all the same: the gateway answers in place of these
			for _, a := range resolvers {
				if a.Is4() == g.Is4() && !g.IsLinkLocalUnicast() {
					j.StaticRoutes = append(j.StaticRoutes, staticRoute{Destination: netip.PrefixFrom(a, a.BitLen()).String(), RouteType: viaNextHop, NextHop: g.String()})
				}
			}
		case g.Is4():
			j.Gateway = g.String()
		default:
			j.GatewayIPv6 = g.String()
		}
	}
	j.DisableGatewayService = j.Gateway == ""
	return j
}

// leave is followed by DeleteEndpoint or by another Join. Until then Docker has the link, which it moves
// back to the host.
func (c *call) leave(context.Context, *endpointRef) (any, error) { return struct{}{}, nil }
