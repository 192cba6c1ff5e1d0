package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SetHairpin selects whether a bridge port sends frames back out of the port that
// they came in by.
func (l *Link) SetHairpin(on bool) error {
	return l.do("set hairpin mode of", func(h *netlink.Handle, nl netlink.Link) error { return h.LinkSetHairpin(nl, on) })
}

// PortVLAN is the membership of a bridge port in a VLAN.
type PortVLAN struct {
	ID       int  // 1…4094
	PVID     bool // received frames without a tag belong to it
	Untagged bool // its frames are sent without a tag
}

// AddVLAN adds a port of a VLAN-filtering bridge to a VLAN. On the bridge itself
// it adds the host. A port has one PVID: a new one replaces the old.
func (l *Link) AddVLAN(v PortVLAN) error {
	if v.ID < 1 || v.ID > 4094 {
		return paramError("bridge port", "vid", v.ID, "1…4094")
	}
	return vlanLack(l.do(fmt.Sprintf("add vlan %d to", v.ID), func(h *netlink.Handle, nl netlink.Link) error {
		own := nl.Type() == "bridge"
		return h.BridgeVlanAdd(nl, uint16(v.ID), v.PVID, v.Untagged, own, !own)
	}))
}

// DeleteVLAN removes a port from a VLAN. It is an error if the port is not in it.
func (l *Link) DeleteVLAN(id int) error {
	return vlanLack(l.do(fmt.Sprintf("remove vlan %d from", id), func(h *netlink.Handle, nl netlink.Link) error {
		own := nl.Type() == "bridge"
		return h.BridgeVlanDel(nl, uint16(id), false, false, own, !own)
	}))
}

// VLANs lists the VLANs of a port of a VLAN-filtering bridge, by ID.
func (l *Link) VLANs() ([]PortVLAN, error) {
	var out []PortVLAN
	err := l.do("list vlans of", func(h *netlink.Handle, nl netlink.Link) error {
		all, err := h.BridgeVlanList()
		if err != nil {
			return err
		}
		for _, v := range all[int32(nl.Attrs().Index)] {
			out = append(out, PortVLAN{ID: int(v.Vid), PVID: v.PortVID(), Untagged: v.EngressUntag()})
		}
		return nil
	})
	slices.SortFunc(out, func(a, b PortVLAN) int { return a.ID - b.ID })
	return out, vlanLack(err)
}

// vlanLack returns a *Lack if the kernel has no VLAN filtering.
func vlanLack(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return newLack("bridge-vlan", err)
	}
	return err
}
