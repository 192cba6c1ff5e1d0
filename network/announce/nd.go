package announce

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"cleat/link"
	"cleat/network/segment"
	"cleat/packet"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Message and option types of neighbour discovery (RFC 4861 sections 4.3, 4.4 and 4.6.1,
// RFC 3971 section 5.3.2).
const (
	ndSolicitation  = 135
	ndAdvertisement = 136

	ndOptionTargetMAC = 2
	ndOptionNonce     = 14

	ndBytes       = 24 // ICMPv6 header, flags and target
	ndOptionBytes = 8  // of either option
	ndNonceBytes  = 6

	ndHops = 255 // a message with another hop limit came through a router (RFC 4861 section 7.1.1)
)

// Flags of an advertisement (RFC 4861 section 4.4).
const (
	ndRouter   = 1 << 31
	ndOverride = 1 << 29
)

// nonce distinguishes our own solicitation, if it comes back, from others (RFC 7527).
type nonce [ndNonceBytes]byte

// solicitedNode returns the group that the owner of addr is in (RFC 4291 section 2.7.1).
func solicitedNode(addr netip.Addr) netip.Addr {
	group, a := netip.MustParseAddr("ff02::1:ff00:0").As16(), addr.As16()
	copy(group[13:], a[13:])
	return netip.AddrFrom16(group)
}

// groupMAC returns the Ethernet address of an IPv6 group (RFC 2464 section 7).
func groupMAC(group netip.Addr) link.MAC {
	a := group.As16()
	return link.MAC{0x33, 0x33, a[12], a[13], a[14], a[15]}
}

// ndProbe returns a solicitation that asks whether somebody has addr (RFC 4862 section
// 5.4.2).
func ndProbe(addr netip.Addr, n nonce) []byte {
	return ndMessage(netip.IPv6Unspecified(), solicitedNode(addr), ndSolicitation, 0, addr, ndOptionNonce, n)
}

// ndAnnouncement returns an advertisement that addr is at mac (RFC 4861 section 7.2.6).
func ndAnnouncement(mac link.MAC, addr netip.Addr, router bool) []byte {
	flags := uint32(ndOverride)
	if router {
		flags |= ndRouter
	}
	return ndMessage(addr, netip.IPv6LinkLocalAllNodes(), ndAdvertisement, flags, addr, ndOptionTargetMAC, mac)
}

// ndMessage returns a packet with one option.
func ndMessage(src, dst netip.Addr, typ uint8, flags uint32, target netip.Addr, option uint8, value [6]byte) []byte {
	const length = ndBytes + ndOptionBytes
	b := make([]byte, packet.IPBytes(src)+length)
	ip := packet.IP{Src: src, Dst: dst, Protocol: packet.ICMPv6, TTL: ndHops}
	m := b[ip.Put(b, length):]
	m[0] = typ
	binary.BigEndian.PutUint32(m[4:], flags)
	copy(m[8:], target.AsSlice())
	m[ndBytes], m[ndBytes+1] = option, ndOptionBytes/8
	copy(m[ndBytes+2:], value[:])
	packet.PutICMPChecksum(m, src, dst)
	return b
}

// nd is a parsed solicitation or advertisement.
type nd struct {
	typ    uint8
	src    netip.Addr
	target netip.Addr
	mac    link.MAC // of the target; zero: the option is missing
	nonce  nonce    // zero: the option is missing
}

// parseND parses a solicitation or advertisement. ok is false if it is invalid according
// to RFC 4861 sections 7.1.1 and 7.1.2.
func parseND(b []byte) (m nd, ok bool) {
	var ip packet.IP
	if packet.ParseIP(b, &ip) != nil || ip.Protocol != packet.ICMPv6 || ip.TTL != ndHops || ip.IsFragment() || len(ip.Payload) < ndBytes {
		return m, false
	}
	p := ip.Payload
	if p[0] != ndSolicitation && p[0] != ndAdvertisement || p[1] != 0 ||
		packet.TransportChecksum(ip.Src, ip.Dst, packet.ICMPv6, p) != 0 {
		return m, false
	}
	m = nd{typ: p[0], src: ip.Src, target: netip.AddrFrom16([16]byte(p[8:ndBytes]))}
	for options := p[ndBytes:]; len(options) > 0; {
		if len(options) < 2 || options[1] == 0 || len(options) < int(options[1])*8 {
			return m, false
		}
		if options[1] == ndOptionBytes/8 {
			switch options[0] {
			case ndOptionTargetMAC:
				m.mac = link.MAC(options[2:8])
			case ndOptionNonce:
				m.nonce = nonce(options[2:8])
			}
		}
		options = options[int(options[1])*8:]
	}
	return m, true
}

// neighbourDiscovery returns a filter that passes solicitations and advertisements. They
// have no extension headers (RFC 4861 section 4).
func neighbourDiscovery() []bpf.Instruction {
	const (
		nextHeader = 6  // offset in the IPv6 header
		icmpv6     = 58 // protocol number
		icmpType   = 40 // offset of the ICMPv6 type
	)
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: nextHeader, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmpv6, SkipTrue: 4},
		bpf.LoadAbsolute{Off: icmpType, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: ndSolicitation, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: ndAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}

// sendICMP sends an ICMPv6 message from an address of the link to a group on its segment.
// The kernel fills in the checksum (RFC 3542 section 3.1). The address must not be
// tentative.
func sendICMP(l segment.Link, from, group netip.Addr, message []byte) error {
	err := l.NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, o := range []struct{ option, value int }{
			{unix.IPV6_MULTICAST_IF, l.Index},
			{unix.IPV6_MULTICAST_HOPS, ndHops},
			{unix.IPV6_MULTICAST_LOOP, 0},
		} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, o.option, o.value); err != nil {
				return err
			}
		}
		at := func(a netip.Addr) *unix.SockaddrInet6 {
			return &unix.SockaddrInet6{Addr: a.As16(), ZoneId: uint32(l.Index)}
		}
		if err := unix.Bind(fd, at(from)); err != nil {
			return err
		}
		return unix.Sendto(fd, message, 0, at(group))
	})
	if err != nil {
		return fmt.Errorf("send ICMPv6 from %s on link %d in %s: %w", from, l.Index, l.NS, err)
	}
	return nil
}
