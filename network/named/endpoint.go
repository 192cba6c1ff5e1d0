package named

import (
	"encoding/hex"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/link"
	"cleat/network/attach"
)

// Endpoint is a container on a network. Its file exists until it is disconnected, also while
// the container does not run.
type Endpoint struct {
	Version      int              `json:"version"` // of the file's format
	Network      string           `json:"network"`
	Container    attach.Container `json:"container"`
	Created      time.Time        `json:"created"`
	Addresses    []netip.Addr     `json:"addresses,omitempty"` // at most one per address family
	MAC          link.MAC         `json:"mac,omitzero"`        // stays the same over restarts
	Names        []string         `json:"names"`               // on the network: the container's, then aliases
	Interface    string           `json:"interface"`           // name of the link in the container
	AttachmentID string           `json:"attachment"`
	Wanted       Connection       `json:"wanted"`
}

const endpointVersion = 1

// Connection describes how a container is to be connected. The zero value of a field means the
// default.
type Connection struct {
	Addresses      []netip.Addr `json:"ip,omitempty"` // default: free ones of the subnets
	MAC            link.MAC     `json:"mac,omitzero"` // default: random
	Aliases        []string     `json:"aliases,omitempty"`
	Ports          []Port       `json:"ports,omitempty"`
	RateBitsPerSec int64        `json:"rate,omitempty"` // limit in each direction; 0: none
	// InboundBitsPerSec and OutboundBitsPerSec limit what the container receives and sends; 0: RateBitsPerSec.
	InboundBitsPerSec  int64             `json:"rate_in,omitempty"`
	OutboundBitsPerSec int64             `json:"rate_out,omitempty"`
	Interface          string            `json:"interface,omitempty"`
	Labels             map[string]string `json:"labels,omitempty"`
	NoDNS              bool              `json:"no_dns,omitempty"`         // leave the container's resolv.conf alone
	HostInterface      string            `json:"host_interface,omitempty"` // name of the link's other end, on a network of driver bridge; default: a generated one
	PortsReserved      bool              `json:"ports_reserved,omitempty"` // the engine holds the host's ports itself, by sockets
	Managed            *Managed          `json:"managed,omitempty"`        // of a container that its engine connects; nil: a person does
}

// endpointID returns the name of the endpoint of a container in files.
func endpointID(c attach.Container) string { return c.FileName() }

// label returns a name for messages, e.g. "web/api".
func (e *Endpoint) label() string { return e.Network + "/" + e.Container.ShortName() }

