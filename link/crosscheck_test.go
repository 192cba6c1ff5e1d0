package link_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/link"

	"github.com/vishvananda/netlink"
)

// crossCheck compares the requested parameters with what other programs read from the
// link. Reading back with this package alone proves little, because one table encodes
// and decodes.
func crossCheck(t *testing.T, l *link.Link, spec link.Spec) {
	t.Helper()
	h, err := link.Handle(l.NS())
	must(t, err)
	defer h.Close()
	nl, err := h.LinkByIndex(l.Index())
	must(t, err)
	views := map[string]map[string]string{"the netlink library": libraryView(nl)}
	if haveIPRoute2() && strings.HasPrefix(spec.Kind(), "bridge") {
		views["ip"] = ipView(t, l)
	}
	for name, want := range link.Params(spec) {
		for who, view := range views {
			if got, ok := view[name]; ok && got != want {
				t.Errorf("%s %s: requested %s, %s reads %s", spec.Kind(), name, want, who, got)
			}
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
		onOff("mcast_snooping", *v.MulticastSnooping)
		if *v.AgeingTime > 0 {
			add("ageing_time", time.Duration(*v.AgeingTime)*10*time.Millisecond)
		}
		add("hello_time", time.Duration(*v.HelloTime)*10*time.Millisecond)
		add("group_fwd_mask", *v.GroupFwdMask)
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

// haveIPRoute2 reports whether ip is the one of iproute2. Busybox' ip prints too
// little.
func haveIPRoute2() bool {
	out, err := exec.Command("ip", "-V").CombinedOutput()
	return err == nil && strings.Contains(string(out), "iproute2")
}

// ipView returns what ip-link(8) reads from a bridge, in the form of Params.
func ipView(t *testing.T, l *link.Link) map[string]string {
	t.Helper()
	data := ipLinkInfo(t, l)["info_data"]
	out := map[string]string{}
	for _, name := range []string{"vlan_default_pvid", "priority", "group_fwd_mask", "fdb_max_learned"} {
		out[name] = strings.TrimPrefix(fmt.Sprint(data[name]), "0x")
	}
	if n := data["group_fwd_mask"]; n != nil {
		var mask int
		fmt.Sscanf(fmt.Sprint(n), "0x%x", &mask)
		out["group_fwd_mask"] = fmt.Sprint(mask)
	}
	for name, to := range map[string]string{"forward_delay": "forward_delay", "hello_time": "hello_time", "max_age": "max_age"} {
		n, _ := data[name].(float64)
		out[to] = (time.Duration(n) * 10 * time.Millisecond).String()
	}
	for name, to := range map[string]string{"stp_state": "stp_state", "mcast_querier": "mcast_querier", "nf_call_iptables": "nf_call_iptables",
		"nf_call_ip6tables": "nf_call_ip6tables", "nf_call_arptables": "nf_call_arptables", "vlan_filtering": "vlan_filtering", "vlan_stats_enabled": "vlan_stats_enabled"} {
		out[to] = fmt.Sprint(fmt.Sprint(data[name]) == "1")
	}
	if g, ok := data["group_addr"].(string); ok {
		out["group_address"] = g
	}
	for name, v := range out {
		if v == "<nil>" || data[name] == nil && name != "group_address" { // unknown to this version of ip
			delete(out, name)
		}
	}
	return out
}

// ipLinkInfo runs ip-link(8) and returns its data on the kind and on the bridge port.
func ipLinkInfo(t *testing.T, l *link.Link) map[string]map[string]any {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command("ip", "-details", "-json", "link", "show", "dev", l.Name())
	cmd.Stdout = &out
	must(t, l.NS().Start(cmd))
	must(t, cmd.Wait())
	var all []struct{ Linkinfo map[string]any }
	must(t, json.Unmarshal([]byte(out.String()), &all))
	info := map[string]map[string]any{}
	for name, v := range all[0].Linkinfo {
		if m, ok := v.(map[string]any); ok {
			info[name] = m
		}
	}
	return info
}
