package host

import (
	"net/netip"

	"github.com/vishvananda/netlink"
)

// peer is the namespace where the other end of a link is: the peer of a veth,
// the parent of a macvlan or VLAN (IFLA_LINK with IFLA_LINK_NETNSID).
func (t *tracer) peer(s *space, l netlink.Link) (*space, bool) {
	a := l.Attrs()
	if a.ParentIndex == 0 {
		return nil, false
	}
	return t.byNsid(s, a.NetNsID)
}

// byNsid finds the namespace that s calls id; -1 is s itself.
func (t *tracer) byNsid(s *space, id int) (*space, bool) {
	if id < 0 {
		return s, true
	}
	for _, o := range t.spaces {
		if got, err := s.h.GetNetNsIdByFd(o.ns.Fd()); err == nil && got == id {
			return o, true
		}
	}
	return nil, false
}

// child is a link that sits on another, perhaps in another namespace.
type child struct {
	space *space
	link  netlink.Link
}

func (c child) id() linkID { return linkID{c.space.id, c.link.Attrs().Index} }

// children lists the VLAN, macvlan and ipvlan devices on a link, in all known
// namespaces.
func (t *tracer) children(s *space, index int) []child {
	var out []child
	for _, o := range t.spaces {
		for _, l := range o.links {
			switch l.(type) {
			case *netlink.Vlan, *netlink.Macvlan, *netlink.IPVlan:
			default:
				continue
			}
			if p, ok := t.peer(o, l); ok && p == s && l.Attrs().ParentIndex == index {
				out = append(out, child{o, l})
			}
		}
	}
	return out
}

// takes tells whether the child takes a frame that its parent received.
func (c child) takes(f frame) bool {
	switch l := c.link.(type) {
	case *netlink.Vlan:
		return f.vlan == l.VlanId
	case *netlink.Macvlan:
		return f.vlan == 0 && sameMAC(l.HardwareAddr, f.mac)
	case *netlink.IPVlan:
		return f.vlan == 0 && c.space.addrs[f.dst] == l.Index
	}
	return false
}

// Headers in bytes: outer IPv4, plus what the tunnel adds, plus the inner
// Ethernet header where there is one (RFC 7348, 8926, 2784, 2003). An outer
// IPv6 header is 20 bytes longer.
const (
	overheadVXLAN  = vxlanOverhead
	overheadGeneve = 20 + 8 + 8 + 14
	overheadGRE    = 20 + 4
	overheadGRETap = 20 + 4 + 14
	overheadIPIP   = 20
	longerIPv6     = 20
)

// remote says where a tunnel device sends a frame.
func (t *tracer) remote(s *space, l netlink.Link, f frame) (netip.Addr, bool) {
	var ip netip.Addr
	switch l := l.(type) {
	case *netlink.Vxlan:
		ip, _ = netip.AddrFromSlice(s.vtep(l.Index, f))
		if group, ok := netip.AddrFromSlice(l.Group); !ip.IsValid() && ok {
			ip = group
		}
		if ip.Unmap().IsMulticast() {
			return t.member(l, f)
		}
	case *netlink.Geneve:
		ip, _ = netip.AddrFromSlice(l.Remote)
	case *netlink.Gretun:
		ip, _ = netip.AddrFromSlice(l.Remote)
	case *netlink.Gretap:
		ip, _ = netip.AddrFromSlice(l.Remote)
	case *netlink.Iptun:
		ip, _ = netip.AddrFromSlice(l.Remote)
	}
	ip = ip.Unmap()
	return ip, ip.IsValid() && !ip.IsUnspecified()
}

// vtep is the VXLAN forwarding entry for the frame's destination, or the default
// entry (all zeros).
func (s *space) vtep(index int, f frame) []byte {
	var fallback []byte
	for _, n := range s.fdb {
		if n.LinkIndex != index || n.IP == nil {
			continue
		}
		if sameMAC(n.HardwareAddr, f.mac) {
			return n.IP
		}
		if n.HardwareAddr.String() == "00:00:00:00:00:00" && fallback == nil {
			fallback = n.IP
		}
	}
	return fallback
}

// member finds the other end of a multicast VXLAN: a device of the same network
// identifier and group, in a namespace where the frame is wanted.
func (t *tracer) member(l *netlink.Vxlan, f frame) (netip.Addr, bool) {
	for _, o := range t.spaces {
		for _, x := range o.links {
			v, ok := x.(*netlink.Vxlan)
			if !ok || v == l || v.VxlanId != l.VxlanId || !v.Group.Equal(l.Group) {
				continue
			}
			under, ok := t.byNsid(o, v.NetNsID)
			if !ok {
				continue
			}
			for ip, index := range under.addrs {
				if index == v.VtepDevIndex && ip.Is4() == (v.Group.To4() != nil) && (sameMAC(v.HardwareAddr, f.mac) || v.MasterIndex != 0) {
					return ip, true
				}
			}
		}
	}
	return netip.Addr{}, false
}

// encapsulate wraps the frame and sends it from the namespace where the tunnel
// device was made.
func (t *tracer) encapsulate(s *space, l netlink.Link, remote netip.Addr, hops []Hop, f frame) ([]Hop, bool) {
	under, ok := t.byNsid(s, l.Attrs().NetNsID)
	if !ok {
		return t.dead(hops, "%s/%s: its underlay is in a namespace that can't be seen from here", s.label, l.Attrs().Name)
	}
	overhead := map[string]int{"vxlan": overheadVXLAN, "geneve": overheadGeneve, "gre": overheadGRE, "ip6gre": overheadGRE,
		"gretap": overheadGRETap, "ip6gretap": overheadGRETap, "ipip": overheadIPIP, "sit": overheadIPIP}[l.Type()]
	if remote.Is6() {
		overhead += longerIPv6
	}
	hops[len(hops)-1].Detail += "; wrapped for " + remote.String()
	outer := frame{dst: remote, outer: append([]tunnel{{link: l, inner: f, overhead: overhead}}, f.outer...)}
	if r, err := under.route(remote, netip.Addr{}, 0); err == nil {
		src, _ := netip.AddrFromSlice(r.Src)
		outer.src = src.Unmap()
	}
	return t.then(hops, func() ([]Hop, bool) { return t.originate(under, outer) })
}

// decapsulate unwraps a packet that arrived at its tunnel's remote address: the
// device of the same kind and identifier whose underlay is here gets it.
func (t *tracer) decapsulate(s *space, f frame) func() ([]Hop, bool) {
	return func() ([]Hop, bool) {
		if len(f.outer) == 0 {
			return t.dead(nil, "%s has the address %s too", s.label, f.dst)
		}
		layer := f.outer[0]
		inner := layer.inner
		inner.outer = f.outer[1:]
		for _, o := range t.spaces {
			for index, l := range o.links {
				under, ok := t.byNsid(o, l.Attrs().NetNsID)
				if ok && under == s && l != layer.link && sameTunnel(l, layer.link) {
					return t.receive(o, index, inner, "unwrapped from "+f.src.String())
				}
			}
		}
		return t.dead(nil, "%s: no device unwraps the %s packets of %s", s.label, layer.link.Type(), layer.link.Attrs().Name)
	}
}

// sameTunnel tells whether two devices speak to each other.
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
