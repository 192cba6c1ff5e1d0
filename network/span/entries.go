package span

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// entries makes the forwarding entries of the VXLAN device: one of each host.
func (s *syncer) entries() error {
	wanted := map[link.MAC]netip.Addr{}
	for _, h := range s.config.Hosts {
		if h.By == ByVXLAN {
			wanted[h.MAC] = h.Address
		}
	}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return s.h.NeighList(s.index, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("list forwarding entries of %s: %w", Device, err)
	}
	missing := map[link.MAC]bool{}
	for mac := range wanted {
		missing[mac] = true
	}
	for _, n := range all {
		if len(n.HardwareAddr) != len(link.MAC{}) {
			continue
		}
		mac := link.MAC(n.HardwareAddr)
		at, _ := netip.AddrFromSlice(n.IP)
		at = at.Unmap()
		if want, ok := wanted[mac]; ok {
			if want == at && n.State&netlink.NUD_PERMANENT != 0 {
				delete(missing, mac)
			}
			continue // what differs is replaced
		}
		s.note("forwarding entry %s removed", mac)
		if err := s.h.NeighDel(s.entry(mac, at)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove forwarding entry %s of %s: %w", mac, Device, err)
		}
	}
	for mac := range missing {
		at := wanted[mac]
		s.note("forwarding entry %s at %s", mac, at)
		if err := s.h.NeighSet(s.entry(mac, at)); err != nil {
			return fmt.Errorf("set forwarding entry %s at %s of %s: %w", mac, at, Device, err)
		}
	}
	return nil
}

func (s *syncer) entry(mac link.MAC, at netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: s.index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP,
		Flags: netlink.NTF_SELF, IP: at.AsSlice(), HardwareAddr: mac[:]}
}

// nextHop returns the address by which routes of a family lead to a host, by VXLAN and Geneve.
func (h Host) nextHop(family int) netip.Addr {
	if family == unix.AF_INET && h.Address.Is4() {
		return h.Address
	}
	m := h.MAC // modified EUI-64, RFC 4291 appendix A
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// neighboursOn makes the neighbours on a device of Ethernet packets.
func (s *syncer) neighboursOn(device string, index int) error {
	return errors.Join(s.neighbours(device, index, unix.AF_INET), s.neighbours(device, index, unix.AF_INET6))
}

// neighbours makes the neighbours of a family on a device: the next hops of routes.
func (s *syncer) neighbours(device string, index, family int) error {
	wanted := map[netip.Addr]link.MAC{}
	for _, h := range s.config.Hosts {
		if by := map[string]By{Device: ByVXLAN, GeneveDevice: ByGeneve}[device]; h.By != by {
			continue
		}
		for _, b := range h.Blocks { // plain ones as well: they may become VXLAN ones at any time
			of := unix.AF_INET6
			if b.Prefix.Addr().Is4() {
				of = unix.AF_INET
			}
			if hop := h.nextHop(of); isFamily(hop, family) {
				wanted[hop] = h.MAC
			}
		}
	}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return s.h.NeighList(index, family) })
	if err != nil && !(absent(err) && len(wanted) == 0) {
		return fmt.Errorf("list neighbours of %s: %w", device, err)
	}
	for _, n := range all {
		if n.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		a, _ := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		if want, ok := wanted[a]; ok {
			if slices.Equal(n.HardwareAddr, want[:]) {
				delete(wanted, a)
			}
			continue // what differs is replaced
		}
		s.note("neighbour %s removed", a)
		gone := &netlink.Neigh{LinkIndex: index, Family: family, IP: a.AsSlice()}
		if err := s.h.NeighDel(gone); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove neighbour %s of %s: %w", a, device, err)
		}
	}
	for a, mac := range wanted {
		s.note("neighbour %s at %s", a, mac)
		n := &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]}
		if err := s.h.NeighSet(n); err != nil {
			return fmt.Errorf("set neighbour %s at %s of %s: %w", a, mac, device, err)
		}
	}
	return nil
}
