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
	VXLANPortLinux = 8472 // the kernel's default, older than the RFC
)

// VXLANSpec carries Ethernet frames in UDP (RFC 7348, drivers/net/vxlan/). The
// outer packets leave from the namespace given to Create, wherever the link
// itself ends up.
//
// Where a frame goes is decided by the link's forwarding entries (AddFDB), and
// without one by Remote or Group.
type VXLANSpec struct {
	Attrs
	VNI            int        // 0…2^24-1
	Parent         string     // device for the outer packets; needed with Group; "": by route
	Remote         netip.Addr // the one other end
	Group          netip.Addr // multicast group of all ends; not with Remote
	Local          netip.Addr // source of the outer packets; zero: by route
	Port           int        // destination, UDP; 0: the kernel's default, 8472
	SourcePortLow  int        // source ports, both or neither; 0: the namespace's ephemeral range
	SourcePortHigh int        // inclusive
	TTL            int        // of the outer packets; 0: the kernel's choice, 1 for multicast
	TTLInherit     bool       // TTL of the inner packet; not with TTL
	TOS            int        // of the outer packets; 1: inherit
	DF             DontFragment
	FlowLabel      int           // of outer IPv6 packets, 20 bits
	Learning       Toggle        // of other ends' MAC addresses; the kernel's default is on
	Ageing         time.Duration // of what was learnt, in seconds; 0: the kernel's default, 300 s
	MaxAddresses   int           // of what was learnt; 0: no limit
	Proxy          bool          // answer ARP and ND from the neighbour table
	L2Miss         bool          // tell netlink listeners of unknown MAC addresses
	L3Miss         bool          // tell netlink listeners of unknown IP addresses
	RSC            bool          // route short circuit
	UDPChecksum    Toggle        // over IPv4; the kernel's default is on
	ZeroCsum6Tx    bool          // send over IPv6 without checksum
	ZeroCsum6Rx    bool          // take over IPv6 without checksum
	RemCsumTx      bool          // remote checksum offload
	RemCsumRx      bool
	GBP            bool   // group based policy extension
	GPE            bool   // generic protocol extension; needs External
	External       bool   // destination from each packet's metadata; no VNI, Remote or Group
	VNIFilter      bool   // with External: take only VNIs that were added
	LocalBypass    Toggle // hand packets for a VNI of this host straight to it; the kernel's default is on (Linux 6.5)
}

// DontFragment says what to put into the outer IPv4 header's DF bit.
type DontFragment string

// The choices for DF.
const (
	DFUnset   DontFragment = "unset" // the kernel's default
	DFSet     DontFragment = "set"
	DFInherit DontFragment = "inherit" // from the inner packet
)

func dontFragment(p *DontFragment) choice[DontFragment] {
	return choice[DontFragment]{p: p, size: 1, options: []option{{"unset", 0}, {"set", 1}, {"inherit", 2}}}
}

// Kind implements Spec.
func (VXLANSpec) Kind() string { return "vxlan" }

// Validate implements Spec.
func (s VXLANSpec) Validate() error {
	if err := checkValues("vxlan", s.params()); err != nil {
		return err
	}
	bad := func(param string, value any, allowed string) error { return paramError("vxlan", param, value, allowed) }
	switch {
	case s.Remote.IsValid() && (s.Remote.IsMulticast() || s.Remote.IsUnspecified()):
		return bad("remote", s.Remote, "a unicast address; use group for multicast")
	case s.Group.IsValid() && !s.Group.IsMulticast():
		return bad("group", s.Group, "a multicast address, e.g. 239.1.1.1; use remote for unicast")
	case s.Group.IsValid() && s.Remote.IsValid():
		return bad("group", s.Group, "none together with remote")
	case s.Group.IsValid() && s.Parent == "":
		return bad("parent", s.Parent, "the device to join the group on: group needs it")
	case s.Local.IsValid() && (s.Local.IsMulticast() || s.Local.IsUnspecified()):
		return bad("local", s.Local, "a unicast address of this host")
	case s.Local.IsValid() && s.outer().IsValid() && s.Local.Is4() != s.outer().Is4():
		return bad("local", s.Local, "an address of the same family as the other end's")
	case s.SourcePortHigh < s.SourcePortLow:
		return bad("source_port_high", s.SourcePortHigh, "source_port_low or more")
	case s.SourcePortLow == 0 && s.SourcePortHigh != 0:
		return bad("source_port_low", s.SourcePortLow, "1…65535 together with source_port_high")
	case s.FlowLabel != 0 && !s.outer().Is6():
		return bad("flowlabel", s.FlowLabel, "0 unless the other end is an IPv6 address")
	case s.TTLInherit && s.TTL != 0:
		return bad("ttl", s.TTL, "0 together with ttl_inherit")
	case s.External && s.outer().IsValid():
		return bad("remote", s.outer(), "none together with external")
	case s.External && s.VNI != 0:
		return bad("vni", s.VNI, "none together with external")
	case s.GPE && !s.External:
		return bad("gpe", s.GPE, "true together with external only")
	case s.GPE && s.GBP:
		return bad("gbp", s.GBP, "false together with gpe")
	case s.VNIFilter && !s.External:
		return bad("vnifilter", s.VNIFilter, "true together with external only")
	}
	return nil
}

// outer is the other end, or the group of other ends.
func (s VXLANSpec) outer() netip.Addr {
	if s.Group.IsValid() {
		return s.Group
	}
	return s.Remote
}

