package lan

import (
	"encoding/binary"
	"net/netip"

	"cleat/packet"
)

// Types of NDP messages and of their options (RFC 4861 section 4, RFC 8106 section 5).
const (
	RouterSolicitation     = 133 // asks for an advertisement, which is to be repeated
	routerAdvertisement    = 134
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	redirect               = 137

	optionSource = 1 // the sender's Ethernet address
	optionTarget = 2 // the target's
	optionPrefix = 3
	optionMTU    = 5
	optionRDNSS  = 25 // DNS servers
	optionDNSSL  = 31 // search domains
)

const (
	maxHops  = 255        // of an NDP message, so that none can come from another link (RFC 4861 section 3.1)
	infinite = 0xffffffff // a lifetime, in seconds (RFC 4861 section 4.6.2, RFC 8415 section 7.7)
	// routerSeconds is how long guests keep the router: the longest that all of them accept
	// (RFC 4861 section 6.2.1). usernet repeats its advertisements more often.
	routerSeconds = 9000
)

// The group of all nodes (RFC 4291 section 2.7.1), and its Ethernet address (RFC 2464 section
// 7).
var (
	allNodes    = netip.IPv6LinkLocalAllNodes()
	allNodesMAC = packet.MAC{0x33, 0x33, 0, 0, 0, 1}
)

// ndp answers a neighbour or router solicitation.
func (r *reply) ndp(ip *packet.IP) error {
	m := ip.Payload
	if r.l.cfg.NoNDP || !r.l.cfg.Addr6.IsValid() || ip.TTL != maxHops || len(m) < packet.ICMPBytes || m[1] != 0 {
		return errIgnore
	}
	switch m[0] {
	case neighbourSolicitation:
		return r.advertiseNeighbour(ip)
	case RouterSolicitation:
		if r.l.cfg.NoRA {
			return errIgnore
		}
		to, mac := ip.Src, r.mac
		if to.IsUnspecified() {
			to, mac = allNodes, allNodesMAC
		}
		r.advertiseRouter(mac, to)
		return nil
	}
	return errIgnore
}

// advertiseNeighbour answers a neighbour solicitation: every address but the guest's own has
// the LAN's Ethernet address. It ignores duplicate address detection, whose source is
// unspecified (RFC 4862 section 5.4.2).
func (r *reply) advertiseNeighbour(ip *packet.IP) error {
	const targetBytes = 16
	m := ip.Payload
	if len(m) < packet.ICMPBytes+targetBytes || ip.Src.IsUnspecified() {
		return errIgnore
	}
	target := netip.AddrFrom16([16]byte(m[packet.ICMPBytes:]))
	if target.IsMulticast() || target == r.l.cfg.Addr6.Addr() || target == ip.Src {
		return errIgnore
	}
	const router, solicited, override = 0x80, 0x40, 0x20
	b := append(r.body(false)[:0], neighbourAdvertisement, 0, 0, 0, router|solicited|override, 0, 0, 0)
	b = append(b, m[packet.ICMPBytes:packet.ICMPBytes+targetBytes]...)
	b = r.l.appendOwn(b, optionTarget)
	r.send(r.mac, target, ip.Src, packet.ICMPv6, len(b))
	return nil
}

// appendOwn appends an option that holds the LAN's Ethernet address.
func (l *LAN) appendOwn(b []byte, option byte) []byte {
	return append(append(b, option, 1), l.cfg.MAC[:]...)
}

// Advertise writes an unsolicited router advertisement, an Ethernet frame to all nodes, into
// b, which has AnswerBytes, and returns its size. It returns 0 if there are no advertisements.
func (l *LAN) Advertise(b []byte) int {
	if l.cfg.NoNDP || l.cfg.NoRA || !l.cfg.Addr6.IsValid() {
		return 0
	}
	r := reply{l: l, b: b[:AnswerBytes]}
	r.advertiseRouter(allNodesMAC, allNodes)
	return r.size
}

// advertiseRouter writes a router advertisement. Guests get an address by DHCPv6, unless that
// is disabled, and may choose more of them.
func (r *reply) advertiseRouter(mac packet.MAC, to netip.Addr) {
	l := r.l
	const managed, other = 0x80, 0x40
	flags := byte(managed | other)
	if l.cfg.NoDHCPv6 {
		flags = 0
	}
	const hopLimit = 64
	b := append(r.body(false)[:0], routerAdvertisement, 0, 0, 0, hopLimit, flags)
	b = binary.BigEndian.AppendUint16(b, routerSeconds)
	b = append(b, make([]byte, 8)...) // reachable time and retransmission timer: the guest's own
	b = l.appendPrefix(b)
	if l.cfg.MTU > 0 {
		b = append(b, optionMTU, 1, 0, 0)
		b = binary.BigEndian.AppendUint32(b, uint32(l.cfg.MTU))
	}
	b = l.appendOwn(b, optionSource)
	b = l.appendRDNSS(b)
	b = l.appendDNSSL(b, len(r.body(false)))
	r.send(mac, l.linkLocal, to, packet.ICMPv6, len(b))
}

func (l *LAN) appendPrefix(b []byte) []byte {
	const onLink, autonomous = 0x80, 0x40
	flags := byte(onLink)
	if l.AutoPrefix().IsValid() {
		flags |= autonomous
	}
	b = append(b, optionPrefix, 4, byte(l.cfg.Addr6.Bits()), flags)
	b = binary.BigEndian.AppendUint32(b, infinite) // valid
	b = binary.BigEndian.AppendUint32(b, infinite) // preferred
	b = append(b, 0, 0, 0, 0)
	prefix := l.cfg.Addr6.Masked().Addr().As16()
	return append(b, prefix[:]...)
}

// maxServers bounds the DNS servers in a message. Resolvers of guests use at most three
// (MAXNS, resolv.h).
const maxServers = 3

// appendServers appends the addresses of at most maxServers DNS servers of a family, and
// returns their number.
func (l *LAN) appendServers(b []byte, is4 bool) (longer []byte, n int) {
	for _, a := range l.cfg.DNS {
		if a.Is4() != is4 || n == maxServers {
			continue
		}
		n++
		if is4 {
			as4 := a.As4()
			b = append(b, as4[:]...)
		} else {
			as16 := a.As16()
			b = append(b, as16[:]...)
		}
	}
	return b, n
}

func (l *LAN) appendRDNSS(b []byte) []byte {
	start := len(b)
	b = append(b, optionRDNSS, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, infinite)
	b, n := l.appendServers(b, false)
	if n == 0 {
		return b[:start]
	}
	b[start+1] = byte(1 + 2*n) // in units of 8 bytes
	return b
}

// appendDNSSL appends the search domains that fit into room bytes altogether.
func (l *LAN) appendDNSSL(b []byte, room int) []byte {
	const header, unit = 8, 8
	names, size := fitNames(l.search, min(room-len(b)-header-unit, 255*unit-header))
	if len(names) == 0 {
		return b
	}
	padded := (size + unit - 1) / unit * unit
	b = append(b, optionDNSSL, byte((header+padded)/unit), 0, 0)
	b = binary.BigEndian.AppendUint32(b, infinite)
	for _, n := range names {
		b = append(b, n...)
	}
	return append(b, make([]byte, padded-size)...)
}
