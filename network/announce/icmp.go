package announce

import (
	"fmt"
	"net/netip"

	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

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
