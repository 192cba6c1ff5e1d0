package link

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink/nl"
)

// IPIPSpec carries IPv4 packets in IPv4 packets (RFC 2003, net/ipv4/ipip.c). The
// outer packets leave from the namespace given to Create, wherever the link
// itself ends up. Two tunnels of one namespace must differ in their ends.
type IPIPSpec struct {
	Attrs               // no MAC
	Local    netip.Addr // IPv4; zero: by route
	Remote   netip.Addr // IPv4; zero: by route of the inner packet
	Parent   string     // device for the outer packets; "": by route
	TTL      int        // of the outer packets; 0: of the inner packet
	TOS      int        // of the outer packets; 1: inherit
	PMTUDisc Toggle     // set DF on the outer packets; the kernel's default is on; off not with TTL
	Mark     int        // mark for the route of the outer packets
}

// Kind implements Spec.
func (IPIPSpec) Kind() string { return "ipip" }

// Validate implements Spec.
func (s IPIPSpec) Validate() error {
	if err := checkValues("ipip", s.params()); err != nil {
		return err
	}
	return checkTunnel("ipip", s.Attrs, s.Local, s.Remote, s.TTL, s.PMTUDisc)
}

// checkTunnel holds what ipip and gre have in common.
func checkTunnel(kind string, a Attrs, local, remote netip.Addr, ttl int, pmtudisc Toggle) error {
	switch {
	case kind != "gretap" && a.MAC != (MAC{}):
		return paramError(kind, "mac", a.MAC, "none: it has no Ethernet header")
	case local.IsValid() && (local.IsMulticast() || local.IsUnspecified()):
		return paramError(kind, "local", local, "a unicast address of this host")
	case kind == "ipip" && remote.IsMulticast(), remote.IsUnspecified():
		return paramError(kind, "remote", remote, "a unicast address")
	case ttl != 0 && pmtudisc == Off:
		return paramError(kind, "pmtudisc", pmtudisc, "on together with a fixed ttl: a routing loop would otherwise multiply fragments")
	}
	return nil
}

// iptunFwMark is IFLA_IPTUN_FWMARK (include/uapi/linux/if_tunnel.h).
const iptunFwMark = 20

func (s *IPIPSpec) params() []field { return append(s.Attrs.params(), s.fields()...) }

func (s *IPIPSpec) fields() []field {
	return []field{
		{"local", nl.IFLA_IPTUN_LOCAL, ip4Only(&s.Local)},
		{"remote", nl.IFLA_IPTUN_REMOTE, ip4Only(&s.Remote)},
		{"parent", nl.IFLA_IPTUN_LINK, device{p: &s.Parent}},
		{"ttl", nl.IFLA_IPTUN_TTL, u8(&s.TTL)},
		{"tos", nl.IFLA_IPTUN_TOS, u8(&s.TOS)},
		{"pmtudisc", nl.IFLA_IPTUN_PMTUDISC, toggle8(&s.PMTUDisc)},
		{"fwmark", iptunFwMark, u32(&s.Mark)},
	}
}

func (s IPIPSpec) create(m *creator) error {
	return m.newLink(request{kind: "ipip", attrs: s.Attrs, fields: s.fields()}, birthUnderlay)
}

func (s IPIPSpec) read(r *reader) (Spec, error) {
	var got IPIPSpec
	err := r.into(&got.Attrs, got.fields())
	return got, err
}

