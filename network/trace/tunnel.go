package trace

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// overheads are headers in bytes, by the kind of link: outer IPv4, plus what the tunnel adds, plus
// the inner Ethernet header where there is one (RFC 7348, 8926, 2784, 2003).
var overheads = map[string]int{
	"vxlan": 20 + 8 + 8 + 14, "geneve": 20 + 8 + 8 + 14,
	"gre": 20 + 4, "ip6gre": 20 + 4, "gretap": 20 + 4 + 14, "ip6gretap": 20 + 4 + 14,
	"ipip": 20, "sit": 20, "ip6tnl": 20,
}

const longerIPv6 = 20 // an outer IPv6 header has 40 bytes

// remote returns the address that a tunnel device sends a frame to.
func (w *walk) remote(d device, f frame) (ip netip.Addr, ok bool) {
	if overheads[d.link.Kind] == 0 {
		return ip, false
	}
	if d.link.Kind == "vxlan" {
		ip, _ = netip.AddrFromSlice(d.namespace.vtep(d.link.Index, f))
	}
	if !ip.IsValid() {
		ip, _ = netip.ParseAddr(d.link.Remote)
	}
	if ip = ip.Unmap(); ip.IsMulticast() {
		return w.groupMember(d, f)
	}
	return ip, ip.IsValid() && !ip.IsUnspecified()
}

// vtep returns the remote address in the VXLAN forwarding entry for the frame's destination, or
// else in the default entry (all zeros).
func (n *namespace) vtep(index int, f frame) net.IP {
	var fallback net.IP
	for _, e := range n.fdb {
		switch {
		case e.LinkIndex != index || e.IP == nil:
		case sameMAC(e.HardwareAddr, f.mac):
			return e.IP
		case fallback == nil && sameMAC(e.HardwareAddr, make(net.HardwareAddr, 6)):
			fallback = e.IP
		}
	}
	return fallback
}

// groupMember finds the other end of a multicast VXLAN: a device of the same network identifier
// and group that has the frame's hardware address, or is a port of a bridge.
func (w *walk) groupMember(d device, f frame) (netip.Addr, bool) {
	from, _ := d.raw().(*netlink.Vxlan)
	for _, n := range w.namespaces {
		for _, l := range n.Links {
			to, ok := n.raw[l.Index].(*netlink.Vxlan)
			if !ok || to == from || to.VxlanId != from.VxlanId || !to.Group.Equal(from.Group) || !sameMAC(to.HardwareAddr, f.mac) && l.Master == 0 {
				continue
			}
			under := w.underlay(device{n, l})
			if under == nil {
				continue
			}
			for ip, index := range under.addresses {
				if index == to.VtepDevIndex && ip.Is4() == (to.Group.To4() != nil) {
					return ip, true
				}
			}
		}
	}
	return netip.Addr{}, false
}

// underlay returns the namespace by which a tunnel device sends: the one where it was created. It
// is nil if that was not read.
func (w *walk) underlay(d device) *namespace {
	if d.link.Underlay == nil {
		return d.namespace
	}
	under, _ := w.at(d.link.Underlay)
	return under.namespace
}

// encapsulate wraps a frame, and sends it from the tunnel's underlay.
func (w *walk) encapsulate(d device, remote netip.Addr, f frame) bool {
	under := w.underlay(d)
	if under == nil {
		return w.stop("%s: its underlay is in a namespace that can't be seen from here", d)
	}
	layer := tunnel{device: d, inner: f, overhead: overheads[d.link.Kind]}
	if remote.Is6() {
		layer.overhead += longerIPv6
	}
	w.hops[len(w.hops)-1].Detail += "; wrapped for " + remote.String()
	return w.originate(under, frame{src: source(under, remote), dst: remote, outer: append([]tunnel{layer}, f.outer...)})
}

// decapsulate unwraps a packet that has arrived at its tunnel's remote address: the device of
// the same kind and identifier whose underlay is n gets it.
func (w *walk) decapsulate(n *namespace, f frame) bool {
	layer := f.outer[0]
	inner := layer.inner
	inner.outer = f.outer[1:]
	for _, o := range w.namespaces {
		for _, l := range o.Links {
			if d := (device{o, l}); d.unwraps(layer.device) && w.underlay(d) == n {
				return w.receive(d, inner, "unwrapped from "+f.src.String())
			}
		}
	}
	return w.stop("%s: no device unwraps the %s packets of %s", n.Label, layer.device.link.Kind, layer.device.link.Name)
}

// unwraps reports whether d unwraps what another device has wrapped.
func (d device) unwraps(o device) bool {
	if d.link.Kind != o.link.Kind || d.id() == o.id() {
		return false
	}
	switch from := o.raw().(type) {
	case *netlink.Vxlan:
		to, ok := d.raw().(*netlink.Vxlan)
		return ok && to.VxlanId == from.VxlanId && to.Port == from.Port
	case *netlink.Geneve:
		to, ok := d.raw().(*netlink.Geneve)
		return ok && to.ID == from.ID
	case *netlink.Gretun:
		if to, ok := d.raw().(*netlink.Gretun); !ok || to.IKey != from.OKey {
			return false
		}
	case *netlink.Gretap:
		if to, ok := d.raw().(*netlink.Gretap); !ok || to.IKey != from.OKey {
			return false
		}
	}
	return d.link.Remote == o.link.Local
}
