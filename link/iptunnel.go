package link

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink/nl"
)

// IPIPSpec is a tunnel of IPv4 packets in IPv4 packets (RFC 2003,
// net/ipv4/ipip.c, CONFIG_NET_IPIP). The outer packets leave from the namespace
// given to Create, wherever the link itself ends up. Two tunnels of one namespace
// must differ in their endpoints.
type IPIPSpec struct {
	Attrs               // no MAC
	Local    netip.Addr // IPv4; zero: by route
	Remote   netip.Addr // IPv4; zero: by route of the inner packet
	Parent   string     // device for the outer packets; "": by route
	TTL      int        // of the outer packets; 0: of the inner packet
	TOS      int        // of the outer packets; 1: inherit
	PMTUDisc Toggle     // set DF on the outer packets; the kernel's default is on; can't be off with TTL
	Mark     int        // firewall mark of the outer packets, for routing
}

// Kind implements Spec.
func (IPIPSpec) Kind() string { return "ipip" }

// Validate implements Spec.
func (s IPIPSpec) Validate() error {
	return validate("ipip", s.params(), tunnelRules("ipip", s.Attrs, s.Local, s.Remote, s.TTL, s.PMTUDisc)...)
}

// tunnelRules returns the rules that ipip and gre share.
func tunnelRules(kind string, a Attrs, local, remote netip.Addr, ttl int, pmtudisc Toggle) []rule {
	return []rule{
		{kind != "gretap" && a.MAC != (MAC{}), "mac", "none: it has no Ethernet header"},
		{local.IsMulticast() || local.IsUnspecified(), "local", "a unicast address of this host"},
		{kind == "ipip" && remote.IsMulticast() || remote.IsUnspecified(), "remote", "a unicast address"},
		{ttl != 0 && pmtudisc == Off, "pmtudisc", "on together with a fixed ttl: a routing loop would otherwise multiply fragments"},
	}
}

// iptunFwMark is IFLA_IPTUN_FWMARK (include/uapi/linux/if_tunnel.h).
const iptunFwMark = 20

func (s *IPIPSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"local", nl.IFLA_IPTUN_LOCAL, ip4Only(&s.Local)},
		{"remote", nl.IFLA_IPTUN_REMOTE, ip4Only(&s.Remote)},
		{"parent", nl.IFLA_IPTUN_LINK, device{p: &s.Parent}},
		{"ttl", nl.IFLA_IPTUN_TTL, u8(&s.TTL)},
		{"tos", nl.IFLA_IPTUN_TOS, u8(&s.TOS)},
		{"pmtudisc", nl.IFLA_IPTUN_PMTUDISC, toggle{&s.PMTUDisc}},
		{"fwmark", iptunFwMark, u32(&s.Mark)},
	}...)
}

func (s IPIPSpec) create(m *creator) error {
	return m.newLink(request{kind: "ipip", attrs: s.Attrs, fields: s.params()}, birthUnderlay)
}

// GRESpec is a tunnel of IP packets, or with Tap of Ethernet frames, in GRE over
// IPv4 (RFC 2784, RFC 2890, net/ipv4/ip_gre.c, CONFIG_NET_IPGRE). The outer
// packets leave from the namespace given to Create, wherever the link itself ends
// up. Two tunnels of one namespace must differ in their endpoints or keys.
type GRESpec struct {
	Attrs               // a MAC with Tap only
	Tap      bool       // carry Ethernet frames: kind gretap
	Local    netip.Addr // IPv4; zero: by route
	Remote   netip.Addr // IPv4; multicast with Local only; zero: by route of the inner packet, without Tap
	Parent   string     // device for the outer packets; "": by route
	InKey    int        // key that received packets must carry, 32 bits; 0: none
	OutKey   int        // key of sent packets, 32 bits; 0: none
	Checksum bool       // send and require a checksum of each packet
	Sequence bool       // send and require sequence numbers
	TTL      int        // of the outer packets; 0: of the inner packet
	TOS      int        // of the outer packets; 1: inherit
	PMTUDisc Toggle     // set DF on the outer packets; the kernel's default is on; can't be off with TTL
	IgnoreDF bool       // fragment inner packets despite their DF bit; needs PMTUDisc off
	Mark     int        // firewall mark of the outer packets, for routing
}

