package link_test

import (
	"errors"
	"testing"

	"cleat/link"
	"cleat/netns"
)

func macvlanSuite() suite {
	on := func(change func(*link.MacvlanSpec)) link.Spec {
		s := link.MacvlanSpec{Attrs: named("probe"), Parent: "parent"}
		change(&s)
		return s
	}
	return suite{
		kind: "macvlan",
		full: []link.Spec{
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanSource, NoDst: true, BroadcastQueueLen: 99,
				Sources: link.ListOf(link.MAC{2, 3, 4, 5, 6, 7}, link.MAC{2, 3, 4, 5, 6, 8}, link.MAC{2, 3, 4, 5, 6, 1})},
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanPrivate, BroadcastQueueLen: 7},
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanVEPA, BroadcastQueueLen: 8},
			link.MacvlanSpec{Attrs: probe, Parent: "parent", Mode: link.MacvlanBridge, BroadcastQueueLen: 9},
			link.MacvlanSpec{Attrs: without(probe), Parent: "parent", Mode: link.MacvlanPassthru, NoPromisc: true, BroadcastQueueLen: 10},
		},
		bad: append(badAttrs(func(a link.Attrs) link.Spec { return link.MacvlanSpec{Attrs: a, Parent: "parent"} }),
			refusal{"parent", on(func(s *link.MacvlanSpec) { s.Parent = "" })},
			refusal{"parent", on(func(s *link.MacvlanSpec) { s.Parent = "nobody" })},
			refusal{"mode", on(func(s *link.MacvlanSpec) { s.Mode = "public" })},
			refusal{"mtu", on(func(s *link.MacvlanSpec) { s.MTU = 4001 })}, // the parent has 4000
			refusal{"mac", on(func(s *link.MacvlanSpec) { s.Mode, s.MAC = link.MacvlanPassthru, probe.MAC })},
			refusal{"nopromisc", on(func(s *link.MacvlanSpec) { s.NoPromisc = true })},
			refusal{"nodst", on(func(s *link.MacvlanSpec) { s.NoDst = true })},
			refusal{"sources", on(func(s *link.MacvlanSpec) { s.Sources = link.ListOf(link.MAC{2}) })},
			refusal{"sources", on(func(s *link.MacvlanSpec) { s.Mode, s.Sources = link.MacvlanSource, link.ListOf(link.MAC{1}) })},
			refusal{"bc_queue_len", on(func(s *link.MacvlanSpec) { s.BroadcastQueueLen = -1 })},
		),
		ways: []way{
			{"bridge", macvlanBridge}, {"private", macvlanPrivate}, {"vepa", macvlanVEPA},
			{"passthru", macvlanPassthru}, {"source", macvlanSource},
		},
	}
}

// macvlans are two containers on the office's uplink.
func (o *office) macvlans(t *testing.T, mode link.MacvlanMode) (*end, *end) {
	t.Helper()
	up := func(to *netns.NS, address string) *end {
		return newEnd(t, create(t, o.host, link.MacvlanSpec{Attrs: named("eth0"), Parent: "eth0", Mode: mode}, to), address)
	}
	return up(o.c1, "192.0.2.1/24"), up(o.c2, "192.0.2.2/24")
}

func macvlanBridge(t *testing.T) {
	o := newOffice(t)
	a, b := o.macvlans(t, link.MacvlanBridge)
	passes(t, a, b)
	passes(t, a, o.outside)
}

// macvlanPrivate: not even by way of a hairpin switch, by which vepa passes.
func macvlanPrivate(t *testing.T) {
	o := newOffice(t)
	a, b := o.macvlans(t, link.MacvlanPrivate)
	passes(t, a, o.outside)
	isolated(t, a, b, o.outside)
	o.hairpin(t, true)
	isolated(t, a, b, o.outside)
}

func macvlanVEPA(t *testing.T) {
	o := newOffice(t)
	a, b := o.macvlans(t, link.MacvlanVEPA)
	passes(t, a, o.outside)
	isolated(t, a, b, o.outside)
	o.hairpin(t, true)
	passes(t, a, b)
}

func macvlanPassthru(t *testing.T) {
	o := newOffice(t)
	spec := link.MacvlanSpec{Attrs: named("eth0"), Parent: "eth0", Mode: link.MacvlanPassthru}
	l := create(t, o.host, spec, o.c1)
	if mac(t, l) != mac(t, o.uplink) {
		t.Error("a passthru device does not have its parent's address")
	}
	passes(t, newEnd(t, l, "192.0.2.1/24"), o.outside)
	before := takeTrace(t, o.host, o.c2)
	for _, mode := range []link.MacvlanMode{link.MacvlanPassthru, link.MacvlanBridge} {
		spec.Mode = mode
		_, err := link.Create(o.host, spec, link.Target{NS: o.c2})
		if param := (*link.ParamError)(nil); !errors.As(err, &param) || param.Param != "mode" {
			t.Errorf("a %s device beside a passthru one: %v, want a *ParamError for mode", mode, err)
		}
	}
	untouched(t, before, o.host, o.c2)
}

