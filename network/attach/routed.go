package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"

	"golang.org/x/sys/unix"
)

// routed plans a pair without a bridge: the host routes each address to the container. The
// container's neighbour is the host alone, which answers for its own IPv4 addresses on every
// link (arp_process, net/ipv4/arp.c). For IPv6 it answers only for those of the link
// (ndisc_recv_ns, net/ipv6/ndisc.c), so a link-local gateway is added to its end.
func (p *planner) routed() error {
	if err := p.checkPeer(); err != nil {
		return err
	}
	mtu := p.spec.MTU
	if mtu == 0 {
		mtu = p.uplinkMTU(unix.RT_TABLE_MAIN)
	}
	p.pair("veth", mtu)
	p.add(Port{Link: p.peer, NoLinkLocal: p.spec.withoutIPv6()})
	gateways := slices.Concat(p.spec.Gateways, p.spec.SourceGateways)
	for _, g := range gateways {
		if g.IsLinkLocalUnicast() {
			p.add(PeerAddress{Peer: p.peer, Addr: g.WithZone("")})
		}
	}
	from := map[bool]netip.Addr{}
	for _, g := range gateways {
		if !g.IsLinkLocalUnicast() && p.host.isLocal(g) {
			from[g.Is4()] = g
		}
	}
	for _, ip := range p.spec.Addresses {
		p.add(ShimRoute{Shim: p.peer, To: ip.Addr(), From: from[ip.Addr().Is4()]})
	}
	return nil
}

// PeerAddress adds an address to the host's end of a pair, with which it goes.
type PeerAddress struct {
	Peer string     `json:"peer"`
	Addr netip.Addr `json:"address"`
}

func (s PeerAddress) String() string { return fmt.Sprintf("add address %s to %s", s.Addr, s.Peer) }

func (s PeerAddress) do(r *run) error {
	l, err := link.Find(r.host.ns, s.Peer)
	if err != nil {
		return err
	}
	return r.host.withIPv6(s.Peer, func() error {
		return l.AddAddr(netip.PrefixFrom(s.Addr, 64)) // fe80::/64 (RFC 4291 section 2.5.6)
	})
}
