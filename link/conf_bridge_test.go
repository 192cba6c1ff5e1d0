package link_test

import (
	"net"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

func bridgeFull() link.BridgeSpec {
	return link.BridgeSpec{
		Attrs: probe, STP: true, ForwardDelay: 5 * time.Second, HelloTime: 3 * time.Second, MaxAge: 8 * time.Second,
		Priority: 4096, AgeingTime: 77 * time.Second, GroupFwdMask: 0x4008, GroupAddress: link.MAC{0x01, 0x80, 0xc2, 0, 0, 5},
		McastSnooping: link.Off, McastQuerier: true, FDBMaxLearned: 99,
		NFCallIPTables: true, NFCallIP6Tables: true, NFCallARPTables: true,
	}
}

func bridgeVLANFull() link.BridgeSpec {
	s := bridgeFull()
	s.VLANFiltering, s.VLANProtocol, s.VLANDefaultPVID, s.VLANStats = true, link.Dot1AD, 7, true
	return s
}

// adaptBridge clears parameters that the running kernel is too old for.
func adaptBridge(t *testing.T, _ *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
	s := spec.(link.BridgeSpec)
	if !kernelAtLeast(t, 6, 7) {
		s.FDBMaxLearned = 0
	}
	return s, to
}

func invalidBridges(base link.BridgeSpec) []invalidSpec {
	with := func(change func(*link.BridgeSpec)) link.Spec {
		s := base
		s.Name = "probe"
		change(&s)
		return s
	}
	return append(invalidAttrs(func(a link.Attrs) link.Spec { s := base; s.Attrs = a; return s }),
		invalidSpec{"group_fwd_mask", with(func(s *link.BridgeSpec) { s.GroupFwdMask = 1 })},
		invalidSpec{"group_address", with(func(s *link.BridgeSpec) { s.GroupAddress = link.MAC{1, 2, 3, 4, 5, 6} })},
		invalidSpec{"forward_delay", with(func(s *link.BridgeSpec) { s.ForwardDelay = time.Millisecond })},
		invalidSpec{"priority", with(func(s *link.BridgeSpec) { s.Priority = 65536 })},
		invalidSpec{"ageing_time", with(func(s *link.BridgeSpec) { s.AgeingTime = 15 * time.Millisecond })},
		invalidSpec{"mcast_snooping", with(func(s *link.BridgeSpec) { s.McastSnooping = "perhaps" })},
		invalidSpec{"vlan_default_pvid", with(func(s *link.BridgeSpec) { s.VLANDefaultPVID = 4095 })},
	)
}

func bridgeSuite() suite {
	hub := bridgeFull()
	hub.AgeingTime = -1
	return suite{
		kind:  "bridge",
		valid: []link.Spec{bridgeFull(), hub},
		adapt: adaptBridge,
		invalid: append(invalidBridges(link.BridgeSpec{}),
			invalidSpec{"vlan_protocol", link.BridgeSpec{Attrs: attrs("probe"), VLANProtocol: link.Dot1AD}}),
		scenarios: []scenario{
			{"learning", bridgePasses}, {"isolated", bridgeIsolated}, {"hairpin", bridgeHairpin},
			{"port", bridgePort}, {"netfilter", bridgeNetfilter},
		},
	}
}

func bridgeVLANSuite() suite {
	none := bridgeVLANFull()
	none.VLANDefaultPVID = -1
	return suite{
		kind:      "bridge-vlan",
		valid:     []link.Spec{bridgeVLANFull(), none},
		adapt:     adaptBridge,
		invalid:   invalidBridges(link.BridgeSpec{VLANFiltering: true}),
		scenarios: []scenario{{"same", bridgeVLANPasses}, {"other", bridgeVLANIsolated}, {"tagged", bridgeVLANTagged}},
	}
}

// bridgeLAN is three machines on a bridge.
type bridgeLAN struct {
	br      *netns.NS
	bridge  *link.Link
	machine [3]*endpoint
	port    [3]*link.Link
}

func newBridgeLAN(t *testing.T, spec link.BridgeSpec) *bridgeLAN {
	t.Helper()
	b := &bridgeLAN{br: newNS(t, "bridge")}
	spec.Name = "br0"
	b.bridge = create(t, b.br, spec, nil)
	for i, name := range []string{"m0", "m1", "m2"} {
		l, p := cable(t, newNS(t, name), "eth0", b.br, name)
		must(t, p.SetMaster("br0"))
		b.port[i] = p
		b.machine[i] = newEndpoint(t, l, "192.0.2."+[]string{"1", "2", "3"}[i]+"/24")
	}
	return b
}

func bridgePasses(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{})
	checkReachable(t, b.machine[0], b.machine[1])
	addr(t, b.bridge, "192.0.2.4/24")
	checkReachable(t, b.machine[0], listen(t, b.bridge, mustAddr("192.0.2.4")))
}

// bridgeIsolated shows that isolated ports reach only other ports.
func bridgeIsolated(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{})
	for _, p := range b.port[:2] {
		must(t, p.SetPort(link.BridgePort{Isolated: true}))
	}
	checkReachable(t, b.machine[0], b.machine[2])
	checkIsolated(t, b.machine[0], b.machine[1], b.machine[2])
}