// macvlanSource lets in listed senders only, and others once they are listed.
func macvlanSource(t *testing.T) {
	o := newOffice(t)
	spec := link.MacvlanSpec{Attrs: named("eth0"), Parent: "eth0", Mode: link.MacvlanSource, Sources: link.ListOf(mac(t, o.outside.link))}
	l := create(t, o.host, spec, o.c1)
	a := newEnd(t, l, "192.0.2.1/24")
	passes(t, o.outside, a)
	isolated(t, o.stranger, a, o.outside)
	must(t, l.AllowSource(mac(t, o.stranger.link)))
	passes(t, o.stranger, a)
	must(t, l.ForbidSource(mac(t, o.stranger.link)))
	got, err := l.Spec()
	must(t, err)
	if s := got.(link.MacvlanSpec).Sources; s != spec.Sources {
		t.Errorf("sources are %s, want %s", s, spec.Sources)
	}
}

func ipvlanSuite() suite {
	on := func(change func(*link.IPvlanSpec)) link.Spec {
		s := link.IPvlanSpec{Attrs: named("probe"), Parent: "parent"}
		change(&s)
		return s
	}
	s := suite{
		kind: "ipvlan",
		bad: append(badAttrs(func(a link.Attrs) link.Spec { return link.IPvlanSpec{Attrs: a, Parent: "parent"} }),
			refusal{"parent", on(func(s *link.IPvlanSpec) { s.Parent = "nobody" })},
			refusal{"mac", on(func(s *link.IPvlanSpec) { s.MAC = probe.MAC })},
			refusal{"mode", on(func(s *link.IPvlanSpec) { s.Mode = "l4" })},
			refusal{"flag", on(func(s *link.IPvlanSpec) { s.Flag = "public" })},
		),
		ways: []way{{"l2-vepa-hairpin", ipvlanHairpin}, {"l3-vepa-router", ipvlanRouter}},
	}
	for _, mode := range []link.IPvlanMode{link.IPvlanL2, link.IPvlanL3, link.IPvlanL3S} {
		for _, flag := range []link.IPvlanFlag{link.IPvlanBridge, link.IPvlanPrivate, link.IPvlanVEPA} {
			s.full = append(s.full, link.IPvlanSpec{Attrs: without(probe), Parent: "parent", Mode: mode, Flag: flag})
			name := string(mode)
			if flag != link.IPvlanBridge {
				name += "-" + string(flag)
			}
			s.ways = append(s.ways, way{name, func(t *testing.T) { ipvlanWay(t, mode, flag) }})
		}
	}
	return s
}

// ipvlans are two containers on the office's uplink. In mode l3 they are of
// another network, which the others reach by way of the host.
func (o *office) ipvlans(t *testing.T, mode link.IPvlanMode, flag link.IPvlanFlag) (*end, *end) {
	t.Helper()
	network := "192.0.2."
	if mode != link.IPvlanL2 {
		network = "198.51.100."
		addr(t, o.uplink, "192.0.2.8/24")
		for _, e := range []*end{o.outside, o.stranger} {
			route(t, e.link, "198.51.100.0/24", "192.0.2.8")
		}
	}
	up := func(to *netns.NS, number string) *end {
		l := create(t, o.host, link.IPvlanSpec{Attrs: named("eth0"), Parent: "eth0", Mode: mode, Flag: flag}, to)
		e := newEnd(t, l, network+number+"/24")
		if mode != link.IPvlanL2 {
			route(t, l, "0.0.0.0/0", "")
		}
		return e
	}
	return up(o.c1, "1"), up(o.c2, "2")
}

func ipvlanWay(t *testing.T, mode link.IPvlanMode, flag link.IPvlanFlag) {
	o := newOffice(t)
	a, b := o.ipvlans(t, mode, flag)
	passes(t, a, o.outside)
	passes(t, o.outside, a)
	if flag == link.IPvlanBridge {
		passes(t, a, b)
		return
	}
	isolated(t, a, b, o.outside)
}

// ipvlanHairpin is the way that vepa leaves open in mode l2: a switch that sends
// frames back to the port they came from, though both containers have one
// Ethernet address.
func ipvlanHairpin(t *testing.T) {
	o := newOffice(t)
	a, b := o.ipvlans(t, link.IPvlanL2, link.IPvlanVEPA)
	isolated(t, a, b, o.outside)
	o.hairpin(t, true)
	passes(t, a, b)
}

// ipvlanRouter is the way that vepa leaves open in mode l3: a router outside.
func ipvlanRouter(t *testing.T) {
	o := newOffice(t)
	a, b := o.ipvlans(t, link.IPvlanL3, link.IPvlanVEPA)
	isolated(t, a, b, o.outside)
	route(t, o.uplink, "198.51.100.0/24", "192.0.2.9")
	sysctl(t, o.outside.ns, "net/ipv4/ip_forward", "1")
	sysctl(t, o.outside.ns, "net/ipv4/conf/all/send_redirects", "0")
	sysctl(t, o.outside.ns, "net/ipv4/conf/eth0/send_redirects", "0")
	passes(t, a, b)
}

