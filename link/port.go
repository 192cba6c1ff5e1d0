package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// BridgePort holds the settings of a bridge port (net/bridge/br_netlink.c). It is
// comparable data; its zero value is the kernel's default.
type BridgePort struct {
	Hairpin       bool   // send frames back out of this port
	Isolated      bool   // exchange frames only with ports that are not isolated
	Learning      Toggle // learn MAC addresses; the kernel's default is on
	Flood         Toggle // send unicast frames for unknown addresses; the kernel's default is on
	McastFlood    Toggle // send multicast frames; the kernel's default is on
	BcastFlood    Toggle // send broadcast frames; the kernel's default is on
	McastToUcast  bool   // copy multicast to each listener by unicast
	BPDUGuard     bool   // shut the port down when it receives a spanning tree frame
	RootBlock     bool   // never become the root port
	FastLeave     bool   // remove a multicast listener at its first leave message
	ProxyARP      bool   // answer ARP requests for hosts behind other ports
	NeighSuppress bool   // answer ARP and ND from the neighbour table
	Locked        bool   // accept frames from known addresses only (Linux 5.18)
	VLANTunnel    bool   // map VLANs to tunnel IDs
	GroupFwdMask  int    // like BridgeSpec.GroupFwdMask, for this port
	Priority      int    // of the spanning tree, 0…63; 0: the kernel's default, 32
	Cost          int    // of the spanning tree, 1…65535; 0: derived from the speed
}

func (p *BridgePort) fields() []field {
	return []field{
		{"hairpin", unix.IFLA_BRPORT_MODE, bool8Always(&p.Hairpin)},
		{"isolated", unix.IFLA_BRPORT_ISOLATED, bool8Always(&p.Isolated)},
		{"learning", unix.IFLA_BRPORT_LEARNING, toggle{&p.Learning}},
		{"flood", unix.IFLA_BRPORT_UNICAST_FLOOD, toggle{&p.Flood}},
		{"mcast_flood", unix.IFLA_BRPORT_MCAST_FLOOD, toggle{&p.McastFlood}},
		{"bcast_flood", unix.IFLA_BRPORT_BCAST_FLOOD, toggle{&p.BcastFlood}},
		{"mcast_to_unicast", unix.IFLA_BRPORT_MCAST_TO_UCAST, bool8Always(&p.McastToUcast)},
		{"guard", unix.IFLA_BRPORT_GUARD, bool8Always(&p.BPDUGuard)},
		{"root_block", unix.IFLA_BRPORT_PROTECT, bool8Always(&p.RootBlock)},
		{"fastleave", unix.IFLA_BRPORT_FAST_LEAVE, bool8Always(&p.FastLeave)},
		{"proxy_arp", unix.IFLA_BRPORT_PROXYARP, bool8Always(&p.ProxyARP)},
		{"neigh_suppress", unix.IFLA_BRPORT_NEIGH_SUPPRESS, bool8Always(&p.NeighSuppress)},
		{"locked", unix.IFLA_BRPORT_LOCKED, bool8Always(&p.Locked)},
		{"vlan_tunnel", unix.IFLA_BRPORT_VLAN_TUNNEL, bool8Always(&p.VLANTunnel)},
		{"group_fwd_mask", unix.IFLA_BRPORT_GROUP_FWD_MASK, u16(&p.GroupFwdMask)},
		{"priority", unix.IFLA_BRPORT_PRIORITY, u16(&p.Priority).between(1, 63)},
		{"cost", unix.IFLA_BRPORT_COST, u32(&p.Cost).between(1, 65535)},
	}
}

// SetPort changes the settings of a bridge port. Toggles that are Default and
// numbers that are 0 stay as they are. It is an error if the kernel does not
// apply a setting.
func (l *Link) SetPort(p BridgePort) error {
	if err := validate("bridge port", p.fields()); err != nil {
		return err
	}
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return err
	}
	defer r.Close()
	inner, err := encodeFields("bridge port", p.fields(), r)
	if err != nil {
		return err
	}
	settings, err := nest(unix.IFLA_PROTINFO, inner)
	if err != nil {
		return err
	}
	_, err = r.execute(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(unix.AF_BRIDGE, w.index), []attribute{settings})
	if err != nil {
		return fmt.Errorf("set bridge port %q: %w", w.name, kernelError(err))
	}
	got, err := l.Port()
	if err != nil {
		return err
	}
	return verifyPort(p, got)
}

func verifyPort(asked, got BridgePort) error {
	var unset BridgePort
	have, none := got.fields(), unset.fields()
	for i, f := range asked.fields() {
		want, actual := f.val.text(), have[i].val.text()
		if want != none[i].val.text() && want != actual {
			return mismatch("bridge port", f, want, actual)
		}
	}
	return nil
}

// Port reads the settings of a bridge port. It is an error if the link is no
// bridge port.
func (l *Link) Port() (BridgePort, error) {
	var p BridgePort
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return p, err
	}
	defer r.Close()
	info, err := r.byIndex(w.index)
	if err != nil {
		return p, fmt.Errorf("find link %q in %s: %w", w.name, w.ns, err)
	}
	if len(info.slaveData) == 0 {
		return p, fmt.Errorf("read bridge port %q: not a bridge port", w.name)
	}
	if err := decodeFields(p.fields(), info.slaveData, r); err != nil {
		return p, fmt.Errorf("read bridge port %q: %w", w.name, err)
	}
	return p, nil
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
