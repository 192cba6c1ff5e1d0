package trace

import (
	"bytes"
	"net"

	"cleat/network/survey"

	"github.com/vishvananda/netlink"
)

// device is a link and the namespace that it is in. One without a name is no link.
type device struct {
	namespace *namespace
	link      survey.Link
}

// device returns the link with an index. Index 0 is no link.
func (n *namespace) device(index int) device {
	if l := n.ByIndex(index); l != nil {
		return device{n, *l}
	}
	return device{namespace: n}
}

func (d device) id() linkID { return linkID{d.namespace.ID, d.link.Index} }

func (d device) String() string { return d.namespace.Label + "/" + d.link.Name }

// raw returns the attributes that a survey.Link leaves out, nil if d is no link.
func (d device) raw() netlink.Link {
	if d.namespace == nil {
		return nil
	}
	return d.namespace.raw[d.link.Index]
}

// mac returns the hardware address, nil if the link has none.
func (d device) mac() net.HardwareAddr {
	if raw := d.raw(); raw != nil {
		return raw.Attrs().HardwareAddr
	}
	return nil
}

func sameMAC(a, b net.HardwareAddr) bool { return len(a) > 0 && bytes.Equal(a, b) }

// ports returns the links whose master is d, a bridge or bond.
func (d device) ports() []device {
	var out []device
	for _, l := range d.namespace.Links {
		if l.Master == d.link.Index {
			out = append(out, device{d.namespace, l})
		}
	}
	return out
}

// forwardingPort returns the port behind which a bridge knows a MAC address, 0 for none. local
// reports that the address is one of the bridge's own: its frames go up to the IP stack.
func (d device) forwardingPort(mac net.HardwareAddr) (port int, local bool) {
	for _, e := range d.namespace.fdb {
		switch {
		case e.MasterIndex != d.link.Index || !sameMAC(e.HardwareAddr, mac):
		case e.State&netlink.NUD_PERMANENT != 0: // fdb_to_nud, net/bridge/br_fdb.c
			local = true
		default:
			port = e.LinkIndex
		}
	}
	return port, local || sameMAC(d.mac(), mac)
}

func (d device) inBridgeMode() bool {
	m, ok := d.raw().(*netlink.Macvlan)
	return ok && m.Mode == netlink.MACVLAN_MODE_BRIDGE
}

// takes reports whether a VLAN, macvlan or ipvlan device takes a frame that its parent has
// received.
func (d device) takes(f frame) bool {
	switch raw := d.raw().(type) {
	case *netlink.Vlan:
		return f.vlan == raw.VlanId
	case *netlink.Macvlan:
		return f.vlan == 0 && sameMAC(raw.HardwareAddr, f.mac)
	case *netlink.IPVlan:
		return f.vlan == 0 && d.namespace.addresses[f.dst] == raw.Index
	}
	return false
}

// claims reports whether the device's namespace would answer the sender's question for the
// frame's next hop: Linux answers ARP on any link for any of its addresses (arp_ignore 0,
// Documentation/networking/ip-sysctl.rst). So a host's macvlan device beside the containers'
// gets what is sent to the address of the host on the parent.
func (d device) claims(f frame) bool {
	_, has := d.namespace.addresses[f.next]
	return !f.learned && has
}