func vlanSuite() suite {
	on := func(change func(*link.VLANSpec)) link.Spec {
		s := link.VLANSpec{Attrs: named("probe"), Parent: "parent", ID: 7}
		change(&s)
		return s
	}
	maps := func(all ...link.QoSMap) link.List[link.QoSMap] { return link.ListOf(all...) }
	return suite{
		kind: "vlan",
		full: []link.Spec{
			link.VLANSpec{Attrs: probe, Parent: "parent", ID: 4094, Protocol: link.Dot1AD, ReorderHeader: link.Off, LooseBinding: true,
				EgressQoS: maps(link.QoSMap{From: 9, To: 3}, link.QoSMap{From: 1, To: 7}), IngressQoS: maps(link.QoSMap{From: 5, To: 77}, link.QoSMap{From: 2, To: 1})},
			link.VLANSpec{Attrs: probe, Parent: "parent", ID: 1, Protocol: link.Dot1Q, ReorderHeader: link.On, GVRP: true},
			link.VLANSpec{Attrs: probe, Parent: "parent", ID: 2, Protocol: link.Dot1Q, ReorderHeader: link.On, MVRP: true},
			link.VLANSpec{Attrs: probe, Parent: "bridge", ID: 3, Protocol: link.Dot1Q, ReorderHeader: link.On, BridgeBinding: true},
		},
		adapt: func(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			if spec.(link.VLANSpec).Parent == "bridge" {
				need(t, "bridge-vlan")
				create(t, here, link.BridgeSpec{Attrs: named("bridge"), VLANFiltering: true}, nil)
			}
			return spec, to
		},
		bad: append(badAttrs(func(a link.Attrs) link.Spec { return link.VLANSpec{Attrs: a, Parent: "parent", ID: 7} }),
			refusal{"parent", on(func(s *link.VLANSpec) { s.Parent = "nobody" })},
			refusal{"id", on(func(s *link.VLANSpec) { s.ID = 0 })},
			refusal{"id", on(func(s *link.VLANSpec) { s.ID = 4095 })},
			refusal{"protocol", on(func(s *link.VLANSpec) { s.Protocol = "802.1x" })},
			refusal{"mtu", on(func(s *link.VLANSpec) { s.MTU = 4001 })},
			refusal{"reorder_hdr", on(func(s *link.VLANSpec) { s.ReorderHeader = "perhaps" })},
			refusal{"egress_qos", on(func(s *link.VLANSpec) { s.EgressQoS = maps(link.QoSMap{From: 1, To: 8}) })},
			refusal{"ingress_qos", on(func(s *link.VLANSpec) { s.IngressQoS = maps(link.QoSMap{From: 8, To: 1}) })},
		),
		ways: []way{
			{"same", func(t *testing.T) { vlanPasses(t, link.Dot1Q) }},
			{"802.1ad", func(t *testing.T) { vlanPasses(t, link.Dot1AD) }},
			{"other", vlanIsolated}, {"conflict", vlanConflict},
		},
	}
}

// vlanEnd is a VLAN on a tunnel's host, in its container.
func vlanEnd(t *testing.T, from, to *netns.NS, id int, p link.VLANProtocol, address string) *end {
	t.Helper()
	return newEnd(t, create(t, from, link.VLANSpec{Attrs: named("eth0"), Parent: "eth0", ID: id, Protocol: p}, to), address)
}

func vlanPasses(t *testing.T, p link.VLANProtocol) {
	u := newTunnel(t)
	passes(t, vlanEnd(t, u.a, u.c1, 7, p, "192.0.2.1/24"), vlanEnd(t, u.b, u.c2, 7, p, "192.0.2.2/24"))
}

func vlanIsolated(t *testing.T) {
	u := newTunnel(t)
	to := vlanEnd(t, u.b, u.c2, 7, link.Dot1Q, "192.0.2.2/24")
	control := vlanEnd(t, u.a, u.c1, 7, link.Dot1Q, "192.0.2.1/24")
	other := vlanEnd(t, u.a, newNS(t, "c3"), 8, link.Dot1Q, "192.0.2.3/24")
	isolated(t, other, to, control)
}

// vlanConflict: one id of one parent is one link, whatever its name.
func vlanConflict(t *testing.T) {
	u := newTunnel(t)
	spec := link.VLANSpec{Attrs: named("v7"), Parent: "eth0", ID: 7}
	create(t, u.a, spec, nil)
	spec.Name = "other"
	if _, err := link.Create(u.a, spec, link.Target{}); !errors.Is(err, link.ErrConflict) || errors.Is(err, link.ErrExists) {
		t.Errorf("the same id again: %v, want ErrConflict", err)
	}
}
