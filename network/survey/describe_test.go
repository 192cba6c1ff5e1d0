package survey

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestNewLink(t *testing.T) {
	attrs := netlink.LinkAttrs{Index: 7, Name: "x0", MTU: 1450, Flags: net.FlagUp, RawFlags: unix.IFF_LOWER_UP, MasterIndex: 3, Promisc: 2,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Statistics: &netlink.LinkStatistics{RxPackets: 1, TxPackets: 2, RxErrors: 3, TxErrors: 4, RxDropped: 5, TxDropped: 6}}
	base := Link{Index: 7, Name: "x0", MTU: 1450, Up: true, Carrier: true, Master: 3, Promiscuity: 2, MAC: "02:00:00:00:00:01", Counters: Counters{1, 2, 3, 4, 5, 6}}
	a, b := net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::2")
	for _, tt := range []struct {
		raw  netlink.Link
		want Link // but for what base has
	}{
		{&netlink.Device{LinkAttrs: attrs}, Link{Kind: "device"}},
		{&netlink.GenericLink{LinkAttrs: attrs, LinkType: "openvswitch"}, Link{Kind: "openvswitch"}},
		{&netlink.Vlan{LinkAttrs: attrs, VlanId: 100}, Link{Kind: "vlan", Detail: "100"}},
		{&netlink.Vlan{LinkAttrs: attrs, VlanId: 5, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD}, Link{Kind: "vlan", Detail: "5 (802.1ad)"}},
		{&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}, Link{Kind: "macvlan", Detail: "bridge"}},
		{&netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVLAN_MODE_L3S}, Link{Kind: "ipvlan", Detail: "l3s"}},
		{&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 42, Group: a, SrcAddr: b}, Link{Kind: "vxlan", Detail: "VNI 42", Remote: "192.0.2.1", Local: "2001:db8::2"}},
		{&netlink.Geneve{LinkAttrs: attrs, ID: 42, Remote: b}, Link{Kind: "geneve", Detail: "VNI 42", Remote: "2001:db8::2"}},
		{&netlink.Gretun{LinkAttrs: attrs, Local: a, Remote: net.IPv4zero}, Link{Kind: "gre", Local: "192.0.2.1"}},
		{&netlink.Iptun{LinkAttrs: attrs, Remote: a}, Link{Kind: "ipip", Remote: "192.0.2.1"}},
		{&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP}, Link{Kind: "tap"}},
		{&netlink.Bond{LinkAttrs: attrs, Mode: netlink.BOND_MODE_802_3AD}, Link{Kind: "bond", Detail: "802.3ad"}},
		{&netlink.Vrf{LinkAttrs: attrs, Table: 10}, Link{Kind: "vrf", Detail: "table 10"}},
	} {
		want := base
		want.Kind, want.Detail, want.Local, want.Remote = tt.want.Kind, tt.want.Detail, tt.want.Local, tt.want.Remote
		if diff := cmp.Diff(want, newLink(tt.raw)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.want.Kind, diff)
		}
	}
	lo := newLink(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo", Flags: net.FlagLoopback, HardwareAddr: make(net.HardwareAddr, 6)}})
	if lo.Kind != "loopback" || lo.MAC != "" {
		t.Errorf("loopback: %+v", lo)
	}
	if n := base.Counters.Lost(); n != 18 {
		t.Errorf("%d packets lost, want 18", n)
	}
}

// TestReferences checks which links refer to others.
func TestReferences(t *testing.T) {
	for _, tt := range []struct {
		name string
		raw  netlink.Link
		want *reference
	}{
		{"peer in another namespace", &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 7, ParentIndex: 7, NetNsID: 3}}, &reference{nsid: 3, index: 7, relation: peerOf}},
		{"peer in the same namespace", &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 7, ParentIndex: 8, NetNsID: -1}}, &reference{nsid: -1, index: 8, relation: peerOf}},
		{"device without a relation", &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 7, ParentIndex: 7, NetNsID: -1}}, nil},
		{"VLAN", &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 7, ParentIndex: 2, NetNsID: 0}}, &reference{nsid: 0, index: 2, relation: parentOf}},
		{"VXLAN bound to a device", &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Index: 7, NetNsID: -1}, VtepDevIndex: 2}, &reference{nsid: -1, index: 2, relation: underlayOf}},
		{"VXLAN routed in another namespace", &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Index: 7, NetNsID: 1}}, &reference{nsid: 1, relation: underlayOf}},
		{"VXLAN routed in the same namespace", &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Index: 7, NetNsID: -1}}, nil},
		{"bridge", &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: 7, ParentIndex: 0, NetNsID: -1}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &reader{raw: []netlink.Link{tt.raw}, out: Namespace{Links: []Link{newLink(tt.raw)}}}
			got := s.references()
			switch {
			case tt.want == nil && len(got) == 0:
			case tt.want == nil || len(got) != 1:
				t.Errorf("got %+v, want %+v", got, tt.want)
			case got[0].nsid != tt.want.nsid || got[0].index != tt.want.index || got[0].relation != tt.want.relation:
				t.Errorf("got %+v, want %+v", got[0], *tt.want)
			}
		})
	}
}
