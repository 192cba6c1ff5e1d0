package survey

import (
	"fmt"
	"net"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kinds of links that have none of their own.
const (
	kindDevice   = "device" // as netlink calls it
	kindLoopback = "loopback"
)

// newLink converts what netlink says of a link, without its relations.
func newLink(raw netlink.Link) Link {
	a := raw.Attrs()
	l := Link{
		Index: a.Index, Name: a.Name, Kind: raw.Type(), MTU: a.MTU, MAC: a.HardwareAddr.String(),
		Up:          a.Flags&net.FlagUp != 0,
		Carrier:     a.RawFlags&unix.IFF_LOWER_UP != 0,
		Promiscuity: a.Promisc, Master: a.MasterIndex,
	}
	if a.Flags&net.FlagLoopback != 0 {
		l.Kind, l.MAC = kindLoopback, ""
	}
	if s := a.Statistics; s != nil {
		l.Counters = Counters{s.RxPackets, s.TxPackets, s.RxErrors, s.TxErrors, s.RxDropped, s.TxDropped}
	}
	l.detail(raw)
	return l
}

// macvlanModes are MACVLAN_MODE_* as in ip-link(8).
var macvlanModes = map[netlink.MacvlanMode]string{
	netlink.MACVLAN_MODE_PRIVATE: "private", netlink.MACVLAN_MODE_VEPA: "vepa", netlink.MACVLAN_MODE_BRIDGE: "bridge",
	netlink.MACVLAN_MODE_PASSTHRU: "passthru", netlink.MACVLAN_MODE_SOURCE: "source",
}

// ipvlanModes are IPVLAN_MODE_*.
var ipvlanModes = map[netlink.IPVlanMode]string{
	netlink.IPVLAN_MODE_L2: "l2", netlink.IPVLAN_MODE_L3: "l3", netlink.IPVLAN_MODE_L3S: "l3s",
}

// detail sets what only this kind of link has.
func (l *Link) detail(raw netlink.Link) {
	switch r := raw.(type) {
	case *netlink.Vlan:
		l.Detail = strconv.Itoa(r.VlanId)
		if r.VlanProtocol == netlink.VLAN_PROTOCOL_8021AD {
			l.Detail += " (802.1ad)"
		}
	case *netlink.Macvlan:
		l.Detail = macvlanModes[r.Mode]
	case *netlink.Macvtap:
		l.Detail = macvlanModes[r.Mode]
	case *netlink.IPVlan:
		l.Detail = ipvlanModes[r.Mode]
	case *netlink.IPVtap:
		l.Detail = ipvlanModes[r.Mode]
	case *netlink.Vxlan:
		l.Detail, l.Local, l.Remote = "VNI "+strconv.Itoa(r.VxlanId), address(r.SrcAddr), address(r.Group)
	case *netlink.Geneve:
		l.Detail, l.Remote = fmt.Sprintf("VNI %d", r.ID), address(r.Remote)
	case *netlink.Gretun:
		l.Local, l.Remote = address(r.Local), address(r.Remote)
	case *netlink.Gretap:
		l.Local, l.Remote = address(r.Local), address(r.Remote)
	case *netlink.Iptun:
		l.Local, l.Remote = address(r.Local), address(r.Remote)
	case *netlink.Sittun:
		l.Local, l.Remote = address(r.Local), address(r.Remote)
	case *netlink.Ip6tnl:
		l.Local, l.Remote = address(r.Local), address(r.Remote)
	case *netlink.Vti:
		l.Local, l.Remote = address(r.Local), address(r.Remote)
	case *netlink.Tuntap:
		if r.Mode == netlink.TUNTAP_MODE_TAP {
			l.Kind = "tap"
		}
	case *netlink.Vrf:
		l.Detail = "table " + strconv.FormatUint(uint64(r.Table), 10)
	case *netlink.Bond:
		l.Detail = r.Mode.String()
	}
}

// address returns an address as text, "" for none.
func address(ip net.IP) string {
	if len(ip) == 0 || ip.IsUnspecified() {
		return ""
	}
	return ip.String()
}

// relation is what IFLA_LINK means for a kind of link.
type relation int

const (
	noRelation relation = iota
	peerOf
	parentOf
	underlayOf
)

// relationOf returns the relation of a kind of link that has IFLA_LINK.
func relationOf(kind string) relation {
	switch kind {
	case "veth", "netkit", "vxcan":
		return peerOf
	case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec", "ipoib", "dsa", kindDevice:
		return parentOf // the parent of a switch port (DSA) is the device that leads to the switch
	case "vxlan", "geneve", "bareudp", "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm":
		return underlayOf
	}
	return noRelation
}
