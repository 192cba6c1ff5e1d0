package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddFDB adds a permanent forwarding entry to a vxlan link: frames for mac go
// to dst. The zero MAC stands for broadcast, multicast and unknown addresses, and
// may have several destinations. Any other address has one, which is replaced.
func (l *Link) AddFDB(mac MAC, dst netip.Addr) error {
	return l.do(fmt.Sprintf("add forwarding entry %s → %s to", mac, dst), func(h *netlink.Handle, nl netlink.Link) error {
		if mac == (MAC{}) || mac[0]&1 != 0 {
			return h.NeighAppend(fdb(nl, mac, dst))
		}
		return h.NeighSet(fdb(nl, mac, dst))
	})
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

// AddNeighbor adds a permanent ARP or ND entry. It replaces an entry for the same
// address.
func (l *Link) AddNeighbor(ip netip.Addr, mac MAC) error {
	return l.do(fmt.Sprintf("add neighbour %s at %s to", ip, mac), func(h *netlink.Handle, nl netlink.Link) error {
		n := neighbor(nl, ip)
		n.HardwareAddr = mac[:]
		return h.NeighSet(n)
	})
}

// Neighbor returns the MAC address of a neighbour. ok is false if the address is
// not resolved.
func (l *Link) Neighbor(ip netip.Addr) (mac MAC, ok bool, err error) {
	err = l.do("list neighbours of", func(h *netlink.Handle, nl netlink.Link) error {
		all, err := Dump(func() ([]netlink.Neigh, error) { return h.NeighList(nl.Attrs().Index, family(ip)) })
		for _, n := range all {
			if got, _ := netip.AddrFromSlice(n.IP); got.Unmap() == ip && len(n.HardwareAddr) == len(mac) && n.State&netlink.NUD_FAILED == 0 {
				mac, ok = MAC(n.HardwareAddr), true
			}
		}
		return err
	})
	return mac, ok, err
}

// DeleteNeighbor removes an ARP or ND entry, added or learnt. A missing entry is
// an error that wraps fs.ErrNotExist.
func (l *Link) DeleteNeighbor(ip netip.Addr) error {
	return l.do(fmt.Sprintf("remove neighbour %s from", ip), func(h *netlink.Handle, nl netlink.Link) error {
		return h.NeighDel(neighbor(nl, ip))
	})
}

func neighbor(nl netlink.Link, ip netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: nl.Attrs().Index,
		Family:    family(ip),
		State:     netlink.NUD_PERMANENT,
		IP:        ip.AsSlice(),
	}
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
