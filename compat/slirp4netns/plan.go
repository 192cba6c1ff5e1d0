package slirp4netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"cleat/sandbox"
)

// Plan is what to do: everything that the options decide.
type Plan struct {
	Config    sandbox.Config
	Namespace sandbox.Namespace
	Notices   []string // to be told
}

// Where the network's own addresses are, counted from its first.
const (
	hostOffset     = 2
	resolverOffset = 3
	guestOffset    = 100
)

// The addresses of the IPv6 network.
var (
	guest6    = netip.MustParsePrefix("fd00::100/64")
	host6     = netip.MustParseAddr("fd00::2")
	resolver6 = netip.MustParseAddr("fd00::3")
)

// smallestMTU6 is IPv6's, RFC 8200 section 5.
const smallestMTU6 = 1280

// Plan says what the options mean. It is a pure function of them, but for the
// addresses of links that --outbound-addr names: addressOf tells those.
func (o Options) Plan(addressOf func(link string, four bool) (netip.Addr, error)) (Plan, error) {
	p := Plan{Notices: slices.Clone(o.Notices)}
	p.Namespace = sandbox.Namespace{PID: o.PID, Path: o.Path, UserNSPath: o.UserNS}
	gateway := nth(o.CIDR, hostOffset)
	p.Config = sandbox.Config{
		Interface: o.Interface, MTU: o.MTU, NoConfigure: !o.Configure, ReplaceTUN: true,
		// RootlessKit's children make bridges and rules of their own in there, which
		// would keep most connections from the splice tier.
		Tier:  sandbox.TierTUN,
		Addr4: netip.PrefixFrom(nth(o.CIDR, guestOffset), o.CIDR.Bits()), Gateway4: gateway,
		NoIPv6: !o.IPv6,
		DNS:    sandbox.DNS{Off: o.NoDNS, Listen: []netip.Addr{nth(o.CIDR, resolverOffset)}, KeepResolvConf: true},
	}
	if o.NoDNS {
		p.Config.DNS.Listen = nil
	}
	if !o.NoHostLoopback {
		p.Config.HostLoopback4 = gateway
	}
	if o.IPv6 {
		if o.MTU < smallestMTU6 {
			return p, fmt.Errorf("--enable-ipv6: the MTU has to be at least %d", smallestMTU6)
		}
		o.six(&p)
	}
	var err error
	if p.Config.Outbound4, err = outbound(o.Outbound4, true, addressOf); err != nil {
		return p, fmt.Errorf("--outbound-addr %s: %w", o.Outbound4, err)
	}
	if p.Config.Outbound6, err = outbound(o.Outbound6, false, addressOf); err != nil {
		return p, fmt.Errorf("--outbound-addr6 %s: %w", o.Outbound6, err)
	}
	return p, nil
}

// six adds the IPv6 network.
func (o Options) six(p *Plan) {
	p.Config.Addr6, p.Config.Gateway6 = guest6, host6
	if !o.NoDNS {
		p.Config.DNS.Listen = append(p.Config.DNS.Listen, resolver6)
	}
	if !o.NoHostLoopback {
		p.Config.HostLoopback6 = host6
	}
	if !o.Configure {
		p.Notices = append(p.Notices, fmt.Sprintf("nothing answers router solicitations: give %s the address %s and a default route via %s", o.Interface, guest6, host6))
	}
}

// nth is the n-th address of an IPv4 network, which has that many.
func nth(network netip.Prefix, n uint32) netip.Addr {
	b := network.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// outbound is the address that a word means.
func outbound(word string, four bool, addressOf func(string, bool) (netip.Addr, error)) (netip.Addr, error) {
	if word == "" {
		return netip.Addr{}, nil
	}
	if a, err := netip.ParseAddr(word); err == nil {
		if a.Is4() != four || a.IsUnspecified() || a.IsMulticast() {
			return a, errors.New("is no address to send from")
		}
		return a, nil
	}
	return addressOf(word, four)
}

// AddressOf is the first address of a link of the network namespace we are in.
func AddressOf(link string, four bool) (netip.Addr, error) {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("is neither an address nor a link: %w", err)
	}
	addrs, err := l.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() == four && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("the link has no such address")
}
