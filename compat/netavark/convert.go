package netavark

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/ipam"
	"cleat/network/named"
)

// searchDomain is the domain of names on Podman's networks.
const searchDomain = "dns.podman"

// The metrics of default routes.
const (
	bridgeMetric = 100 // of most programs
	parentMetric = 99  // so that a network of a parent comes before a bridge
)

// spec returns the network of cleat for a network of Podman.
func (n *network) spec(name string) (named.NetworkSpec, error) {
	s := named.NetworkSpec{Name: name, Internal: n.Internal, DNS: addrs(n.DNSServers)}
	s.Manager, s.ManagerID, s.ManagerName, s.NoNames, s.Domain = Manager, n.ID, n.Name, !n.DNS, searchDomain
	s.AllReverse = true
	o, err := parseOptions(n.Options, nil, "")
	if err == nil {
		err = checkMode(n.Driver, o.mode)
	}
	if err != nil {
		return s, err
	}
	s.MTU, s.NoDefaultRoute = o.mtu, o.noDefaultRoute || n.Internal
	if err := n.driver(&s, o); err != nil {
		return s, err
	}
	if o.metric != nil {
		s.RouteMetric = *o.metric
	}
	if err := n.subnets(&s); err != nil {
		return s, err
	}
	if err := n.checkServers(s.DNS); err != nil {
		return s, err
	}
	for _, r := range n.Routes {
		s.Routes = append(s.Routes, r.spec())
	}
	return s, nil
}

// checkServers rejects a server for names of others that is a gateway, where names are served.
func (n *network) checkServers(servers []netip.Addr) error {
	for _, sub := range n.Subnets {
		if n.DNS && sub.Gateway != nil && slices.Contains(servers, sub.Gateway.Addr) {
			return failure("network %s: dns server %s is the gateway, which would cause aardvark-dns to forward queries to itself", n.Name, sub.Gateway)
		}
	}
	return nil
}

// driver sets what depends on the driver.
func (n *network) driver(s *named.NetworkSpec, o networkOptions) error {
	switch {
	case n.Driver == driverBridge && o.mode == "unmanaged":
		s.Driver, s.Parent, s.RouteMetric, s.VLAN = named.Unmanaged, n.device(), bridgeMetric, o.vlan
		s.DHCP, s.Internal = n.ipamDriver() == ipamDHCP, false
	case n.Driver == driverBridge || n.Driver == driverCleat:
		s.Driver, s.Bridge, s.RouteMetric, s.VLAN, s.HostAccess = named.Bridge, n.device(), bridgeMetric, o.vlan, named.HostAll
		if n.Internal {
			s.HostAccess = named.HostGateway
		}
		s.VRF, s.Outbound = o.vrf, o.outbound
		s.Isolation = map[string]string{"false": named.IsolatedFromNone, "true": named.IsolatedFromSome}[o.isolate]
		if n.ipamDriver() == ipamDHCP {
			return failure("cannot use dhcp ipam driver without using the option mode=unmanaged")
		}
	default:
		s.Driver, s.Parent, s.Mode, s.RouteMetric = n.Driver, n.device(), o.mode, parentMetric
		s.DHCP, s.Internal, s.NoNames = n.ipamDriver() == ipamDHCP, false, true
		if o.bclim != nil && n.Driver == driverMacvlan {
			s.LinkParams = map[string]string{"bc_cutoff": strconv.Itoa(*o.bclim)}
		}
	}
	if s.Driver == named.Bridge && s.Bridge == "" && n.Driver == driverBridge || s.Driver == named.Unmanaged && s.Parent == "" {
		return failure("no bridge interface name given")
	}
	return nil
}

// subnets adds the subnets. A network without a gateway has one that no container is likely to have.
func (n *network) subnets(s *named.NetworkSpec) error {
	if err := n.checkOverlap(); err != nil {
		return err
	}
	for _, from := range n.Subnets {
		sub := named.Subnet{Prefix: from.Subnet.Masked()}
		if from.Gateway != nil {
			sub.Gateway = from.Gateway.Addr
		} else {
			s.NoDefaultRoute = true
			if _, sub.Gateway = ipam.Bounds(sub.Prefix); sub.Gateway.Is4() {
				sub.Gateway = sub.Gateway.Prev()
			}
		}
		s.Subnets = append(s.Subnets, sub)
	}
	return nil
}