func (s *VXLANSpec) params() []field { return append(s.Attrs.params(), s.fields()...) }

func (s *VXLANSpec) fields() []field {
	return []field{
		{"vni", unix.IFLA_VXLAN_ID, u32(&s.VNI).between(0, 1<<24-1).required()},
		{"parent", unix.IFLA_VXLAN_LINK, device{p: &s.Parent}},
		{"remote", 0, ip4(&s.Remote)},
		{"group", 0, ip4(&s.Group)},
		{"", unix.IFLA_VXLAN_GROUP, remoteOrGroup{&s.Remote, &s.Group, 4}},
		{"", unix.IFLA_VXLAN_GROUP6, remoteOrGroup{&s.Remote, &s.Group, 6}},
		{"local", unix.IFLA_VXLAN_LOCAL, ip4(&s.Local)},
		{"", unix.IFLA_VXLAN_LOCAL6, ip6(&s.Local)},
		{"port", unix.IFLA_VXLAN_PORT, be16(&s.Port)},
		{"source_port_low", 0, be16(&s.SourcePortLow)},
		{"source_port_high", 0, be16(&s.SourcePortHigh)},
		{"", unix.IFLA_VXLAN_PORT_RANGE, portRange{&s.SourcePortLow, &s.SourcePortHigh}},
		{"ttl", unix.IFLA_VXLAN_TTL, u8(&s.TTL)},
		{"ttl_inherit", unix.IFLA_VXLAN_TTL_INHERIT, flag(&s.TTLInherit)},
		{"tos", unix.IFLA_VXLAN_TOS, u8(&s.TOS)},
		{"df", unix.IFLA_VXLAN_DF, dontFragment(&s.DF)},
		{"flowlabel", unix.IFLA_VXLAN_LABEL, be32(&s.FlowLabel).between(0, 1<<20-1)},
		{"learning", unix.IFLA_VXLAN_LEARNING, toggle8(&s.Learning)},
		{"ageing", unix.IFLA_VXLAN_AGEING, period{p: &s.Ageing, unit: time.Second, max: 1 << 24 * time.Second}},
		{"max_addresses", unix.IFLA_VXLAN_LIMIT, u32(&s.MaxAddresses)},
		{"proxy", unix.IFLA_VXLAN_PROXY, bool8(&s.Proxy)},
		{"l2miss", unix.IFLA_VXLAN_L2MISS, bool8(&s.L2Miss)},
		{"l3miss", unix.IFLA_VXLAN_L3MISS, bool8(&s.L3Miss)},
		{"rsc", unix.IFLA_VXLAN_RSC, bool8(&s.RSC)},
		{"udp_csum", unix.IFLA_VXLAN_UDP_CSUM, toggle8(&s.UDPChecksum)},
		{"udp_zero_csum6_tx", unix.IFLA_VXLAN_UDP_ZERO_CSUM6_TX, bool8(&s.ZeroCsum6Tx)},
		{"udp_zero_csum6_rx", unix.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, bool8(&s.ZeroCsum6Rx)},
		{"remcsum_tx", unix.IFLA_VXLAN_REMCSUM_TX, bool8(&s.RemCsumTx)},
		{"remcsum_rx", unix.IFLA_VXLAN_REMCSUM_RX, bool8(&s.RemCsumRx)},
		{"gbp", unix.IFLA_VXLAN_GBP, flag(&s.GBP)},
		{"gpe", unix.IFLA_VXLAN_GPE, flag(&s.GPE)},
		{"external", unix.IFLA_VXLAN_COLLECT_METADATA, bool8(&s.External)},
		{"vnifilter", unix.IFLA_VXLAN_VNIFILTER, bool8(&s.VNIFilter)},
		{"localbypass", unix.IFLA_VXLAN_LOCALBYPASS, toggle8(&s.LocalBypass)},
	}
}

func (s VXLANSpec) create(m *creator) error {
	return m.newLink(request{kind: "vxlan", attrs: s.Attrs, fields: s.fields()}, requestUnderlay)
}

func (s VXLANSpec) read(r *reader) (Spec, error) {
	var got VXLANSpec
	err := r.into(&got.Attrs, got.fields())
	return got, err
}

// ends is one attribute for two parameters: a unicast remote end, or a
// multicast group of them.
type remoteOrGroup struct {
	remote, group *netip.Addr
	family        int
}

func (v remoteOrGroup) set() *netip.Addr {
	if v.group.IsValid() {
		return v.group
	}
	return v.remote
}

func (v remoteOrGroup) isZero() bool        { return address{p: v.set(), family: v.family}.isZero() }
func (v remoteOrGroup) valid() bool         { return true }
func (v remoteOrGroup) allowed() string     { return "" }
func (v remoteOrGroup) text() string        { return "" }
func (v remoteOrGroup) setText(string) bool { return false }
func (v remoteOrGroup) encode(n linkNames) ([]byte, error) {
	return address{p: v.set(), family: v.family}.encode(n)
}

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
type portRange struct{ low, high *int }

func (v portRange) isZero() bool        { return *v.low == 0 && *v.high == 0 }
func (v portRange) valid() bool         { return true }
func (v portRange) allowed() string     { return "" }
func (v portRange) text() string        { return "" }
func (v portRange) setText(string) bool { return false }

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
