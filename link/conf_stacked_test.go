package link_test

import (
	"errors"
	"math"
	"testing"

	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
)

func macvlanSuite() suite {
	on := func(change func(*link.MacvlanSpec)) link.Spec {
		s := link.MacvlanSpec{Attrs: attrs("probe"), Parent: "parent"}
		change(&s)
		return s
	}
	cutoff := func(n int) link.Optional { return link.Optional{Value: n, Set: true} }
	return suite{
		kind: "macvlan",
		adapt: func(t *testing.T, _ *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			s := spec.(link.MacvlanSpec)
			if s.BroadcastCutoff.Value <= math.MaxInt32 && !labtest.KernelAtLeast(t, 6, 4) {
				s.BroadcastCutoff = link.Optional{}
			}
			return s, to
		},
		valid: []link.Spec{
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanSource, NoDst: true, BroadcastQueueLen: 99,
				Sources: link.ListOf(link.MAC{2, 3, 4, 5, 6, 7}, link.MAC{2, 3, 4, 5, 6, 8}, link.MAC{2, 3, 4, 5, 6, 1})},
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanPrivate, BroadcastQueueLen: 7, BroadcastCutoff: cutoff(-1)},
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanVEPA, BroadcastQueueLen: 8, BroadcastCutoff: cutoff(0)},
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanBridge, BroadcastQueueLen: 9, BroadcastCutoff: cutoff(1)},
			link.MacvlanSpec{Attrs: withoutMAC(probe), Parent: "parent", Mode: link.MacvlanPassthru, NoPromisc: true, BroadcastQueueLen: 10, BroadcastCutoff: cutoff(7)},
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.MacvlanSpec{Attrs: a, Parent: "parent"} }),
			invalidSpec{"parent", on(func(s *link.MacvlanSpec) { s.Parent = "" })},
			invalidSpec{"parent", on(func(s *link.MacvlanSpec) { s.Parent = "nobody" })},
			invalidSpec{"mode", on(func(s *link.MacvlanSpec) { s.Mode = "public" })},
			invalidSpec{"mtu", on(func(s *link.MacvlanSpec) { s.MTU = 4001 })}, // the parent has 4000
			invalidSpec{"mac", on(func(s *link.MacvlanSpec) { s.Mode, s.MAC = link.MacvlanPassthru, probe.MAC })},
			invalidSpec{"nopromisc", on(func(s *link.MacvlanSpec) { s.NoPromisc = true })},
			invalidSpec{"nodst", on(func(s *link.MacvlanSpec) { s.NoDst = true })},
			invalidSpec{"sources", on(func(s *link.MacvlanSpec) { s.Sources = link.ListOf(link.MAC{2}) })},
			invalidSpec{"sources", on(func(s *link.MacvlanSpec) { s.Mode, s.Sources = link.MacvlanSource, link.ListOf(link.MAC{1}) })},
			invalidSpec{"bc_queue_len", on(func(s *link.MacvlanSpec) { s.BroadcastQueueLen = -1 })},
			invalidSpec{"bc_cutoff", on(func(s *link.MacvlanSpec) { s.BroadcastCutoff = cutoff(1 << 31) })},
		),
		scenarios: []scenario{
			{"bridge", macvlanBridge}, {"private", macvlanPrivate}, {"vepa", macvlanVEPA},
			{"passthru", macvlanPassthru}, {"source", macvlanSource},
		},
	}
}

// macvlans creates two containers on the host's uplink.
func (o *lan) macvlans(t *testing.T, mode link.MacvlanMode) (*endpoint, *endpoint) {
	t.Helper()
	up := func(to *netns.NS, address string) *endpoint {
		return newEndpoint(t, create(t, o.host, link.MacvlanSpec{Attrs: attrs("eth0"), Parent: "eth0", Mode: mode}, to), address)
	}
	return up(o.c1, "192.0.2.1/24"), up(o.c2, "192.0.2.2/24")
}