// hostName is what a container may be called on a network. Unlike host names (RFC 1123), it
// may have underscores, as many containers' names do.
var hostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9_]([a-z0-9_.-]{0,61}[a-z0-9_])?$`) })

// maxHostName is the most bytes that hostName matches.
const maxHostName = 63

// isHash reports whether a name is a container's id as most engines make it: 256 bits in hexadecimal digits.
func isHash(name string) bool {
	bits, err := hex.DecodeString(name)
	return err == nil && len(bits) == 32
}

// containerNames returns the names of a container on a network: its own without its user or
// its namespace, and the start of its id, as its engine shows it. A name that can't be one on a network
// is shortened.
func containerNames(c attach.Container, aliases []string) ([]string, error) {
	name := strings.ToLower(c.Name[strings.LastIndexByte(c.Name, '/')+1:])
	var names []string
	if hostName().MatchString(name) {
		names = append(names, name)
	}
	const shortID = 12 // digits, as `docker ps` shows them
	if len(c.ID) >= shortID && !strings.HasPrefix(c.ID, name) {
		names = append(names, c.ID[:shortID])
	}
	if len(names) == 0 { // the name is an id that is too long, or ends with a hyphen
		most := maxHostName
		if isHash(name) {
			most = shortID
		}
		short := strings.TrimRight(name[:min(len(name), most)], ".-")
		if hostName().MatchString(short) {
			names = append(names, short)
		}
	}
	for _, alias := range aliases {
		lower := strings.ToLower(alias)
		if !hostName().MatchString(lower) {
			return nil, badSpec("alias", alias, "want 1…63 of a-z, 0-9, '.', '-' and '_'")
		}
		if !slices.Contains(names, lower) {
			names = append(names, lower)
		}
	}
	return names, nil
}

// checkConnection returns an *attach.SpecError if c can't be had on the network.
func (n *Network) checkConnection(c *Connection) error {
	for i, a := range c.Addresses {
		switch {
		case n.subnet(a) == nil:
			return n.outside(a)
		case n.Manager == "" && slices.ContainsFunc(c.Addresses[:i], func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
			return badSpec("ip", a.String(), "is the second one of its address family")
		}
	}
	if c.MAC != (link.MAC{}) && n.Driver == IPvlan {
		return badSpec("mac", c.MAC.String(), "containers on a network of driver ipvlan have the parent's Ethernet address")
	}
	if len(c.Ports) > 0 && !n.OnHost() {
		return badSpec("publish", c.Ports[0].String(), "containers on a network of driver "+n.Driver+" are reached at their own addresses")
	}
	for i := range c.Ports {
		if err := c.Ports[i].normalize(); err != nil {
			return err
		}
		if c.Ports[i].Everywhere && !n.Spans {
			return badSpec("publish", c.Ports[i].String(), "network "+n.Name+" does not span hosts")
		}
	}
	return nil
}

// outside returns the error for an address that is in none of the subnets.
func (n *Network) outside(a netip.Addr) error {
	if len(n.Subnets) == 0 {
		return badSpec("ip", a.String(), "network "+n.Name+" gets its addresses from a DHCP server")
	}
	var all []string
	for _, sub := range n.Subnets {
		all = append(all, sub.Prefix.String())
	}
	return badSpec("ip", a.String(), "is in no subnet of network "+n.Name, all...)
}

// attachSpec returns the link that connects a container.
func (n *Network) attachSpec(e *Endpoint) attach.Spec {
	s := attach.Spec{Kind: n.kind(), Parent: n.Parent, Name: e.Wanted.Interface, MAC: e.MAC, MTU: n.MTU, VLAN: n.VLAN, Mode: n.Mode,
		RateBitsPerSec: e.Wanted.RateBitsPerSec, InboundBitsPerSec: e.Wanted.InboundBitsPerSec, OutboundBitsPerSec: e.Wanted.OutboundBitsPerSec, DHCP: n.DHCP, Keep: e.Container.CanReturn(), Network: n.Name,
		LargeSegments: n.largeSegments(e), HandOver: e.Wanted.handsOver()}
	if s.HandOver {
		s.Name = n.handOverName(e.Container)
	}
	s.RouteMetric, s.Params, s.FilterVLANs = n.RouteMetric, n.LinkParams, n.Manager != "" && n.VLAN != 0
	s.Routes = append(s.Routes, n.Routes...)
	switch n.Driver {
	case Unmanaged:
		s.Peer = e.Wanted.HostInterface
	case Bridge:
		s.Parent, s.Peer = n.device(), e.Wanted.HostInterface
	case Routed:
		s.Peer = n.peer(e.Container)
	}
	for _, a := range e.Addresses {
		sub := n.subnet(a)
		if n.Driver != Routed {
			s.Addresses = append(s.Addresses, netip.PrefixFrom(a, sub.Prefix.Bits()))
			continue
		}
		s.Addresses = append(s.Addresses, netip.PrefixFrom(a, a.BitLen()))
		if a.Is4() {
			s.Routes = append(s.Routes, attach.Route{To: netip.PrefixFrom(sub.Gateway, sub.Gateway.BitLen())})
		}
	}
	return s
}

// largeSegments reports whether a container may send large segments. On an internal network nothing
// leaves the host but the replies of published ports. What is above a rate is lost, a whole segment at
// a time.
func (n *Network) largeSegments(e *Endpoint) bool {
	limited := max(e.Wanted.RateBitsPerSec, e.Wanted.InboundBitsPerSec, e.Wanted.OutboundBitsPerSec) > 0
	if e.Wanted.engineRoutes() && !n.Internal && slices.ContainsFunc(e.Addresses, netip.Addr.Is6) {
		return false // its engine makes the routes, without the MTU that these segments need (attach, gatewayMTU)
	}
	return !limited && (n.LargeSegments || n.Internal && len(e.Wanted.Ports) == 0)
}

// gatewayFor returns the gateway of a container's default route for the address family of a.
func (n *Network) gatewayFor(a netip.Addr) netip.Addr {
	if n.Driver == Routed && a.Is6() {
		return linkLocalGateway
	}
	return n.subnet(a).Gateway
}

// linkLocalGateway is the host's address on every link of a routed network (kind routed), and on every
// bridge of a network with IPv6. As a router the host needs one to find neighbours (ndisc_send_ns,
// net/ipv6/ndisc.c), and the one that the kernel chooses is not usable before a second has passed.
var linkLocalGateway = netip.MustParseAddr("fe80::1")

// linkLocalBits is the length of the prefix of link-local addresses (RFC 4291 section 2.5.6).
const linkLocalBits = 64
