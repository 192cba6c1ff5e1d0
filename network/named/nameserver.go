package named

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/names"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nameServerPath is the control socket of the name server of a state directory.
func (s Store) nameServerPath() string { return s.Path("names.socket") }

// NameServerPath returns the path of the control socket of the name server (names.Config) of a
// state directory.
func NameServerPath(s Store) string { return s.nameServerPath() }

// dnsPort is the port of name servers.
const dnsPort = 53

// zone returns a network without its endpoints as the name server knows it.
func (n *Network) zone() names.Network {
	z := names.Network{Name: n.Name, Domain: n.Domain, NoForward: n.Internal, AllReverse: n.AllReverse}
	for _, sub := range n.Subnets {
		z.Subnets = append(z.Subnets, sub.Prefix)
	}
	for _, a := range n.DNS {
		z.Upstream = append(z.Upstream, netip.AddrPortFrom(a, dnsPort))
	}
	return z
}

// host returns an endpoint as the name server knows it.
func (e *Endpoint) host() names.Endpoint {
	h := names.Endpoint{ID: endpointID(e.Container), Addrs: e.Addresses}
	if len(e.Names) > 0 {
		h.Name, h.Aliases = e.Names[0], e.Names[1:]
	}
	for _, p := range e.Wanted.Ports {
		for i := range p.Count {
			h.Ports = append(h.Ports, names.Port{Protocol: p.Protocol, Port: p.Port + i})
		}
	}
	return h
}

// withNames runs f with a connection to the name server. Without a server f is not run, and f may
// fail because the server ends, as it does without networks: whoever starts one sends it all names
// (SendNames).
func (s *session) withNames(ctx context.Context, f func(*names.Client) error) error {
	c, err := names.Dial(ctx, s.store.nameServerPath())
	if err == nil {
		defer c.Close()
		err = f(c)
	}
	if errors.Is(err, names.ErrNotRunning) {
		return nil
	}
	return err
}

// changeNames changes the names of a network, whose files have the change already. A server that has just
// started may not know the network: it gets all its names.
func (s *session) changeNames(ctx context.Context, network string, change names.Change) error {
	return s.withNames(ctx, func(c *names.Client) error {
		err := c.Set(ctx, network, change)
		if !errors.Is(err, names.ErrNotFound) {
			return err
		}
		n, err := s.store.Network(network)
		if errors.As(err, new(*NoNetworkError)) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.sendNetwork(ctx, c, n)
	})
}

// WaitForNames waits until the name server of a state directory runs and knows all networks. It
// returns at once if it does. If that takes seconds, the error says so.
func WaitForNames(ctx context.Context, store Store) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if knowsAll(ctx, store) {
			return nil
		}
		if !sleep(ctx, 2*time.Millisecond) {
			return fmt.Errorf("the name server did not start within %s", startTimeout)
		}
	}
}

// knowsAll reports whether the name server runs and knows all networks.
func knowsAll(ctx context.Context, store Store) bool {
	c, err := names.Dial(ctx, store.nameServerPath())
	if err != nil {
		return false
	}
	defer c.Close()
	wanted, err := store.networkNames()
	if err != nil {
		return false
	}
	served, err := c.State(ctx)
	if err != nil {
		return false
	}
	known := map[string]bool{}
	for _, n := range served.Networks {
		known[n.Name] = true
	}
	return !slices.ContainsFunc(wanted, func(name string) bool { return !known[name] })
}

// SendNames sends the names of all networks to a name server, and the sockets at which it
// serves them. It runs in the host's network namespace.
func SendNames(ctx context.Context, cfg Config, c *names.Client) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	all, err := s.store.Networks()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range all {
		errs = append(errs, s.sendNetwork(ctx, c, n))
	}
	return errors.Join(append(errs, s.sendInside(ctx, c))...)
}