func macvlanBridge(t *testing.T) {
	o := newLAN(t)
	a, b := o.macvlans(t, link.MacvlanBridge)
	checkReachable(t, a, b)
	checkReachable(t, a, o.outside)
}

// macvlanPrivate shows that the devices are isolated even with a hairpin switch,
// through which mode vepa passes.
func macvlanPrivate(t *testing.T) {
	o := newLAN(t)
	a, b := o.macvlans(t, link.MacvlanPrivate)
	checkReachable(t, a, o.outside)
	checkIsolated(t, a, b, o.outside)
	o.hairpin(t, true)
	checkIsolated(t, a, b, o.outside)
}

func macvlanVEPA(t *testing.T) {
	o := newLAN(t)
	a, b := o.macvlans(t, link.MacvlanVEPA)
	checkReachable(t, a, o.outside)
	checkIsolated(t, a, b, o.outside)
	o.hairpin(t, true)
	checkReachable(t, a, b)
}

func macvlanPassthru(t *testing.T) {
	o := newLAN(t)
	spec := link.MacvlanSpec{Attrs: attrs("eth0"), Parent: "eth0", Mode: link.MacvlanPassthru}
	l := create(t, o.host, spec, o.c1)
	if mac(t, l) != mac(t, o.uplink) {
		t.Error("the passthru device has another address than its parent")
	}
	checkReachable(t, newEndpoint(t, l, "192.0.2.1/24"), o.outside)
	before := takeSnapshot(t, o.host, o.c2)
	for _, mode := range []link.MacvlanMode{link.MacvlanPassthru, link.MacvlanBridge} {
		spec.Mode = mode
		_, err := link.Create(o.host, spec, link.Target{NS: o.c2})
		if param := (*link.ParamError)(nil); !errors.As(err, &param) || param.Param != "mode" {
			t.Errorf("create a %s device beside a passthru one: %v, want a *ParamError for mode", mode, err)
		}
	}
	checkSnapshot(t, before, o.host, o.c2)
}

// macvlanSource accepts frames from listed senders only.
func macvlanSource(t *testing.T) {
	o := newLAN(t)
	spec := link.MacvlanSpec{Attrs: attrs("eth0"), Parent: "eth0", Mode: link.MacvlanSource, Sources: link.ListOf(mac(t, o.outside.link))}
	a := newEndpoint(t, create(t, o.host, spec, o.c1), "192.0.2.1/24")
	checkReachable(t, o.outside, a)
	checkIsolated(t, o.stranger, a, o.outside)
}

func ipvlanSuite() suite {
	on := func(change func(*link.IPvlanSpec)) link.Spec {
		s := link.IPvlanSpec{Attrs: attrs("probe"), Parent: "parent"}
		change(&s)
		return s
	}
	s := suite{
		kind: "ipvlan",
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.IPvlanSpec{Attrs: a, Parent: "parent"} }),
			invalidSpec{"parent", on(func(s *link.IPvlanSpec) { s.Parent = "nobody" })},
			invalidSpec{"mac", on(func(s *link.IPvlanSpec) { s.MAC = probe.MAC })},
			invalidSpec{"mode", on(func(s *link.IPvlanSpec) { s.Mode = "l4" })},
			invalidSpec{"flag", on(func(s *link.IPvlanSpec) { s.Flag = "public" })},
		),
		scenarios: []scenario{{"l2-vepa-hairpin", ipvlanHairpin}, {"l3-vepa-router", ipvlanRouter}},
	}
	for _, mode := range []link.IPvlanMode{link.IPvlanL2, link.IPvlanL3, link.IPvlanL3S} {
		for _, flag := range []link.IPvlanFlag{link.IPvlanBridge, link.IPvlanPrivate, link.IPvlanVEPA} {
			s.valid = append(s.valid, link.IPvlanSpec{Attrs: withoutMAC(probe), Parent: "parent", Mode: mode, Flag: flag})
			name := string(mode)
			if flag != link.IPvlanBridge {
				name += "-" + string(flag)
			}
			s.scenarios = append(s.scenarios, scenario{name, func(t *testing.T) { ipvlanWay(t, mode, flag) }})
		}
	}
	return s
}