func (r route) spec() attach.Route {
	out := attach.Route{To: r.To.Masked(), AnyLink: true}
	if r.Via != nil {
		out.Via = r.Via.Addr
	}
	if r.Metric != nil {
		out.Metric = int(*r.Metric)
	} else {
		out.Metric = bridgeMetric
	}
	if r.Type != nil && *r.Type != "unicast" {
		out.Type = *r.Type
	}
	return out
}

func addrs(all []addr) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, a.Addr)
	}
	return out
}

// parseServers parses lists of addresses with commas between them.
func parseServers(texts []string) (all []netip.Addr, err error) {
	for _, text := range texts {
		for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
			a, err := netip.ParseAddr(one)
			if err != nil {
				return nil, failure("unable to parse ip %s: %v", one, errAddress)
			}
			all = append(all, a)
		}
	}
	return all, nil
}

// connection returns how a container is connected to a network.
func (o *options) connection(n *network, c connection) (named.Connection, error) {
	conn := named.Connection{Interface: c.Interface, NoDNS: true, PortsReserved: true,
		HostInterface: c.Options["host_interface_name"], Managed: &named.Managed{Container: o.ContainerID, Network: n.Name, Interface: c.Interface}}
	if c.Interface == "" {
		return conn, failure("no container interface name given")
	}
	if err := n.checkAddresses(c); err != nil {
		return conn, err
	}
	if err := n.checkServers(addrs(o.DNSServers)); err != nil {
		return conn, err
	}
	if len(n.Subnets) > 0 {
		conn.Addresses = addrs(c.IPs)
	}
	if c.MAC != "" && n.Driver != driverIPvlan {
		mac, err := link.ParseMAC(c.MAC)
		if err != nil {
			return conn, failure("unable to parse mac address %s: %v", c.MAC, err)
		}
		conn.MAC = mac
	}
	if n.Driver == driverMacvlan || n.Driver == driverIPvlan {
		conn.HostInterface = ""
	}
	for _, alias := range c.Aliases {
		if named.ValidName(alias) {
			conn.Aliases = append(conn.Aliases, alias)
		}
	}
	return conn, nil
}

// checkAddresses checks the addresses that Podman has chosen.
func (n *network) checkAddresses(c connection) error {
	switch driver := n.ipamDriver(); driver {
	case ipamDHCP, ipamNone, ipamCleat:
		return nil
	case "", ipamHostLocal:
	default:
		return failure("unsupported ipam driver %s", driver)
	}
	if c.IPs == nil {
		return failure("no static ips provided")
	}
	matching := slices.DeleteFunc(slices.Clone(c.IPs), func(a addr) bool {
		return !slices.ContainsFunc(n.Subnets, func(s subnet) bool { return s.Subnet.Contains(a.Addr) })
	})
	if n.Subnets != nil && len(matching) != len(c.IPs) {
		return failure("not all static IPs matched a subnet: expected %d, got %d", len(c.IPs), len(matching))
	}
	return nil
}

// ports returns the container's published ports.
func (o *options) ports() (all []named.Port, err error) {
	for _, m := range o.Ports {
		p := named.Port{HostPort: m.HostPort, Port: m.Port, Count: max(m.Range, 1)}
		if m.HostIP != "" {
			if p.HostAddr, err = netip.ParseAddr(m.HostIP); err != nil {
				return nil, failure("invalid host ip \"%s\" provided for port %d", m.HostIP, m.HostPort)
			}
		}
		if m.Protocol == "" {
			m.Protocol = "tcp"
		}
		for _, protocol := range strings.Split(m.Protocol, ",") {
			if !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
				return nil, failure("unknown port protocol %s", protocol)
			}
			p.Protocol = protocol
			all = append(all, p)
		}
	}
	return all, nil
}

// names returns the names that cleat's network for a network of Podman may have. The second one is for a
// name that cleat does not allow, or that belongs to another network.
func (n *network) names() []string {
	lower := strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_", r) {
			return r
		}
		return '-'
	}, strings.ToLower(n.Name))
	const longest, idDigits = 50, 8
	second := fmt.Sprintf("%s-%.*s", strings.Trim(lower[:min(len(lower), longest)], "-_"), idDigits, strings.ToLower(n.ID))
	if named.CheckName(n.Name) == nil {
		return []string{n.Name, second}
	}
	return []string{second}
}
