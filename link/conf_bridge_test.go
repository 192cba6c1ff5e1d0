package link_test

import (
	"net"
	"os"
	"testing"

	"cleat/link"
	"cleat/netns"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

func bridgeSuite() suite {
	return suite{
		kind:      "bridge",
		valid:     []link.Spec{link.BridgeSpec{Attrs: probe}},
		invalid:   invalidAttrs(func(a link.Attrs) link.Spec { return link.BridgeSpec{Attrs: a} }),
		scenarios: []scenario{{"learning", bridgePasses}, {"hairpin", bridgeHairpin}, {"netfilter", bridgeNetfilter}},
	}
}

func bridgeVLANSuite() suite {
	return suite{
		kind:      "bridge-vlan",
		valid:     []link.Spec{link.BridgeSpec{Attrs: probe, VLANFiltering: true}},
		invalid:   invalidAttrs(func(a link.Attrs) link.Spec { return link.BridgeSpec{Attrs: a, VLANFiltering: true} }),
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

// bridgeHairpin sets hairpin mode and reads it back. The suites of macvlan and ipvlan
// in mode vepa show its effect.
func bridgeHairpin(t *testing.T) {
	b := newBridgeLAN(t, link.BridgeSpec{})
	h, err := link.Handle(b.br)
	must(t, err)
	defer h.Close()
	port, err := h.LinkByIndex(b.port[0].Index())
	must(t, err)
	for _, on := range []bool{true, false} {
		must(t, b.port[0].SetHairpin(on))
		got, err := h.LinkGetProtinfo(port)
		must(t, err)
		if got.Hairpin != on {
			t.Errorf("hairpin is %v after SetHairpin(%v)", got.Hairpin, on)
		}
	}
	if err := b.bridge.SetHairpin(true); err == nil {
		t.Error("set hairpin mode of the bridge itself")
	}
}

// bridgeNetfilter shows that a netfilter rule stops bridged packets if, and only if,
// bridge netfilter is on.
func bridgeNetfilter(t *testing.T) {
	requireKind(t, "bridge-netfilter")
	b := newBridgeLAN(t, link.BridgeSpec{})
	for _, on := range []bool{true, false} {
		must(t, link.SetBridgeNetfilter(b.br, on))
		checkBridgeNetfilter(t, b.br, on)
	}
	dropForwarded(t, b.br, b.machine[0].addr.AsSlice())
	checkReachable(t, b.machine[0], b.machine[1])
	must(t, link.SetBridgeNetfilter(b.br, true))
	checkIsolated(t, b.machine[0], b.machine[1], b.machine[2])
}

// checkBridgeNetfilter checks the three sysctls of a namespace.
func checkBridgeNetfilter(t *testing.T, ns *netns.NS, on bool) {
	t.Helper()
	want := map[bool]string{true: "1\n", false: "0\n"}[on]
	must(t, ns.Do(func() error {
		for _, name := range []string{"iptables", "ip6tables", "arptables"} {
			got, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + name)
			if err != nil {
				return err
			}
			if string(got) != want {
				t.Errorf("%s in %s is %q, want %q", name, ns, got, want)
			}
		}
		return nil
	}))
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