// ipvlans creates two containers on the host's uplink. In the l3 modes they are in
// another network, which the other machines reach through the host.
func (o *lan) ipvlans(t *testing.T, mode link.IPvlanMode, flag link.IPvlanFlag) (*endpoint, *endpoint) {
	t.Helper()
	network := "192.0.2."
	if mode != link.IPvlanL2 {
		network = "198.51.100."
		addr(t, o.uplink, "192.0.2.8/24")
		for _, e := range []*endpoint{o.outside, o.stranger} {
			route(t, e.link, "198.51.100.0/24", "192.0.2.8")
		}
	}
	up := func(to *netns.NS, number string) *endpoint {
		l := create(t, o.host, link.IPvlanSpec{Attrs: attrs("eth0"), Parent: "eth0", Mode: mode, Flag: flag}, to)
		e := newEndpoint(t, l, network+number+"/24")
		if mode != link.IPvlanL2 {
			route(t, l, "0.0.0.0/0", "")
		}
		return e
	}
	return up(o.c1, "1"), up(o.c2, "2")
}

func ipvlanWay(t *testing.T, mode link.IPvlanMode, flag link.IPvlanFlag) {
	o := newLAN(t)
	a, b := o.ipvlans(t, mode, flag)
	checkReachable(t, a, o.outside)
	checkReachable(t, o.outside, a)
	if flag == link.IPvlanBridge {
		checkReachable(t, a, b)
		return
	}
	checkIsolated(t, a, b, o.outside)
}

// ipvlanHairpin shows that flag vepa in mode l2 passes through a switch that sends
// frames back to the port they came from, though both containers have the same Ethernet
// address.
func ipvlanHairpin(t *testing.T) {
	o := newLAN(t)
	a, b := o.ipvlans(t, link.IPvlanL2, link.IPvlanVEPA)
	checkIsolated(t, a, b, o.outside)
	o.hairpin(t, true)
	checkReachable(t, a, b)
}

// ipvlanRouter shows that flag vepa in mode l3 passes through an external router.
func ipvlanRouter(t *testing.T) {
	o := newLAN(t)
	a, b := o.ipvlans(t, link.IPvlanL3, link.IPvlanVEPA)
	checkIsolated(t, a, b, o.outside)
	route(t, o.uplink, "198.51.100.0/24", "192.0.2.9")
	sysctl(t, o.outside.ns, "net/ipv4/ip_forward", "1")
	sysctl(t, o.outside.ns, "net/ipv4/conf/all/send_redirects", "0")
	sysctl(t, o.outside.ns, "net/ipv4/conf/eth0/send_redirects", "0")
	checkReachable(t, a, b)
}

