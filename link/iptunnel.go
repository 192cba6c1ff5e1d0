package link

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
)

// IPIPSpec is a tunnel of IPv4 packets in IPv4 packets (RFC 2003,
// net/ipv4/ipip.c, CONFIG_NET_IPIP). The outer packets leave from the namespace
// given to Create, wherever the link itself ends up. Two tunnels of one namespace
// must differ in their endpoints.
type IPIPSpec struct {
	Attrs             // no MAC
	Local  netip.Addr // IPv4; zero: by route
	Remote netip.Addr // IPv4; zero: by route of the inner packet
}

// Kind implements Spec.
func (IPIPSpec) Kind() string { return "ipip" }

// Validate implements Spec.
func (s IPIPSpec) Validate() error {
	return validate("ipip", s.params(), append(tunnelRules(s.Attrs, s.Local, s.Remote),
		rule{s.Remote.IsMulticast(), "remote", "a unicast address"})...)
}

// tunnelRules returns the rules that ipip and gre share.
func tunnelRules(a Attrs, local, remote netip.Addr) []rule {
	return []rule{
		{a.MAC != (MAC{}), "mac", "none: it has no Ethernet header"},
		{local.IsMulticast() || local.IsUnspecified(), "local", "a unicast address of this host"},
		{remote.IsUnspecified(), "remote", "a unicast address"},
	}
}

func (s *IPIPSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"local", nl.IFLA_IPTUN_LOCAL, ip4Only(&s.Local)},
		{"remote", nl.IFLA_IPTUN_REMOTE, ip4Only(&s.Remote)},
	}...)
}

func (s IPIPSpec) create(m *creator) error {
	return m.newLink(request{kind: "ipip", attrs: s.Attrs, fields: s.params()}, birthUnderlay)
}

// GRESpec is a tunnel of IP packets in GRE over IPv4 (RFC 2784, net/ipv4/ip_gre.c,
// CONFIG_NET_IPGRE). The outer packets leave from the namespace given to Create,
// wherever the link itself ends up. Two tunnels of one namespace must differ in
// their endpoints.
type GRESpec struct {
	Attrs             // no MAC
	Local  netip.Addr // IPv4; zero: by route
	Remote netip.Addr // IPv4; multicast with Local only; zero: by route of the inner packet
}

// Kind implements Spec.
func (GRESpec) Kind() string { return "gre" }

// Validate implements Spec.
func (s GRESpec) Validate() error {
	return validate("gre", s.params(), append(tunnelRules(s.Attrs, s.Local, s.Remote),
		rule{s.Remote.IsMulticast() && !s.Local.IsValid(), "local", "this host's address, together with a multicast remote"})...)
}

func (s *GRESpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"local", nl.IFLA_GRE_LOCAL, ip4Only(&s.Local)},
		{"remote", nl.IFLA_GRE_REMOTE, ip4Only(&s.Remote)},
	}...)
}

func (s GRESpec) create(m *creator) error {
	return m.newLink(request{kind: "gre", attrs: s.Attrs, fields: s.params()}, birthUnderlay)
}
