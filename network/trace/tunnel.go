package trace

import (
	"net"
	"net/netip"

	"cleat/network/survey"

	"github.com/vishvananda/netlink"
)

// Headers in bytes: outer IPv4, plus what the tunnel adds, plus the inner Ethernet header where
// there is one (RFC 7348, 8926, 2784, 2003).
const (
	overheadVXLAN  = 20 + 8 + 8 + 14
	overheadGeneve = 20 + 8 + 8 + 14
	overheadGRE    = 20 + 4
	overheadGRETap = 20 + 4 + 14
	overheadIPIP   = 20
	longerIPv6     = 20 // an outer IPv6 header has 40 bytes
)

// overheads are those of tunnels over IPv4, by the kind of link.
var overheads = map[string]int{"vxlan": overheadVXLAN, "geneve": overheadGeneve, "gre": overheadGRE, "ip6gre": overheadGRE,
	"gretap": overheadGRETap, "ip6gretap": overheadGRETap, "ipip": overheadIPIP, "sit": overheadIPIP}

// remote returns the address that a tunnel device sends a frame to.
func (w *walk) remote(n *namespace, index int, f frame) (netip.Addr, bool) {
	var ip net.IP
	switch l := n.raw[index].(type) {
	case *netlink.Vxlan:
		if ip = n.vtep(index, f); ip == nil {
			ip = l.Group
		}
		if ip.IsMulticast() {
			return w.groupMember(l, f)
		}
	case *netlink.Geneve:
		ip = l.Remote
	case *netlink.Gretun:
		ip = l.Remote
	case *netlink.Gretap:
		ip = l.Remote
	case *netlink.Iptun:
		ip = l.Remote
	}
	addr, ok := netip.AddrFromSlice(ip)
	return addr.Unmap(), ok && !addr.Unmap().IsUnspecified()
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
func (w *walk) groupMember(l *netlink.Vxlan, f frame) (netip.Addr, bool) {
	for _, n := range w.namespaces {
		for _, o := range n.Links {
			v, ok := n.raw[o.Index].(*netlink.Vxlan)
			if !ok || v == l || v.VxlanId != l.VxlanId || !v.Group.Equal(l.Group) || !sameMAC(v.HardwareAddr, f.mac) && v.MasterIndex == 0 {
				continue
			}
			under := w.underlay(n, o)
			if under == nil {
				continue
			}
			for ip, index := range under.addresses {
				if index == v.VtepDevIndex && ip.Is4() == (v.Group.To4() != nil) {
					return ip, true
				}
			}
		}
	}
	return netip.Addr{}, false
}

// underlay returns the namespace by which a tunnel device sends: the one where it was made. It
// is nil if that was not read.
func (w *walk) underlay(n *namespace, l survey.Link) *namespace {
	if l.Underlay == nil {
		return n
	}
	return w.at(l.Underlay)
}

// encapsulate wraps a frame, and sends it from the tunnel's underlay.
func (w *walk) encapsulate(n *namespace, l survey.Link, remote netip.Addr, f frame) bool {
	under := w.underlay(n, l)
	if under == nil {
		return w.stop("%s/%s: its underlay is in a namespace that can't be seen from here", n.Label, l.Name)
	}
	layer := tunnel{link: n.raw[l.Index], inner: f, overhead: overheads[l.Kind]}
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
			raw := o.raw[l.Index]
			if raw != layer.link && sameTunnel(raw, layer.link) && w.underlay(o, l) == n {
				return w.receive(o, l.Index, inner, "unwrapped from "+f.src.String())
			}
		}
	}
	return w.stop("%s: no device unwraps the %s packets of %s", n.Label, layer.link.Type(), layer.link.Attrs().Name)
}

// sameTunnel reports whether one device unwraps what the other wraps.
func sameTunnel(a, b netlink.Link) bool {
	switch a := a.(type) {
	case *netlink.Vxlan:
		b, ok := b.(*netlink.Vxlan)
		return ok && a.VxlanId == b.VxlanId && a.Port == b.Port
	case *netlink.Geneve:
		b, ok := b.(*netlink.Geneve)
		return ok && a.ID == b.ID
	case *netlink.Gretun:
		b, ok := b.(*netlink.Gretun)
		return ok && a.IKey == b.OKey && a.Remote.Equal(b.Local)
	case *netlink.Gretap:
		b, ok := b.(*netlink.Gretap)
		return ok && a.IKey == b.OKey && a.Remote.Equal(b.Local)
	case *netlink.Iptun:
		b, ok := b.(*netlink.Iptun)
		return ok && a.Remote.Equal(b.Local)
	}
	return false
}