func vlanSuite() suite {
	on := func(change func(*link.VLANSpec)) link.Spec {
		s := link.VLANSpec{Attrs: attrs("probe"), Parent: "parent", ID: 7}
		change(&s)
		return s
	}
	maps := func(all ...link.QoSMap) link.List[link.QoSMap] { return link.ListOf(all...) }
	return suite{
		kind: "vlan",
		valid: []link.Spec{
			link.VLANSpec{Attrs: probe, Parent: "parent", ID: 4094, Protocol: link.Dot1AD, ReorderHeader: link.Off, LooseBinding: true,
				EgressQoS: maps(link.QoSMap{From: 9, To: 3}, link.QoSMap{From: 1, To: 7}), IngressQoS: maps(link.QoSMap{From: 5, To: 77}, link.QoSMap{From: 2, To: 1})},
			link.VLANSpec{Attrs: probe, Parent: "parent", ID: 1, Protocol: link.Dot1Q, ReorderHeader: link.On, GVRP: true},
			link.VLANSpec{Attrs: probe, Parent: "parent", ID: 2, Protocol: link.Dot1Q, ReorderHeader: link.On, MVRP: true},
			link.VLANSpec{Attrs: probe, Parent: "bridge", ID: 3, Protocol: link.Dot1Q, ReorderHeader: link.On, BridgeBinding: true},
		},
		adapt: func(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			if spec.(link.VLANSpec).Parent == "bridge" {
				requireKind(t, "bridge-vlan")
				create(t, here, link.BridgeSpec{Attrs: attrs("bridge"), VLANFiltering: true}, nil)
			}
			return spec, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.VLANSpec{Attrs: a, Parent: "parent", ID: 7} }),
			invalidSpec{"parent", on(func(s *link.VLANSpec) { s.Parent = "nobody" })},
			invalidSpec{"id", on(func(s *link.VLANSpec) { s.ID = 0 })},
			invalidSpec{"id", on(func(s *link.VLANSpec) { s.ID = 4095 })},
			invalidSpec{"protocol", on(func(s *link.VLANSpec) { s.Protocol = "802.1x" })},
			invalidSpec{"mtu", on(func(s *link.VLANSpec) { s.MTU = 4001 })},
			invalidSpec{"reorder_hdr", on(func(s *link.VLANSpec) { s.ReorderHeader = "perhaps" })},
			invalidSpec{"egress_qos", on(func(s *link.VLANSpec) { s.EgressQoS = maps(link.QoSMap{From: 1, To: 8}) })},
			invalidSpec{"ingress_qos", on(func(s *link.VLANSpec) { s.IngressQoS = maps(link.QoSMap{From: 8, To: 1}) })},
		),
		scenarios: []scenario{
			{"same", func(t *testing.T) { vlanPasses(t, link.Dot1Q) }},
			{"802.1ad", func(t *testing.T) { vlanPasses(t, link.Dot1AD) }},
			{"other", vlanIsolated}, {"conflict", vlanConflict},
		},
	}
}

// newVLANEndpoint creates a VLAN on a host and moves it to its container.
func newVLANEndpoint(t *testing.T, from, to *netns.NS, id int, p link.VLANProtocol, address string) *endpoint {
	t.Helper()
	return newEndpoint(t, create(t, from, link.VLANSpec{Attrs: attrs("eth0"), Parent: "eth0", ID: id, Protocol: p}, to), address)
}

func vlanPasses(t *testing.T, p link.VLANProtocol) {
	u := newHostPair(t)
	checkReachable(t, newVLANEndpoint(t, u.a, u.c1, 7, p, "192.0.2.1/24"), newVLANEndpoint(t, u.b, u.c2, 7, p, "192.0.2.2/24"))
}

func vlanIsolated(t *testing.T) {
	u := newHostPair(t)
	to := newVLANEndpoint(t, u.b, u.c2, 7, link.Dot1Q, "192.0.2.2/24")
	control := newVLANEndpoint(t, u.a, u.c1, 7, link.Dot1Q, "192.0.2.1/24")
	other := newVLANEndpoint(t, u.a, newNS(t, "c3"), 8, link.Dot1Q, "192.0.2.3/24")
	checkIsolated(t, other, to, control)
}

// vlanConflict creates the same ID on the same parent under another name.
func vlanConflict(t *testing.T) {
	u := newHostPair(t)
	spec := link.VLANSpec{Attrs: attrs("v7"), Parent: "eth0", ID: 7}
	create(t, u.a, spec, nil)
	spec.Name = "other"
	if _, err := link.Create(u.a, spec, link.Target{}); !errors.Is(err, link.ErrConflict) || errors.Is(err, link.ErrExists) {
		t.Errorf("create the same ID again: %v, want ErrConflict", err)
	}
}