// bridgeHairpin sets hairpin mode and reads it back. The suites of macvlan and ipvlan
// in mode vepa show its effect.
func bridgeHairpin(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{})
	for _, on := range []bool{true, false} {
		must(t, b.port[0].SetPort(link.BridgePort{Hairpin: on}))
		got, err := b.port[0].Port()
		must(t, err)
		if got.Hairpin != on {
			t.Errorf("hairpin is %v after SetPort(%v)", got.Hairpin, on)
		}
	}
}

func bridgePort(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{})
	want := link.BridgePort{
		Hairpin: true, Isolated: true, Learning: link.Off, Flood: link.Off, McastFlood: link.Off, BcastFlood: link.Off,
		McastToUcast: true, BPDUGuard: true, RootBlock: true, FastLeave: true, ProxyARP: true, NeighSuppress: true,
		Locked: true, VLANTunnel: true, GroupFwdMask: 0x4008, Priority: 9, Cost: 77,
	}
	must(t, b.port[0].SetPort(want))
	got, err := b.port[0].Port()
	must(t, err)
	if got != want {
		t.Errorf("read back\n%+v, want\n%+v", got, want)
	}
	if haveIPRoute2() { // reads independently of this package
		says := ipLinkInfo(t, b.port[0])["info_slave_data"]
		for name, want := range map[string]any{"hairpin": true, "isolated": true, "learning": false, "flood": false, "mcast_flood": false,
			"bcast_flood": false, "mcast_to_unicast": true, "guard": true, "root_block": true, "fastleave": true, "proxy_arp": true,
			"neigh_suppress": true, "locked": true, "vlan_tunnel": true, "priority": 9.0, "cost": 77.0, "group_fwd_mask": "0x4008"} {
			if says[name] != want {
				t.Errorf("ip reads %s as %v, want %v", name, says[name], want)
			}
		}
	}
	if err := b.port[0].SetPort(link.BridgePort{Priority: 64}); err == nil {
		t.Error("set priority 64, which is invalid")
	}
	if _, err := b.bridge.Port(); err == nil {
		t.Error("read the bridge itself as a port")
	}
}

// bridgeNetfilter shows that a netfilter rule stops bridged packets if, and only if,
// bridge netfilter is on.
func bridgeNetfilter(t *testing.T) {
	requireKind(t, "bridge-netfilter")
	b := newBridgeLAN(t, link.BridgeSpec{})
	for _, want := range []link.BridgeNetfilter{{IPTables: true}, {IP6Tables: true}, {ARPTables: true}, {IPTables: true, IP6Tables: true, ARPTables: true}, {}} {
		must(t, link.SetBridgeNetfilter(b.br, want))
		got, err := link.ReadBridgeNetfilter(b.br)
		must(t, err)
		if got != want {
			t.Errorf("bridge netfilter is %+v, want %+v", got, want)
		}
	}
	dropForwarded(t, b.br, b.machine[0].addr.AsSlice())
	checkReachable(t, b.machine[0], b.machine[1])
	must(t, link.SetBridgeNetfilter(b.br, link.BridgeNetfilter{IPTables: true}))
	checkIsolated(t, b.machine[0], b.machine[1], b.machine[2])
}

// dropForwarded adds a rule that drops packets forwarded from one IPv4 address.
func dropForwarded(t *testing.T, ns *netns.NS, from net.IP) {
	t.Helper()
	var c *nftables.Conn
	must(t, ns.Do(func() error {
		var err error
		c, err = nftables.New(nftables.AsLasting())
		return err
	}))
	defer c.CloseLasting()
	table := c.AddTable(&nftables.Table{Name: "test", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	const sourceOffset = 12 // offset of saddr in struct iphdr
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: from},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	must(t, c.Flush())
}

func bridgeVLANPasses(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{VLANFiltering: true})
	checkReachable(t, b.machine[0], b.machine[1]) // both in the default VLAN
	for _, p := range b.port[:2] {
		must(t, p.AddVLAN(link.PortVLAN{ID: 7, PVID: true, Untagged: true}))
		must(t, p.DeleteVLAN(1))
		got, err := p.VLANs()
		must(t, err)
		if want := (link.PortVLAN{ID: 7, PVID: true, Untagged: true}); len(got) != 1 || got[0] != want {
			t.Errorf("the port is in VLANs %+v, want only %+v", got, want)
		}
	}
	checkReachable(t, b.machine[0], b.machine[1])
}

// bridgeVLANIsolated has two untagged ports in different VLANs. The third port is in
// the VLAN of the second.
func bridgeVLANIsolated(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{VLANFiltering: true})
	must(t, b.port[0].AddVLAN(link.PortVLAN{ID: 8, PVID: true, Untagged: true}))
	checkIsolated(t, b.machine[0], b.machine[1], b.machine[2])
}

// bridgeVLANTagged has a VLAN device behind a trunk port.
func bridgeVLANTagged(t *testing.T) {
	requireKind(t, "vlan")
	b := newBridgeLAN(t, link.BridgeSpec{VLANFiltering: true})
	must(t, b.port[0].AddVLAN(link.PortVLAN{ID: 9}))
	must(t, b.port[1].AddVLAN(link.PortVLAN{ID: 9, PVID: true, Untagged: true}))
	inside := newNS(t, "inside")
	l := create(t, b.machine[0].ns, link.VLANSpec{Attrs: attrs("v9"), Parent: "eth0", ID: 9}, inside)
	checkReachable(t, newEndpoint(t, l, "192.0.2.9/24"), b.machine[1])
}
