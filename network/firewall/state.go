package firewall

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/packet"
)

// State is what a table does: networks, published ports, and permitted traffic between
// networks. The zero State permits and denies nothing.
type State struct {
	Networks []Network
	Ports    []Port
	Allow    []Pair
	Flows    []Flow
	// Resolvers answer DNS queries that endpoints send to others.
	Resolvers []Resolver
	// Remotes are the ways to endpoints of other hosts.
	Remotes []Remote
	// Sealed are addresses of endpoints of other hosts. Packets from and to them that take another way than those of
	// Remotes are dropped, also those of known connections. They do not overlap.
	Sealed []netip.Prefix
	// Relays are endpoints of other hosts to which published ports of this one lead.
	Relays []Relay
}

// Relay is the address that connections to an endpoint of another host get as their source, if they come by a published
// port and from elsewhere than networks that reach the endpoint: the answers must pass this host. Both are of one family.
type Relay struct {
	To   netip.Addr // the endpoint's
	From netip.Addr // this host's, in the endpoint's network
}

// several reports whether the State is that of networks of several hosts.
func (s State) several() bool { return len(s.Remotes) > 0 || len(s.Sealed) > 0 }

// Change is a difference between two States. What is in both Add and Remove stays. To change a
// network or a port, put the old one into Remove and the new one into Add.
//
// A network in a VRF needs more than elements, so only Sync adds and removes it: Apply returns ErrDrift. The same
// holds for Remotes and Sealed, unless there are some before and after the change.
type Change struct {
	Add, Remove State
}

func (c Change) validate() error { return cmp.Or(c.Add.validate(), c.Remove.validate()) }

// Network is a set of endpoints that reach each other.
//
// In a Change, a Network may be a part of one: devices and endpoints that come or go, with the
// properties of the whole network, and without the prefixes, which stay.
type Network struct {
	// Devices are the devices of the host through which the endpoints are reached: one that
	// all share, such as a bridge, or one for each endpoint, between which the host routes. A
	// device belongs to at most one network. It need not exist.
	Devices []string
	// Endpoints are the addresses behind the devices. Packets from a device with another
	// source address are dropped.
	Endpoints []Endpoint
	// Prefixes contain the addresses of all endpoints. Those of different networks do not
	// overlap.
	Prefixes []netip.Prefix
	// Gateways are the host's addresses in the network.
	Gateways []netip.Addr
	// MasqueradeIPv4 and MasqueradeIPv6 give packets that leave the host, and not towards
	// another network of the table, the host's address as their source.
	MasqueradeIPv4, MasqueradeIPv6 bool
	// Outbound are the addresses that those packets get instead, at most one of each address family.
	// The host need not have them, but its router must send the replies to it.
	Outbound []netip.Addr
	// VRF is the name of the VRF that the devices are in; "": none.
	VRF string
	// Internal forbids connections from the network to anywhere but the host and the networks
	// in State.Allow, also to ports that are published. Ports of its own endpoints can be
	// published.
	Internal   bool
	HostAccess HostAccess
}

// Endpoint is a container, or an address of one.
type Endpoint struct {
	Device string
	Addrs  []netip.Addr
}

// Remote is a device that leads to endpoints of other hosts.
type Remote struct {
	Device string
	// Prefixes are the addresses of those endpoints. They are in prefixes of networks, and do not overlap.
	Prefixes []netip.Prefix
	// Only means that the device leads to nothing else: what comes in by it from other addresses is dropped.
	Only bool
	// Hosts are those of the addresses that the other hosts have themselves. Flows are not about them.
	Hosts []netip.Addr
}

// HostAccess is what of the host the endpoints of a network reach, besides published ports.
type HostAccess uint8

// The kinds of access to the host.
const (
	HostAccessNone    HostAccess = iota // DNS at the network's gateways only
	HostAccessGateway                   // the network's gateways
	HostAccessAll                       // all addresses of the host
)

