package named

import (
	"fmt"
	"net/netip"

	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// UsableAddress returns an address of Subnet in a namespace that is not tentative, on a link
// that is up; the zero Addr if there is none.
func UsableAddress(ns *netns.NS) (found netip.Addr, err error) {
	err = ns.Do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
		if err != nil {
			return fmt.Errorf("list the container's addresses: %w", err)
		}
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			if !ok || !Subnet.Contains(ip) || a.Flags&unix.IFA_F_TENTATIVE != 0 {
				continue
			}
			l, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				return fmt.Errorf("read the container's link: %w", err)
			}
			if l.Attrs().RawFlags&unix.IFF_UP != 0 {
				found = ip
			}
		}
		return nil
	})
	return found, err
}
