package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// BridgePort is how a bridge treats one of its ports (net/bridge/br_netlink.c).
// Comparable data; the zero value is the kernel's default.
type BridgePort struct {
	Hairpin       bool   // send frames back out of this port
	Isolated      bool   // exchange frames with ports that are not isolated only
	Learning      Toggle // of addresses; the kernel's default is on
	Flood         Toggle // of unicast to unknown addresses; the kernel's default is on
	McastFlood    Toggle // of multicast; the kernel's default is on
	BcastFlood    Toggle // of broadcast; the kernel's default is on
	McastToUcast  bool   // copy multicast to each listener by unicast
	BPDUGuard     bool   // shut the port down when a spanning tree frame comes in
	RootBlock     bool   // never the way to the root bridge
	FastLeave     bool   // drop a multicast listener at its first leave
	ProxyARP      bool   // answer ARP for hosts behind other ports
	NeighSuppress bool   // answer ARP and ND from the neighbour table
	Locked        bool   // take frames from known addresses only (Linux 5.18)
	VLANTunnel    bool   // map VLANs to tunnel ids
	GroupFwdMask  int    // like BridgeSpec.GroupFwdMask, for this port
	Priority      int    // of the spanning tree, 0…63; 0: the kernel's default, 32
	Cost          int    // of the spanning tree, 1…65535; 0: by speed
}

func (p *BridgePort) fields() []field {
	return []field{
		{"hairpin", unix.IFLA_BRPORT_MODE, bool8Always(&p.Hairpin)},
		{"isolated", unix.IFLA_BRPORT_ISOLATED, bool8Always(&p.Isolated)},
		{"learning", unix.IFLA_BRPORT_LEARNING, toggle8(&p.Learning)},
		{"flood", unix.IFLA_BRPORT_UNICAST_FLOOD, toggle8(&p.Flood)},
		{"mcast_flood", unix.IFLA_BRPORT_MCAST_FLOOD, toggle8(&p.McastFlood)},
		{"bcast_flood", unix.IFLA_BRPORT_BCAST_FLOOD, toggle8(&p.BcastFlood)},
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

// Validate returns a *ParamError for the first parameter that no kernel would
// accept.
func (p BridgePort) Validate() error { return checkValues("bridge port", p.fields()) }

// SetPort says how the bridge is to treat the link, which must be a port.
// Switches left at Default, and numbers left 0, stay as they are. What the
// kernel does not take is an error, and a *Lack if it does not know it.
func (l *Link) SetPort(p BridgePort) error {
	if err := p.Validate(); err != nil {
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
	info, err := nest(unix.IFLA_PROTINFO, inner)
	if err != nil {
		return err
	}
	_, err = r.execute(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(unix.AF_BRIDGE, w.index), []attribute{info})
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
	var blank BridgePort
	have, none := got.fields(), blank.fields()
	for i, f := range asked.fields() {
		want, is := f.val.text(), have[i].val.text()
		if want != none[i].val.text() && want != is {
			return paramError("bridge port", f.name, want, "what the kernel makes of it is "+is)
		}
	}
	return nil
}

// Port reads how the bridge treats the link. A link that is no port of a bridge
// is an error.
func (l *Link) Port() (BridgePort, error) {
	var p BridgePort
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return p, err
	}
	defer r.Close()
	rep, err := r.byIndex(w.index)
	if err != nil {
		return p, fmt.Errorf("find link %q in %s: %w", w.name, w.ns, err)
	}
	if len(rep.slaveData) == 0 {
		return p, fmt.Errorf("read bridge port %q: it is no port of a bridge", w.name)
	}
	if err := decodeFields(p.fields(), rep.slaveData, r); err != nil {
		return p, fmt.Errorf("read bridge port %q: %w", w.name, err)
	}
	return p, nil
}

// PortVLAN is a VLAN that a port of a VLAN-filtering bridge is in.
type PortVLAN struct {
	ID       int  // 1…4094
	PVID     bool // frames that come in without a tag belong to it
	Untagged bool // its frames go out without a tag
}

// AddVLAN puts a port of a VLAN-filtering bridge into a VLAN; of the bridge
// itself, its own stack. A port has one PVID: a new one replaces the old.
func (l *Link) AddVLAN(v PortVLAN) error {
	if v.ID < 1 || v.ID > 4094 {
		return paramError("bridge port", "vid", v.ID, "1…4094")
	}
	return vlanLack(l.do("add vlan to bridge port %q", func(h *netlink.Handle, nl netlink.Link) error {
		own := nl.Type() == "bridge"
		return h.BridgeVlanAdd(nl, uint16(v.ID), v.PVID, v.Untagged, own, !own)
	}))
}

// DeleteVLAN takes a port out of a VLAN. One that it is not in is an error.
func (l *Link) DeleteVLAN(id int) error {
	return vlanLack(l.do("remove vlan from bridge port %q", func(h *netlink.Handle, nl netlink.Link) error {
		own := nl.Type() == "bridge"
		return h.BridgeVlanDel(nl, uint16(id), false, false, own, !own)
	}))
}

// VLANs lists the VLANs that a port of a VLAN-filtering bridge is in, by
// number.
func (l *Link) VLANs() ([]PortVLAN, error) {
	var out []PortVLAN
	err := l.do("list vlans of bridge port %q", func(h *netlink.Handle, nl netlink.Link) error {
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

// vlanLack explains a kernel whose bridges know no VLANs.
func vlanLack(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return newLack("bridge-vlan", err)
	}
	return err
}
