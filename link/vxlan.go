package link

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The UDP ports of VXLAN.
const (
	VXLANPort      = 4789 // RFC 7348 section 8.1
	VXLANPortLinux = 8472 // the kernel's default, which predates the RFC
)

// VXLANSpec is a VTEP: a device that carries Ethernet frames in UDP (RFC 7348,
// drivers/net/vxlan/, CONFIG_VXLAN). The outer packets leave from the namespace
// given to Create, wherever the link itself ends up.
//
// The link's forwarding entries (AddFDB) select the destination of a frame.
// Frames without an entry go to Remote or Group.
type VXLANSpec struct {
	Attrs
	VNI            int           // 0…2^24-1
	Parent         string        // device for the outer packets; needed with Group; "": by route
	Remote         netip.Addr    // the only other VTEP
	Group          netip.Addr    // multicast group of all VTEPs; not with Remote
	Local          netip.Addr    // source of the outer packets; zero: by route
	Port           int           // UDP destination port; 0: the kernel's default, 8472
	SourcePortLow  int           // UDP source ports, both or neither; 0: the namespace's ephemeral range
	SourcePortHigh int           // inclusive
	TTL            int           // of the outer packets; 0: chosen by the kernel, 1 for multicast
	TTLInherit     bool          // copy the TTL of the inner packet; not with TTL
	TOS            int           // of the outer packets; 1: inherit
	DF             DontFragment  // of the outer packets
	FlowLabel      int           // of outer IPv6 packets, 20 bits
	Learning       Toggle        // learn MAC addresses from received frames; the kernel's default is on
	Ageing         time.Duration // of learnt addresses, whole seconds; 0: the kernel's default, 300 s
	MaxAddresses   int           // limit of learnt addresses; 0: no limit
	Proxy          bool          // answer ARP and ND from the neighbour table
	L2Miss         bool          // notify netlink listeners of unknown MAC addresses
	L3Miss         bool          // notify netlink listeners of unknown IP addresses
	RSC            bool          // route short circuit
	UDPChecksum    Toggle        // over IPv4; the kernel's default is on
	ZeroCsum6Tx    bool          // send over IPv6 without checksum
	ZeroCsum6Rx    bool          // accept IPv6 packets without checksum
	RemCsumTx      bool          // remote checksum offload, sending
	RemCsumRx      bool          // remote checksum offload, receiving
	GBP            bool          // group based policy extension
	GPE            bool          // generic protocol extension; needs External
	External       bool          // destination from each packet's metadata; no VNI, Remote or Group
	VNIFilter      bool          // with External: accept only VNIs that were added
	LocalBypass    Toggle        // deliver packets for a VNI of this host directly; the kernel's default is on (Linux 6.5)
}

// DontFragment selects the DF bit of the outer IPv4 header. "" is the kernel's
// default, unset.
type DontFragment string

// The values of a DontFragment.
const (
	DFUnset   DontFragment = "unset"
	DFSet     DontFragment = "set"
	DFInherit DontFragment = "inherit" // copied from the inner packet
)

func dontFragment(p *DontFragment) choice[DontFragment] {
	return choice[DontFragment]{p: p, size: 1, options: []option{{"unset", 0}, {"set", 1}, {"inherit", 2}}}
}

// Kind implements Spec.
func (VXLANSpec) Kind() string { return "vxlan" }

// Validate implements Spec.
func (s VXLANSpec) Validate() error {
	return validate("vxlan", s.params(),
		rule{s.Remote.IsMulticast() || s.Remote.IsUnspecified(), "remote", "a unicast address; use group for multicast"},
		rule{s.Group.IsValid() && !s.Group.IsMulticast(), "group", "a multicast address, e.g. 239.1.1.1; use remote for unicast"},
		rule{s.Group.IsValid() && s.Remote.IsValid(), "group", "none together with remote"},
		rule{s.Group.IsValid() && s.Parent == "", "parent", "the device to join the group on: group needs it"},
		rule{s.Local.IsMulticast() || s.Local.IsUnspecified(), "local", "a unicast address of this host"},
		rule{s.Local.IsValid() && s.outer().IsValid() && s.Local.Is4() != s.outer().Is4(), "local", "an address of the same family as remote or group"},
		rule{s.SourcePortHigh < s.SourcePortLow, "source_port_high", "source_port_low or more"},
		rule{s.SourcePortLow == 0 && s.SourcePortHigh != 0, "source_port_low", "1…65535 together with source_port_high"},
		rule{s.FlowLabel != 0 && !s.outer().Is6(), "flowlabel", "0 unless remote or group is an IPv6 address"},
		rule{s.TTLInherit && s.TTL != 0, "ttl", "0 together with ttl_inherit"},
		rule{s.External && s.Remote.IsValid(), "remote", "none together with external"},
		rule{s.External && s.Group.IsValid(), "group", "none together with external"},
		rule{s.External && s.VNI != 0, "vni", "none together with external"},
		rule{s.GPE && !s.External, "gpe", "true together with external only"},
		rule{s.GPE && s.GBP, "gbp", "false together with gpe"},
		rule{s.VNIFilter && !s.External, "vnifilter", "true together with external only"},
	)
}

// outer returns the destination of the outer packets: Group or Remote.
func (s VXLANSpec) outer() netip.Addr {
	if s.Group.IsValid() {
		return s.Group
	}
	return s.Remote
}