// String returns "none", "gateway" or "all".
func (a HostAccess) String() string {
	switch a {
	case HostAccessNone:
		return "none"
	case HostAccessGateway:
		return "gateway"
	case HostAccessAll:
		return "all"
	}
	return fmt.Sprintf("host access %d", uint8(a))
}

// SCTP can be published besides packet.TCP and packet.UDP.
const SCTP packet.Protocol = 132

// Port is one published port, or a range of them.
type Port struct {
	Protocol packet.Protocol // packet.TCP, packet.UDP or SCTP
	// HostAddr is the address at which the port is published. Zero or unspecified: at every
	// address of the host of To's family.
	HostAddr netip.Addr
	HostPort uint16
	To       netip.AddrPort
	// Count is the number of consecutive ports, from HostPort and To.Port() on; 0 means 1.
	Count uint16
	// BypassFirewall publishes the port also to clients that the host's own rules for incoming
	// connections refuse. It has no effect in a VRF.
	BypassFirewall bool
	// VRF is that of the network of To; "": none. The port is published at addresses in the VRF, to
	// clients there, and otherwise at addresses outside of all VRFs.
	VRF string
}

func (p Port) bypasses() bool { return p.BypassFirewall && p.VRF == "" }

// String returns the port in Docker's notation, e.g. "192.0.2.1:8080:80/tcp".
func (p Port) String() string {
	s := fmt.Sprintf("%d%s:%s", p.HostPort, p.rangeEnd(p.HostPort), p.To)
	if !p.anywhere() {
		s = fmt.Sprintf("%s%s:%s", netip.AddrPortFrom(p.HostAddr, p.HostPort), p.rangeEnd(p.HostPort), p.To)
	}
	return fmt.Sprintf("%s%s/%s", s, p.rangeEnd(p.To.Port()), protocolName(p.Protocol))
}

func (p Port) rangeEnd(first uint16) string {
	if p.count() == 1 {
		return ""
	}
	return fmt.Sprintf("-%d", int(first)+p.count()-1)
}

