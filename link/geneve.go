package link

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// GenevePort is the UDP port of Geneve (RFC 8926 section 3.3).
const GenevePort = 6081

// GeneveSpec is a point-to-point tunnel of Ethernet frames in UDP (RFC 8926,
// drivers/net/geneve.c, CONFIG_GENEVE). The outer packets leave from the
// namespace given to Create, wherever the link itself ends up.
type GeneveSpec struct {
	Attrs
	VNI               int          // 0…2^24-1
	Remote            netip.Addr   // the other endpoint; needed unless External
	Port              int          // UDP destination port; 0: 6081
	SourcePortLow     int          // UDP source ports, both or neither (Linux 6.15); 0: the namespace's ephemeral range
	SourcePortHigh    int          // inclusive
	TTL               int          // of the outer packets; 0: the route's
	TTLInherit        bool         // copy the TTL of the inner packet; not with TTL
	TOS               int          // of the outer packets; 1: inherit
	DF                DontFragment // of the outer packets
	FlowLabel         int          // of outer IPv6 packets, 20 bits
	UDPChecksum       Toggle       // over IPv4
	ZeroCsum6Tx       Toggle       // send over IPv6 without checksum
	ZeroCsum6Rx       Toggle       // accept IPv6 packets without checksum
	External          bool         // destination from each packet's metadata; no VNI or Remote
	InnerProtoInherit bool         // carry IP packets without Ethernet header, and have no MAC (Linux 5.18)
}

// Kind implements Spec.
func (GeneveSpec) Kind() string { return "geneve" }

// Validate implements Spec.
func (s GeneveSpec) Validate() error {
	return validate("geneve", s.params(),
		rule{s.Remote.IsMulticast() || s.Remote.IsUnspecified(), "remote", "a unicast address"},
		rule{!s.Remote.IsValid() && !s.External, "remote", "the other endpoint's address, or external"},
		rule{s.External && s.Remote.IsValid(), "remote", "none together with external"},
		rule{s.External && s.VNI != 0, "vni", "none together with external"},
		rule{s.TTLInherit && s.TTL != 0, "ttl", "0 together with ttl_inherit"},
		rule{s.FlowLabel != 0 && !s.Remote.Is6(), "flowlabel", "0 unless remote is an IPv6 address"},
		rule{s.InnerProtoInherit && s.MAC != (MAC{}), "mac", "none together with inner_proto_inherit: there is no Ethernet header"},
		rule{s.SourcePortHigh < s.SourcePortLow, "source_port_high", "source_port_low or more"},
		rule{s.SourcePortLow == 0 && s.SourcePortHigh != 0, "source_port_low", "1…65535 together with source_port_high"},
	)
}

func (s *GeneveSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"vni", unix.IFLA_GENEVE_ID, u32(&s.VNI).between(0, 1<<24-1).required()},
		{"remote", unix.IFLA_GENEVE_REMOTE, ip4(&s.Remote)},
		{"", unix.IFLA_GENEVE_REMOTE6, ip6(&s.Remote)},
		{"port", unix.IFLA_GENEVE_PORT, be16(&s.Port)},
		{"source_port_low", 0, be16(&s.SourcePortLow)},
		{"source_port_high", 0, be16(&s.SourcePortHigh)},
		{"", nl.IFLA_GENEVE_PORT_RANGE, portRange{low: &s.SourcePortLow, high: &s.SourcePortHigh}},
		{"ttl", unix.IFLA_GENEVE_TTL, u8(&s.TTL)},
		{"ttl_inherit", unix.IFLA_GENEVE_TTL_INHERIT, bool8(&s.TTLInherit)},
		{"tos", unix.IFLA_GENEVE_TOS, u8(&s.TOS)},
		{"df", unix.IFLA_GENEVE_DF, dontFragment(&s.DF)},
		{"flowlabel", unix.IFLA_GENEVE_LABEL, be32(&s.FlowLabel).between(0, 1<<20-1)},
		{"udp_csum", unix.IFLA_GENEVE_UDP_CSUM, toggle{&s.UDPChecksum}},
		{"udp_zero_csum6_tx", unix.IFLA_GENEVE_UDP_ZERO_CSUM6_TX, toggle{&s.ZeroCsum6Tx}},
		{"udp_zero_csum6_rx", unix.IFLA_GENEVE_UDP_ZERO_CSUM6_RX, toggle{&s.ZeroCsum6Rx}},
		{"external", unix.IFLA_GENEVE_COLLECT_METADATA, flag(&s.External)},
		{"inner_proto_inherit", unix.IFLA_GENEVE_INNER_PROTO_INHERIT, flag(&s.InnerProtoInherit)},
	}...)
}

func (s GeneveSpec) create(m *creator) error {
	err := m.newLink(request{kind: "geneve", attrs: s.Attrs, fields: s.params()}, requestUnderlay)
	if errors.Is(err, unix.EBUSY) { // geneve_configure returns EBUSY for an identity in use
		return unix.EEXIST
	}
	return err
}