// GRESpec carries IP packets, or with Tap Ethernet frames, in GRE over IPv4
// (RFC 2784, RFC 2890, net/ipv4/ip_gre.c). The outer packets leave from the
// namespace given to Create, wherever the link itself ends up. Two tunnels of
// one namespace must differ in their ends or keys.
type GRESpec struct {
	Attrs               // a MAC with Tap only
	Tap      bool       // carry Ethernet frames: kind gretap
	Local    netip.Addr // IPv4; zero: by route
	Remote   netip.Addr // IPv4; multicast with Local only; zero: by route of the inner packet, without Tap
	Parent   string     // device for the outer packets; "": by route
	InKey    int        // what packets must carry, 32 bits; 0: no key
	OutKey   int        // what packets are given, 32 bits; 0: no key
	Checksum bool       // send and want one over each packet
	Sequence bool       // send and want sequence numbers
	TTL      int        // of the outer packets; 0: of the inner packet
	TOS      int        // of the outer packets; 1: inherit
	PMTUDisc Toggle     // set DF on the outer packets; the kernel's default is on; off not with TTL
	IgnoreDF bool       // fragment inner packets in spite of their DF bit; with PMTUDisc off only
	Mark     int        // for the route of the outer packets
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
	if err := checkValues(s.Kind(), s.params()); err != nil {
		return err
	}
	switch {
	case s.Remote.IsMulticast() && !s.Local.IsValid():
		return paramError(s.Kind(), "local", "", "this host's address, together with a multicast remote")
	case s.IgnoreDF && s.PMTUDisc != Off:
		return paramError(s.Kind(), "ignore_df", s.IgnoreDF, "true together with pmtudisc off only")
	}
	return checkTunnel(s.Kind(), s.Attrs, s.Local, s.Remote, s.TTL, s.PMTUDisc)
}

func (s *GRESpec) params() []field {
	return append(s.Attrs.params(), append(s.fields(),
		field{name: "key", val: sharedKey{&s.InKey, &s.OutKey}},
		field{name: "csum", val: bool8(&s.Checksum)},
		field{name: "seq", val: bool8(&s.Sequence)},
	)...)
}

// The attributes of GRE that the netlink library does not name
// (include/uapi/linux/if_tunnel.h).
const (
	greIgnoreDF = 19 // IFLA_GRE_IGNORE_DF
	greFwMark   = 20 // IFLA_GRE_FWMARK
)

func (s *GRESpec) fields() []field {
	return []field{
		{"local", nl.IFLA_GRE_LOCAL, ip4Only(&s.Local)},
		{"remote", nl.IFLA_GRE_REMOTE, ip4Only(&s.Remote)},
		{"parent", nl.IFLA_GRE_LINK, device{p: &s.Parent}},
		{"ikey", nl.IFLA_GRE_IKEY, be32(&s.InKey)},
		{"okey", nl.IFLA_GRE_OKEY, be32(&s.OutKey)},
		{"", nl.IFLA_GRE_IFLAGS, greFlags{&s.InKey, &s.Checksum, &s.Sequence}},
		{"", nl.IFLA_GRE_OFLAGS, greFlags{&s.OutKey, &s.Checksum, &s.Sequence}},
		{"ttl", nl.IFLA_GRE_TTL, u8(&s.TTL)},
		{"tos", nl.IFLA_GRE_TOS, u8(&s.TOS)},
		{"pmtudisc", nl.IFLA_GRE_PMTUDISC, toggle8(&s.PMTUDisc)},
		{"ignore_df", greIgnoreDF, bool8(&s.IgnoreDF)},
		{"fwmark", greFwMark, u32(&s.Mark)},
	}
}

func (s GRESpec) create(m *creator) error {
	return m.newLink(request{kind: s.Kind(), attrs: s.Attrs, fields: s.fields()}, birthUnderlay)
}

func (s GRESpec) read(r *reader) (Spec, error) {
	got := GRESpec{Tap: s.Tap}
	err := r.into(&got.Attrs, got.fields())
	return got, err
}

// greFlags are the bits of the GRE header that go with other parameters.
type greFlags struct {
	key       *int
	csum, seq *bool
}

func (v greFlags) valid() bool         { return true }
func (v greFlags) allowed() string     { return "" }
func (v greFlags) text() string        { return "" }
func (v greFlags) setText(string) bool { return false }
func (v greFlags) isZero() bool        { return v.bits() == 0 }

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

// bothKeys is the parameter for tunnels with one key for both directions.
type sharedKey struct{ in, out *int }

func (v sharedKey) isZero() bool                     { return true }
func (v sharedKey) valid() bool                      { return true }
func (v sharedKey) allowed() string                  { return be32(v.in).allowed() }
func (v sharedKey) encode(linkNames) ([]byte, error) { return nil, nil }
func (v sharedKey) decode([]byte, linkNames) error   { return nil }

func (v sharedKey) text() string {
	if *v.in != *v.out {
		return "0"
	}
	return strconv.Itoa(*v.in)
}

func (v sharedKey) setText(s string) bool {
	return be32(v.in).setText(s) && be32(v.out).setText(s)
}