func protocolName(p packet.Protocol) string {
	switch p {
	case packet.TCP:
		return "tcp"
	case packet.UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

func (p Port) count() int { return max(1, int(p.Count)) }

// anywhere reports whether the port is published at every address.
func (p Port) anywhere() bool { return !p.HostAddr.IsValid() || p.HostAddr.IsUnspecified() }

// Resolver has the name server of a gateway answer the DNS queries that an endpoint sends to another
// server. The addresses are of one family.
type Resolver struct {
	Client netip.Addr // of the endpoint
	Asked  netip.Addr // the server that it asks
	Server netip.Addr // that answers: a gateway of the endpoint's network
}

// Pair permits connections from one network to another: from the addresses of a prefix to
// those of another one. The prefixes are of the same family.
type Pair struct {
	From, To netip.Prefix
}

// ErrInvalid means that a State contradicts itself or can't be expressed in rules.
var ErrInvalid = errors.New("invalid firewall state")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// Validate returns an error, which is ErrInvalid, if the State contradicts itself or can't be
// expressed. Sync and Apply do the same first.
func (s State) Validate() error {
	_, err := s.contents()
	return err
}

// features returns the features that the State needs.
func (s State) features() (all feature) {
	if slices.ContainsFunc(s.Networks, func(n Network) bool { return n.VRF != "" }) || slices.ContainsFunc(s.Ports, func(p Port) bool { return p.VRF != "" }) {
		all |= inVRFs
	}
	if s.several() {
		all |= ofSeveral
	}
	if len(s.Sealed) > 0 {
		all |= withSealed
	}
	return all
}

// validate checks each part by itself. Parts that contradict each other are found when their
// elements are collected.
func (s State) validate() error {
	for _, n := range s.Networks {
		if err := n.validate(); err != nil {
			return err
		}
	}
	for _, p := range s.Ports {
		if err := p.validate(); err != nil {
			return err
		}
	}
	for _, w := range s.Flows {
		if err := w.validate(); err != nil {
			return err
		}
	}
	for _, r := range s.Resolvers {
		for what, a := range map[string]netip.Addr{"client's": r.Client, "asked": r.Asked, "server's": r.Server} {
			if err := validateAddress(what, a); err != nil {
				return err
			}
			if a.Is4() != r.Client.Is4() {
				return invalid("resolver %s for %s: the addresses must have one family", r.Server, r.Client)
			}
		}
	}
	for _, r := range s.Remotes {
		if err := validateDevice(r.Device); err != nil {
			return err
		}
		for _, p := range r.Prefixes {
			if !p.IsValid() || p.Addr().Is4In6() {
				return invalid("device %s leads to prefix %q", r.Device, p)
			}
		}
		for _, a := range r.Hosts {
			if err := validateAddress("host's", a); err != nil {
				return err
			}
		}
	}
	for _, r := range s.Relays {
		if err := errors.Join(validateAddress("endpoint's", r.To), validateAddress("host's", r.From)); err != nil {
			return err
		}
		if r.To.Is4() != r.From.Is4() {
			return invalid("relay from %s to %s: the addresses must have one family", r.From, r.To)
		}
	}
	for _, p := range s.Sealed {
		if !p.IsValid() || p.Addr().Is4In6() {
			return invalid("sealed prefix %q", p)
		}
	}
	for _, p := range s.Allow {
		if !p.From.IsValid() || !p.To.IsValid() || p.From.Addr().Is4() != p.To.Addr().Is4() {
			return invalid("allow %s to reach %s: two prefixes of one family are needed", p.From, p.To)
		}
	}
	return nil
}

func (n Network) validate() error {
	for _, name := range n.Devices {
		if err := validateDevice(name); err != nil {
			return err
		}
	}
	for _, e := range n.Endpoints {
		if err := validateDevice(e.Device); err != nil {
			return err
		}
		for _, a := range e.Addrs {
			if err := validateAddress("endpoint", a); err != nil {
				return err
			}
		}
	}
	for _, p := range n.Prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return invalid("network with prefix %q", p)
		}
	}
	for _, a := range n.Gateways {
		if err := validateAddress("gateway", a); err != nil {
			return err
		}
	}
	for i, a := range n.Outbound {
		if err := validateAddress("outbound", a); err != nil {
			return err
		}
		if a.IsMulticast() || slices.ContainsFunc(n.Outbound[:i], func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			return invalid("outbound address %s: want one unicast address of each family", a)
		}
	}
	if n.VRF != "" {
		if err := validateDevice(n.VRF); err != nil {
			return err
		}
	}
	if n.HostAccess > HostAccessAll {
		return invalid("network with %s", n.HostAccess)
	}
	return nil
}

func validateDevice(name string) error {
	if name == "" || len(name) > deviceBytes-1 || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\x00") {
		return invalid("device name %q: 1 to %d bytes without slash, colon and space are allowed", name, deviceBytes-1)
	}
	return nil
}

func validateAddress(what string, a netip.Addr) error {
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() {
		return invalid("%s address %q", what, a)
	}
	return nil
}

func (p Port) validate() error {
	switch p.Protocol {
	case packet.TCP, packet.UDP, SCTP:
	default:
		return invalid("publish port %s: only tcp, udp and sctp have ports", p)
	}
	if err := validateAddress("container's", p.To.Addr()); err != nil {
		return fmt.Errorf("publish port %s: %w", p, err)
	}
	if !p.anywhere() {
		if err := validateAddress("host's", p.HostAddr); err != nil {
			return fmt.Errorf("publish port %s: %w", p, err)
		}
		if p.HostAddr.Is4() != p.To.Addr().Is4() {
			return invalid("publish port %s: the addresses of the host and the container must have one family", p)
		}
	}
	if p.VRF != "" {
		if err := validateDevice(p.VRF); err != nil {
			return fmt.Errorf("publish port %s: %w", p, err)
		}
	}
	for _, first := range []uint16{p.HostPort, p.To.Port()} {
		if first == 0 || int(first)+p.count()-1 > 65535 {
			return invalid("publish port %s: port numbers are 1 to 65535", p)
		}
	}
	return nil
}
