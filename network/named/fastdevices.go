package named

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"cleat/fastpath"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// devices returns the devices by which packets of networks come in and leave. leftover are others that may have programs
// of an earlier keeper.
func (f *fastKeeper) devices(networks []*Network) (s fastpath.Settings, devices []fastpath.Device, leftover []int, err error) {
	h, err := link.Handle(f.k.host)
	if err != nil {
		return s, nil, nil, err
	}
	defer h.Close()
	all, err := link.Dump(h.LinkList)
	if err != nil {
		return s, nil, nil, fmt.Errorf("list devices: %w", err)
	}
	q, err := qdiscsOf(h)
	if err != nil {
		return s, nil, nil, err
	}
	addressed, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return s, nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	ends, bridges, err := f.ends(networks)
	if err != nil {
		return s, nil, nil, err
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range all {
		byIndex[l.Attrs().Index] = l
	}
	for _, l := range all {
		a := l.Attrs()
		if v, ok := l.(*netlink.Vxlan); ok && isRemote(networks, a.Name) {
			s.VNI, s.Port, s.Device = v.VxlanId, uint16(v.Port), a.Index
		}
		master := byIndex[a.MasterIndex]
		switch {
		case q.ingress[a.Index] || a.EncapType != "ether":
		case ends[a.Name] || master != nil && bridges[master.Attrs().Name]:
			if l.Type() == "veth" && !q.root[a.Index] { // packets wait in a queueing discipline
				devices = append(devices, fastpath.Device{Index: a.Index, Role: fastpath.Container})
				continue
			}
		case isWire(l, master) && slices.ContainsFunc(addressed, func(one netlink.Addr) bool { return one.LinkIndex == a.Index && isGlobal(one) }):
			devices = append(devices, fastpath.Device{Index: a.Index, Role: fastpath.Wire})
			continue
		}
		if q.clsact[a.Index] {
			leftover = append(leftover, a.Index)
		}
	}
	if s.Device != 0 {
		s.Peers, err = peersOn(h, s.Device)
	}
	return s, devices, leftover, err
}

// peersOn returns the addresses of the hosts to which a VXLAN device sends, in order.
func peersOn(h *netlink.Handle, device int) (all []netip.Addr, err error) {
	entries, err := link.Dump(func() ([]netlink.Neigh, error) { return h.NeighList(device, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("list forwarding entries: %w", err)
	}
	for _, e := range entries {
		if a, ok := netip.AddrFromSlice(e.IP); ok {
			all = append(all, a.Unmap())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// isRemote reports whether packets of other hosts' containers come by a device.
func isRemote(networks []*Network, device string) bool {
	return slices.ContainsFunc(networks, func(n *Network) bool {
		return n.Span != nil && slices.ContainsFunc(n.Span.Remotes, func(r Remote) bool { return r.Device == device })
	})
}

// ends returns the names of the host's ends of containers' links on networks without a bridge, and of the bridges of the
// others.
func (f *fastKeeper) ends(networks []*Network) (ends, bridges map[string]bool, err error) {
	ends, bridges = map[string]bool{}, map[string]bool{}
	for _, n := range networks {
		if n.Driver != Routed {
			bridges[n.device()] = true
			continue
		}
		ids, err := f.k.store.endpointIDs(n.Name)
		if err != nil {
			return nil, nil, err
		}
		for _, id := range ids {
			ends[n.peerOf(id)] = true
		}
	}
	return ends, bridges, nil
}

// isWire reports whether a device leads to other hosts, if it has an address.
func isWire(l, master netlink.Link) bool {
	switch l.Type() {
	case "bridge", "vxlan", "geneve", "dummy", "ifb":
		return false
	}
	return l.Attrs().Flags&net.FlagUp != 0 && (master == nil || master.Type() == "vrf") && !strings.HasPrefix(l.Attrs().Name, peerPrefix)
}

func isGlobal(a netlink.Addr) bool { return a.Scope == unix.RT_SCOPE_UNIVERSE }

// qdiscs are the devices with a queueing discipline: one in which packets wait, ingress, and clsact.
type qdiscs struct{ root, ingress, clsact map[int]bool }

func qdiscsOf(h *netlink.Handle) (q qdiscs, err error) {
	all, err := link.Dump(func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
	if err != nil {
		return q, fmt.Errorf("list queueing disciplines: %w", err)
	}
	q = qdiscs{map[int]bool{}, map[int]bool{}, map[int]bool{}}
	for _, one := range all {
		index := one.Attrs().LinkIndex
		switch one.Type() {
		case "noqueue":
		case "clsact":
			q.clsact[index] = true
		case "ingress":
			q.ingress[index] = true
		default:
			q.root[index] = true
		}
	}
	return q, nil
}
