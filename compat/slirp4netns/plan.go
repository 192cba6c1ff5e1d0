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

// Plan is everything that the options determine.
type Plan struct {
	Config    sandbox.Config
	Namespace sandbox.Namespace
	Notices   []string // to be logged
}

// Offsets of the network's own addresses.
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

// smallestMTU6 is the minimum MTU of IPv6 (RFC 8200 section 5).
const smallestMTU6 = 1280

// Plan translates the options. It is a pure function of them, except that addressOf looks
// up the addresses of links in --outbound-addr.
func (o Options) Plan(addressOf func(link string, four bool) (netip.Addr, error)) (Plan, error) {
	p := Plan{Notices: slices.Clone(o.Notices)}
	p.Namespace = sandbox.Namespace{PID: o.PID, Path: o.Path, UserNSPath: o.UserNS}
	gateway := nth(o.CIDR, hostOffset)
	p.Config = sandbox.Config{
		Interface: o.Interface, MTU: o.MTU, NoConfigure: !o.Configure, ReplaceTUN: true,
		// RootlessKit's children create bridges and rules inside that would keep most
		// connections from the splice tier.
		Tier: sandbox.TierTUN,
		// The stations' address is libslirp's (special_ethaddr, slirp.c): the gateway's IPv4
		// address behind 52:55.
		Device:   sandbox.DeviceTAP,
		Ethernet: sandbox.Ethernet{MAC: o.MAC, GatewayMAC: sandbox.MAC(append([]byte{0x52, 0x55}, gateway.AsSlice()...))},
		Addr4:    netip.PrefixFrom(nth(o.CIDR, guestOffset), o.CIDR.Bits()), Gateway4: gateway,
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
			return p, fmt.Errorf("--enable-ipv6: the MTU must be at least %d", smallestMTU6)
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

func (o Options) six(p *Plan) {
	p.Config.Addr6, p.Config.Gateway6 = guest6, host6
	if !o.NoDNS {
		p.Config.DNS.Listen = append(p.Config.DNS.Listen, resolver6)
	}
	if !o.NoHostLoopback {
		p.Config.HostLoopback6 = host6
	}
}

// nth returns the n-th address of an IPv4 network, which must have that many.
func nth(network netip.Prefix, n uint32) netip.Addr {
	b := network.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// outbound resolves a source address or a link name.
func outbound(word string, four bool, addressOf func(string, bool) (netip.Addr, error)) (netip.Addr, error) {
	if word == "" {
		return netip.Addr{}, nil
	}
	if a, err := netip.ParseAddr(word); err == nil {
		if a.Is4() != four || a.IsUnspecified() || a.IsMulticast() {
			return a, errors.New("is not a usable source address")
		}
		return a, nil
	}
	return addressOf(word, four)
}

// AddressOf returns the first address of a link in the current network namespace.
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
	return netip.Addr{}, errors.New("the link has no address of this family")
}
