package link_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"cleat/link"

	"github.com/vishvananda/netlink"
)

// crossCheck compares the requested parameters with what the netlink library reads from
// the link. Reading back with this package alone proves little, because one table encodes
// and decodes.
func crossCheck(t *testing.T, l *link.Link, spec link.Spec) {
	t.Helper()
	h, err := link.Handle(l.NS())
	must(t, err)
	defer h.Close()
	nl, err := h.LinkByIndex(l.Index())
	must(t, err)
	view := libraryView(nl)
	for name, want := range link.Params(spec) {
		if got, ok := view[name]; ok && got != want {
			t.Errorf("%s %s: requested %s, the netlink library reads %s", spec.Kind(), name, want, got)
		}
	}
}

// libraryView returns what the netlink library reads from a link, in the form of
// Params.
func libraryView(l netlink.Link) map[string]string {
	a := l.Attrs()
	out := map[string]string{"name": a.Name, "mtu": fmt.Sprint(a.MTU), "txqueuelen": fmt.Sprint(a.TxQLen)}
	if len(a.HardwareAddr) == 6 {
		out["mac"] = a.HardwareAddr.String()
	}
	add := func(name string, value any) { out[name] = fmt.Sprint(value) }
	ip := func(name string, a net.IP) {
		if a != nil && !a.IsUnspecified() {
			add(name, a)
		}
	}
	onOff := func(name string, on bool) { out[name] = map[bool]string{true: "on", false: "off"}[on] }
	pick := func(name string, i int, names ...string) { out[name] = names[i] }
	switch v := l.(type) {
	case *netlink.Bridge:
		add("vlan_filtering", *v.VlanFiltering)
	case *netlink.Macvlan:
		pick("mode", int(v.Mode), "", "private", "vepa", "bridge", "passthru", "source")
		add("bc_queue_len", v.BCQueueLen)
	case *netlink.IPVlan:
		pick("mode", int(v.Mode), "l2", "l3", "l3s")
		pick("flag", int(v.Flag), "bridge", "private", "vepa")
	case *netlink.Vlan:
		add("id", v.VlanId)
		add("protocol", strings.Replace(v.VlanProtocol.String(), "q", "Q", 1))
		onOff("reorder_hdr", *v.ReorderHdr)
		add("gvrp", *v.Gvrp)
		add("mvrp", *v.Mvrp)
		add("loose_binding", *v.LooseBinding)
		add("bridge_binding", *v.BridgeBinding)
	case *netlink.Vxlan:
		add("vni", v.VxlanId)
		ip("local", v.SrcAddr)
		if v.Group.IsMulticast() {
			ip("group", v.Group)
		} else {
			ip("remote", v.Group)
		}
		add("ttl", v.TTL)
		add("tos", v.TOS)
		onOff("learning", v.Learning)
		add("proxy", v.Proxy)
		add("rsc", v.RSC)
		add("l2miss", v.L2miss)
		add("l3miss", v.L3miss)
		onOff("udp_csum", v.UDPCSum)
		add("udp_zero_csum6_tx", v.UDP6ZeroCSumTx)
		add("udp_zero_csum6_rx", v.UDP6ZeroCSumRx)
		add("gbp", v.GBP)
		add("external", v.FlowBased)
		add("ageing", time.Duration(v.Age)*time.Second)
		add("max_addresses", v.Limit)
		add("port", v.Port)
		add("source_port_low", v.PortLow)
		add("source_port_high", v.PortHigh)
	case *netlink.Geneve:
		add("vni", v.ID)
		ip("remote", v.Remote)
		add("ttl", v.Ttl)
		add("tos", v.Tos)
		add("port", v.Dport)
		add("external", v.FlowBased)
		add("inner_proto_inherit", v.InnerProtoInherit)
	case *netlink.Netkit:
		pick("mode", int(v.Mode), "l2", "l3")
		pick("policy", int(v.Policy), "pass", "", "drop")
		pick("peer_policy", int(v.PeerPolicy), "pass", "", "drop")
		if v.SupportsScrub() {
			pick("scrub", int(v.Scrub), "none", "default")
			pick("peer_scrub", int(v.PeerScrub), "none", "default")
		}
	case *netlink.Iptun:
		ip("local", v.Local)
		ip("remote", v.Remote)
	case *netlink.Gretun:
		ip("local", v.Local)
		ip("remote", v.Remote)
	case *netlink.Tuntap:
		pick("mode", int(v.Mode), "", "tun", "tap")
		add("owner", v.Owner)
		add("group", v.Group)
		add("queues", v.Queues)
		add("persist", !v.NonPersist)
	}
	return out
}