// Kind implements Spec.
func (s GRESpec) Kind() string {
	if s.Tap {
		return "gretap"
	}
	return "gre"
}

// Validate implements Spec.
func (s GRESpec) Validate() error {
	return validate(s.Kind(), s.params(), append([]rule{
		{s.Remote.IsMulticast() && !s.Local.IsValid(), "local", "this host's address, together with a multicast remote"},
		{s.IgnoreDF && s.PMTUDisc != Off, "ignore_df", "true together with pmtudisc off only"},
	}, tunnelRules(s.Kind(), s.Attrs, s.Local, s.Remote, s.TTL, s.PMTUDisc)...)...)
}

// The attributes of GRE that the netlink library does not name
// (include/uapi/linux/if_tunnel.h).
const (
	greIgnoreDF = 19 // IFLA_GRE_IGNORE_DF
	greFwMark   = 20 // IFLA_GRE_FWMARK
)

func (s *GRESpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"local", nl.IFLA_GRE_LOCAL, ip4Only(&s.Local)},
		{"remote", nl.IFLA_GRE_REMOTE, ip4Only(&s.Remote)},
		{"parent", nl.IFLA_GRE_LINK, device{p: &s.Parent}},
		{"ikey", nl.IFLA_GRE_IKEY, be32(&s.InKey)},
		{"okey", nl.IFLA_GRE_OKEY, be32(&s.OutKey)},
		{"", nl.IFLA_GRE_IFLAGS, greFlags{key: &s.InKey, csum: &s.Checksum, seq: &s.Sequence}},
		{"", nl.IFLA_GRE_OFLAGS, greFlags{key: &s.OutKey, csum: &s.Checksum, seq: &s.Sequence}},
		{"ttl", nl.IFLA_GRE_TTL, u8(&s.TTL)},
		{"tos", nl.IFLA_GRE_TOS, u8(&s.TOS)},
		{"pmtudisc", nl.IFLA_GRE_PMTUDISC, toggle{&s.PMTUDisc}},
		{"ignore_df", greIgnoreDF, bool8(&s.IgnoreDF)},
		{"fwmark", greFwMark, u32(&s.Mark)},
		{name: "key", val: sharedKey{in: &s.InKey, out: &s.OutKey}},
		{name: "csum", val: bool8(&s.Checksum)},
		{name: "seq", val: bool8(&s.Sequence)},
	}...)
}

func (s GRESpec) create(m *creator) error {
	return m.newLink(request{kind: s.Kind(), attrs: s.Attrs, fields: s.params()}, birthUnderlay)
}

func (s *GRESpec) complete(_ *reader, asked Spec) error {
	s.Tap = asked.(GRESpec).Tap
	return nil
}

// greFlags are the bits of the GRE header that announce a key, a checksum and a
// sequence number.
type greFlags struct {
	attributeOnly
	key       *int
	csum, seq *bool
}

func (v greFlags) isZero() bool { return v.bits() == 0 }

func (v greFlags) bits() uint16 {
	var w uint16
	if *v.key != 0 {
		w |= nl.GRE_KEY
	}
	if *v.csum {
		w |= nl.GRE_CSUM
	}
	if *v.seq {
		w |= nl.GRE_SEQ
	}
	return w
}

func (v greFlags) encode(linkNames) ([]byte, error) {
	return binary.BigEndian.AppendUint16(nil, v.bits()), nil
}

func (v greFlags) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, 2, true)
	*v.csum, *v.seq = n&nl.GRE_CSUM != 0, n&nl.GRE_SEQ != 0
	return err
}

// sharedKey is the parameter for tunnels with one key for both directions.
type sharedKey struct {
	parameterOnly
	in, out *int
}

func (v sharedKey) isZero() bool    { return true }
func (v sharedKey) valid() bool     { return true }
func (v sharedKey) allowed() string { return be32(v.in).allowed() }

func (v sharedKey) text() string {
	if *v.in != *v.out {
		return "0"
	}
	return strconv.Itoa(*v.in)
}

func (v sharedKey) setText(s string) bool {
	return be32(v.in).setText(s) && be32(v.out).setText(s)
}