// sendNetwork sends a network with all its names and sockets.
func (s *session) sendNetwork(ctx context.Context, c *names.Client, n *Network) error {
	endpoints, err := s.store.Endpoints(n.Name)
	if err != nil {
		return err
	}
	zone := n.zone()
	for _, e := range endpoints {
		zone.Endpoints = append(zone.Endpoints, e.host())
	}
	if n.Span != nil {
		hosts, err := s.store.remoteHosts(n.Name)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			for i := range h.Endpoints {
				zone.Endpoints = append(zone.Endpoints, h.Endpoints[i].name(h.Host))
			}
		}
	}
	if err := c.Replace(ctx, zone); err != nil {
		return err
	}
	servers, err := n.servers(s.host)
	if err != nil {
		return err
	}
	for _, g := range servers {
		if err := serveAt(ctx, c, s.host, names.Socket{ID: n.serverID(g), Networks: []string{n.Name}}, g, n.VRF); err != nil {
			return err
		}
	}
	return nil
}

// servers returns the addresses of the host at which names of the network are served: the gateways, or those
// of a bridge that somebody else configures.
func (n *Network) servers(host *netns.NS) ([]netip.Addr, error) {
	switch {
	case n.NoNames:
		return nil, nil
	case n.OnHost():
		return n.gateways(), nil
	case n.Driver != Unmanaged:
		return nil, nil
	}
	h, err := link.Handle(host)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	l, err := h.LinkByName(n.Parent)
	if err != nil {
		return nil, nil // checkParentUp reports that
	}
	addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", n.Parent, err)
	}
	var all []netip.Addr
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}

// handOver is more than the time from when a process opens sockets until the name server has them.
const handOver = time.Second

// serveAt opens sockets at an address of a namespace, or of a VRF there, and has the name server serve them.
// If another process is about to do the same, it waits for that. Sockets of a VRF that is gone are replaced.
func serveAt(ctx context.Context, c *names.Client, ns *netns.NS, at names.Socket, a netip.Addr, vrf string) error {
	device, err := vrfIndex(ns, vrf)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(handOver); ; {
		state, err := c.State(ctx)
		if err != nil || slices.ContainsFunc(state.Sockets, func(s names.SocketState) bool { return s.ID == at.ID && s.Device == device }) {
			return err
		}
		err = ns.Do(func() error {
			udp, tcp, err := names.OpenInVRF(vrf, netip.AddrPortFrom(a, dnsPort))
			if err != nil {
				return err
			}
			defer udp.Close()
			defer tcp.Close()
			return c.Serve(ctx, at, udp, tcp)
		})
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) || !sleep(ctx, 5*time.Millisecond) {
			return err
		}
	}
}

// vrfIndex returns the index of a VRF; 0 if the name is empty.
func vrfIndex(ns *netns.NS, vrf string) (int, error) {
	if vrf == "" {
		return 0, nil
	}
	l, err := link.Find(ns, vrf)
	if err != nil {
		return 0, err
	}
	return l.Index(), nil
}

// checkServers returns the networks whose names are served in a VRF that somebody has made anew since.
func (s *session) checkServers(networks []*Network, sockets []names.SocketState) (all []Difference) {
	for _, n := range networks {
		device, err := vrfIndex(s.host, n.VRF)
		if err != nil {
			continue // attach.CheckHost reports that
		}
		for _, g := range n.gateways() {
			if slices.ContainsFunc(sockets, func(k names.SocketState) bool { return k.ID == n.serverID(g) && k.Device != device }) {
				all = append(all, Difference{Network: n.Name, What: fmt.Sprintf("names at %s are served in a VRF that is gone", g)})
			}
		}
	}
	return all
}

// serverID returns the ID of the sockets at an address of the host.
func (n *Network) serverID(a netip.Addr) string { return n.Name + "@" + a.String() }

// dropNetwork removes a network from the name server.
func (s *session) dropNetwork(ctx context.Context, c *names.Client, n *Network) error {
	if n.OnHost() {
		for _, g := range n.gateways() {
			if err := c.Stop(ctx, n.serverID(g)); err != nil {
				return err
			}
		}
	}
	return c.Drop(ctx, n.Name)
}
