package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FDBEntry says behind which tunnel end a MAC address is.
type FDBEntry struct {
	MAC MAC        // zero: frames for everyone and for unknown addresses
	Dst netip.Addr // the tunnel end
}

// AddFDB adds a permanent forwarding entry to a vxlan link: frames for mac go
// to dst. The zero MAC stands for everyone and every unknown address, and may
// have several destinations; any other has one, which is replaced.
func (l *Link) AddFDB(mac MAC, dst netip.Addr) error {
	return l.do("add forwarding entry to link %q", func(h *netlink.Handle, nl netlink.Link) error {
		add := h.NeighSet
		if mac == (MAC{}) || mac[0]&1 != 0 {
			add = h.NeighAppend
		}
		if err := add(fdb(nl, mac, dst)); err != nil {
			return fmt.Errorf("%s → %s: %w", mac, dst, err)
		}
		return nil
	})
}

// DeleteFDB removes what AddFDB added. An entry that is not there is an error.
func (l *Link) DeleteFDB(mac MAC, dst netip.Addr) error {
	return l.do("remove forwarding entry from link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.NeighDel(fdb(nl, mac, dst)); err != nil {
			return fmt.Errorf("%s → %s: %w", mac, dst, err)
		}
		return nil
	})
}

// FDB lists the forwarding entries that have a tunnel end, added or learnt.
func (l *Link) FDB() ([]FDBEntry, error) {
	var out []FDBEntry
	err := l.do("list forwarding entries of link %q", func(h *netlink.Handle, nl netlink.Link) error {
		all, err := h.NeighList(nl.Attrs().Index, unix.AF_BRIDGE)
		if err != nil {
			return err
		}
		for _, n := range all {
			dst, ok := netip.AddrFromSlice(n.IP)
			if ok && len(n.HardwareAddr) == len(MAC{}) {
				out = append(out, FDBEntry{MAC(n.HardwareAddr), dst.Unmap()})
			}
		}
		return nil
	})
	return out, err
}

func fdb(nl netlink.Link, mac MAC, dst netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    nl.Attrs().Index,
		Family:       unix.AF_BRIDGE,
		State:        netlink.NUD_PERMANENT | netlink.NUD_NOARP,
		Flags:        netlink.NTF_SELF,
		IP:           dst.AsSlice(),
		HardwareAddr: mac[:],
	}
}

// AddNeighbor adds a permanent ARP or ND entry, replacing any for the same
// address.
func (l *Link) AddNeighbor(ip netip.Addr, mac MAC) error {
	return l.do("add neighbour to link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.NeighSet(neighbor(nl, ip, mac)); err != nil {
			return fmt.Errorf("%s at %s: %w", ip, mac, err)
		}
		return nil
	})
}

// DeleteNeighbor forgets the neighbour, however it was learnt. One that is not
// there is an error.
func (l *Link) DeleteNeighbor(ip netip.Addr) error {
	return l.do("remove neighbour from link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.NeighDel(neighbor(nl, ip, MAC{})); err != nil {
			return fmt.Errorf("%s: %w", ip, err)
		}
		return nil
	})
}

// Neighbor is the MAC address known for ip; ok is false if there is none (yet).
func (l *Link) Neighbor(ip netip.Addr) (mac MAC, ok bool, err error) {
	err = l.do("list neighbours of link %q", func(h *netlink.Handle, nl netlink.Link) error {
		all, err := h.NeighList(nl.Attrs().Index, family(ip))
		if err != nil {
			return err
		}
		for _, n := range all {
			if got, _ := netip.AddrFromSlice(n.IP); got.Unmap() == ip && len(n.HardwareAddr) == len(mac) && n.State&netlink.NUD_FAILED == 0 {
				mac, ok = MAC(n.HardwareAddr), true
			}
		}
		return nil
	})
	return mac, ok, err
}

func neighbor(nl netlink.Link, ip netip.Addr, mac MAC) *netlink.Neigh {
	n := &netlink.Neigh{
		LinkIndex: nl.Attrs().Index,
		Family:    family(ip),
		State:     netlink.NUD_PERMANENT,
		IP:        ip.AsSlice(),
	}
	if mac != (MAC{}) {
		n.HardwareAddr = mac[:]
	}
	return n
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
