package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/resolvconf"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// add connects the container.
func (c *call) add(ctx context.Context) error {
	if err := c.checkNamespace(); err != nil {
		return err
	}
	conn, err := c.connection()
	if err != nil {
		return err
	}
	container, also := c.identify()
	conn.Aliases = append(conn.Aliases, also...)
	conn.NoDNS = container.ResolvConfFile == ""
	conn.Managed = &named.Managed{Container: c.containerID, Network: c.conf.Name, Interface: c.ifname}
	if conn.NoDNS { // its runtime may give it the host's resolv.conf later
		conn.Managed.Resolvers = resolvconf.HostServers(c.Networks.ResolvConf)
	}
	switch {
	case conn.Interface != "":
	case c.conf.prev != nil && hasInterface(c.conf.prev, c.ifname): // of a plug-in before this one
	default:
		conn.Interface = c.ifname
	}
	got, err := c.join(ctx, container, conn)
	if err != nil {
		return err
	}
	return c.print(c.result(got))
}

// checkNamespace returns an error if CNI_NETNS is not the network namespace of a container.
func (c *call) checkNamespace() error {
	err := netns.CheckOther(c.netns)
	switch {
	case errors.Is(err, netns.ErrCurrent):
		return types.NewError(types.ErrInvalidNetNS, c.netns+" is the host's network namespace", "")
	case err != nil:
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("open CNI_NETNS: %v", err), "")
	}
	return nil
}

// join connects the container. It creates the network if the configuration says how. If the container
// has a link to the network already, by another name, the new one has a key of its own.
func (c *call) join(ctx context.Context, container attach.Container, conn named.Connection) (*named.Result, error) {
	got, err := named.Join(ctx, c.Networks, c.conf.Network, container, conn)
	if errors.As(err, new(*named.NoNetworkError)) && c.conf.Create != nil {
		if err := c.createNetwork(ctx); err != nil {
			return nil, err
		}
		got, err = named.Join(ctx, c.Networks, c.conf.Network, container, conn)
	}
	if !errors.As(err, new(*named.ConnectedError)) {
		return got, err
	}
	if e := c.endpoint(); e != nil {
		return nil, err
	}
	container.Key, conn.NoDNS = secondKey(c.containerID, c.ifname), true
	return named.Join(ctx, c.Networks, c.conf.Network, container, conn)
}

// secondKey returns the key of a container's second link to one network.
func secondKey(containerID, ifname string) string { return containerID + "@" + ifname }

// createNetwork creates the network as the configuration says. Another call may create it at the same
// time.
func (c *call) createNetwork(ctx context.Context) error {
	text := fmt.Appendf(nil, "{%q: {%q: %s}}", "networks", c.conf.Network, c.conf.Create)
	wanted, err := named.ParseFile("create", text)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "create has the keys of a network in a file of `cleat net apply`")
	}
	changes, err := named.Plan(ctx, c.Networks, wanted, false)
	if err == nil {
		err = named.Apply(ctx, c.Networks, changes, func(named.PlannedChange) {})
	}
	var taken *attach.TakenError
	if errors.As(err, &taken) && taken.Name == c.conf.Network {
		return nil
	}
	return err
}

func hasInterface(r *types100.Result, name string) bool {
	for _, i := range r.Interfaces {
		if i.Sandbox != "" && i.Name == name {
			return true
		}
	}
	return false
}

// result describes the container's link, after what the plug-ins before this one have made.
func (c *call) result(got *named.Result) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if c.conf.prev != nil {
		r = c.conf.prev
	}
	spec := got.Link.Attachment.Spec
	var made attach.MakeLink
	for _, step := range got.Link.Steps {
		if m, ok := step.(attach.MakeLink); ok {
			made = m
		}
	}
	if got.Network.Driver == named.Bridge {
		r.Interfaces = append(r.Interfaces, hostDevice(got.Network.Device()))
	}
	mtu, _ := strconv.Atoi(made.Params["mtu"])
	if made.Peer != "" {
		r.Interfaces = append(r.Interfaces, &types100.Interface{Name: made.Peer, Mac: made.PeerMAC.String(), Mtu: mtu})
	}
	r.Interfaces = append(r.Interfaces, &types100.Interface{Name: got.Endpoint.Interface, Mac: got.Endpoint.MAC.String(), Mtu: mtu, Sandbox: c.netns})
	at := len(r.Interfaces) - 1
	addresses := spec.Addresses
	if got.Link.Lease != nil {
		addresses = append(addresses, got.Link.Lease.Address)
	}
	for _, a := range addresses {
		ip := &types100.IPConfig{Interface: &at, Address: ipNet(a)}
		for _, g := range append(spec.Gateways[:len(spec.Gateways):len(spec.Gateways)], spec.SourceGateways...) {
			if g.Is4() == a.Addr().Is4() {
				ip.Gateway = g.AsSlice()
			}
		}
		r.IPs = append(r.IPs, ip)
	}
	for _, route := range spec.Routes {
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(route.To), GW: route.Via.AsSlice()})
	}
	for _, g := range spec.Gateways {
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if g.Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(everything), GW: g.AsSlice()})
	}
	c.addDNS(r, got)
	return r
}

// hostDevice describes a device of the host, as far as it can be read.
func hostDevice(name string) *types100.Interface {
	i := &types100.Interface{Name: name}
	h, err := link.HandleHere()
	if err != nil {
		return i
	}
	defer h.Close()
	if l, err := h.LinkByName(name); err == nil {
		i.Mac, i.Mtu = l.Attrs().HardwareAddr.String(), l.Attrs().MTU
	}
	return i
}

// addDNS adds where the names of the network are served, before what the configuration and the runtime
// name.
func (c *call) addDNS(r *types100.Result, got *named.Result) {
	for _, s := range got.NameServers() {
		r.DNS.Nameservers = append(r.DNS.Nameservers, s.String())
	}
	r.DNS.Nameservers = append(r.DNS.Nameservers, c.conf.DNS.Nameservers...)
	r.DNS.Nameservers = append(r.DNS.Nameservers, c.conf.Runtime.DNS.Servers...)
	r.DNS.Search = append(append(r.DNS.Search, c.conf.DNS.Search...), c.conf.Runtime.DNS.Searches...)
	r.DNS.Options = append(append(r.DNS.Options, c.conf.DNS.Options...), c.conf.Runtime.DNS.Options...)
	if c.conf.DNS.Domain != "" {
		r.DNS.Domain = c.conf.DNS.Domain
	}
}

// print prints a result in the version of the configuration.
func (c *call) print(r types.Result) error {
	converted, err := r.GetAsVersion(c.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("convert the result: %w", err)
	}
	return converted.PrintTo(c.out)
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