func (s *VXLANSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"vni", unix.IFLA_VXLAN_ID, u32(&s.VNI).between(0, 1<<24-1).required()},
		{"parent", unix.IFLA_VXLAN_LINK, device{p: &s.Parent}},
		{"remote", 0, ip4(&s.Remote)},
		{"group", 0, ip4(&s.Group)},
		{"", unix.IFLA_VXLAN_GROUP, remoteOrGroup{remote: &s.Remote, group: &s.Group, family: 4}},
		{"", unix.IFLA_VXLAN_GROUP6, remoteOrGroup{remote: &s.Remote, group: &s.Group, family: 6}},
		{"local", unix.IFLA_VXLAN_LOCAL, ip4(&s.Local)},
		{"", unix.IFLA_VXLAN_LOCAL6, ip6(&s.Local)},
		{"port", unix.IFLA_VXLAN_PORT, be16(&s.Port)},
		{"source_port_low", 0, be16(&s.SourcePortLow)},
		{"source_port_high", 0, be16(&s.SourcePortHigh)},
		{"", unix.IFLA_VXLAN_PORT_RANGE, portRange{low: &s.SourcePortLow, high: &s.SourcePortHigh}},
		{"ttl", unix.IFLA_VXLAN_TTL, u8(&s.TTL)},
		{"ttl_inherit", unix.IFLA_VXLAN_TTL_INHERIT, flag(&s.TTLInherit)},
		{"tos", unix.IFLA_VXLAN_TOS, u8(&s.TOS)},
		{"df", unix.IFLA_VXLAN_DF, dontFragment(&s.DF)},
		{"flowlabel", unix.IFLA_VXLAN_LABEL, be32(&s.FlowLabel).between(0, 1<<20-1)},
		{"learning", unix.IFLA_VXLAN_LEARNING, toggle{&s.Learning}},
		{"ageing", unix.IFLA_VXLAN_AGEING, period{&s.Ageing}},
		{"max_addresses", unix.IFLA_VXLAN_LIMIT, u32(&s.MaxAddresses)},
		{"proxy", unix.IFLA_VXLAN_PROXY, bool8(&s.Proxy)},
		{"l2miss", unix.IFLA_VXLAN_L2MISS, bool8(&s.L2Miss)},
		{"l3miss", unix.IFLA_VXLAN_L3MISS, bool8(&s.L3Miss)},
		{"rsc", unix.IFLA_VXLAN_RSC, bool8(&s.RSC)},
		{"udp_csum", unix.IFLA_VXLAN_UDP_CSUM, toggle{&s.UDPChecksum}},
		{"udp_zero_csum6_tx", unix.IFLA_VXLAN_UDP_ZERO_CSUM6_TX, bool8(&s.ZeroCsum6Tx)},
		{"udp_zero_csum6_rx", unix.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, bool8(&s.ZeroCsum6Rx)},
		{"remcsum_tx", unix.IFLA_VXLAN_REMCSUM_TX, bool8(&s.RemCsumTx)},
		{"remcsum_rx", unix.IFLA_VXLAN_REMCSUM_RX, bool8(&s.RemCsumRx)},
		{"gbp", unix.IFLA_VXLAN_GBP, flag(&s.GBP)},
		{"gpe", unix.IFLA_VXLAN_GPE, flag(&s.GPE)},
		{"external", unix.IFLA_VXLAN_COLLECT_METADATA, bool8(&s.External)},
		{"vnifilter", unix.IFLA_VXLAN_VNIFILTER, bool8(&s.VNIFilter)},
		{"localbypass", unix.IFLA_VXLAN_LOCALBYPASS, toggle{&s.LocalBypass}},
	}...)
}

func (s VXLANSpec) create(m *creator) error {
	return m.newLink(request{kind: "vxlan", attrs: s.Attrs, fields: s.params()}, requestUnderlay)
}

// remoteOrGroup is one attribute for two parameters: a unicast destination or a
// multicast group.
type remoteOrGroup struct {
	attributeOnly
	remote, group *netip.Addr
	family        int
}

func (v remoteOrGroup) address() address {
	if v.group.IsValid() {
		return address{p: v.group, family: v.family}
	}
	return address{p: v.remote, family: v.family}
}

func (v remoteOrGroup) isZero() bool                       { return v.address().isZero() }
func (v remoteOrGroup) encode(n linkNames) ([]byte, error) { return v.address().encode(n) }

func (v remoteOrGroup) decode(b []byte, n linkNames) error {
	var a netip.Addr
	err := address{p: &a, family: v.family}.decode(b, n)
	switch {
	case a.IsMulticast():
		*v.group = a
	case a.IsValid():
		*v.remote = a
	}
	return err
}

// portRange is struct ifla_vxlan_port_range and ifla_geneve_port_range.
type portRange struct {
	attributeOnly
	low, high *int
}

func (v portRange) isZero() bool { return *v.low == 0 && *v.high == 0 }

func (v portRange) encode(linkNames) ([]byte, error) {
	b := binary.BigEndian.AppendUint16(nil, uint16(*v.low))
	return binary.BigEndian.AppendUint16(b, uint16(*v.high)), nil
}

func (v portRange) decode(b []byte, _ linkNames) error {
	if len(b) != 4 {
		return errLength
	}
	*v.low, *v.high = int(binary.BigEndian.Uint16(b)), int(binary.BigEndian.Uint16(b[2:]))
	return nil
}
