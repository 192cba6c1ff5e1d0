package link_test

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
)

func vxlanSuite() suite {
	on := func(change func(*link.VXLANSpec)) link.Spec {
		s := link.VXLANSpec{Attrs: attrs("probe"), VNI: 7, Remote: mustAddr("198.51.100.9")}
		change(&s)
		return s
	}
	s := suite{
		kind: "vxlan",
		valid: []link.Spec{
			link.VXLANSpec{Attrs: probe, VNI: 1<<24 - 1, Parent: "parent", Remote: mustAddr("198.51.100.9"), Local: mustAddr("198.51.100.1"),
				Port: link.VXLANPort, SourcePortLow: 2000, SourcePortHigh: 3000, TTL: 9, TOS: 8, DF: link.DFSet, Learning: link.Off,
				Ageing: 77 * time.Second, MaxAddresses: 55, Proxy: true, L2Miss: true, L3Miss: true, RSC: true, UDPChecksum: link.Off,
				RemCsumTx: true, RemCsumRx: true, GBP: true, LocalBypass: link.Off},
			link.VXLANSpec{Attrs: probe, VNI: 7, Parent: "parent", Group: mustAddr("239.1.1.1"), Local: mustAddr("198.51.100.1"),
				Port: link.VXLANPortLinux, TTLInherit: true, TOS: 1, DF: link.DFInherit, Learning: link.On, Ageing: time.Second,
				UDPChecksum: link.On, LocalBypass: link.On},
			link.VXLANSpec{Attrs: probe, VNI: 8, Remote: mustAddr("2001:db8::9"), Local: mustAddr("2001:db8::1"), Port: 1, FlowLabel: 1<<20 - 1,
				DF: link.DFUnset, Learning: link.On, Ageing: time.Second, UDPChecksum: link.On, LocalBypass: link.On,
				ZeroCsum6Tx: true, ZeroCsum6Rx: true},
			link.VXLANSpec{Attrs: withoutMAC(probe), Port: 4790, DF: link.DFUnset, Learning: link.Off, Ageing: time.Second, UDPChecksum: link.On,
				LocalBypass: link.On, External: true, VNIFilter: true, GPE: true},
		},
		adapt: func(t *testing.T, _ *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			s := spec.(link.VXLANSpec)
			if !labtest.KernelAtLeast(t, 6, 5) {
				s.LocalBypass = link.Default
			}
			return s, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec {
			return link.VXLANSpec{Attrs: a, VNI: 7, Remote: mustAddr("198.51.100.9")}
		}),
			invalidSpec{"vni", on(func(s *link.VXLANSpec) { s.VNI = 1 << 24 })},
			invalidSpec{"parent", on(func(s *link.VXLANSpec) { s.Parent = "nobody" })},
			invalidSpec{"parent", on(func(s *link.VXLANSpec) { s.Remote, s.Group = netip.Addr{}, mustAddr("239.1.1.1") })},
			invalidSpec{"mtu", on(func(s *link.VXLANSpec) { s.Parent, s.MTU = "parent", 4000 })}, // the kernel reduces it silently
			invalidSpec{"remote", on(func(s *link.VXLANSpec) { s.Remote = mustAddr("239.1.1.1") })},
			invalidSpec{"group", on(func(s *link.VXLANSpec) { s.Group, s.Parent = mustAddr("239.1.1.1"), "parent" })},
			invalidSpec{"local", on(func(s *link.VXLANSpec) { s.Local = mustAddr("2001:db8::1") })},
			invalidSpec{"port", on(func(s *link.VXLANSpec) { s.Port = 65536 })},
			invalidSpec{"source_port_high", on(func(s *link.VXLANSpec) { s.SourcePortLow = 1 })},
			invalidSpec{"source_port_low", on(func(s *link.VXLANSpec) { s.SourcePortHigh = 1 })},
			invalidSpec{"ttl", on(func(s *link.VXLANSpec) { s.TTL = 256 })},
			invalidSpec{"ttl", on(func(s *link.VXLANSpec) { s.TTL, s.TTLInherit = 1, true })},
			invalidSpec{"df", on(func(s *link.VXLANSpec) { s.DF = "maybe" })},
			invalidSpec{"flowlabel", on(func(s *link.VXLANSpec) { s.FlowLabel = 1 })},
			invalidSpec{"learning", on(func(s *link.VXLANSpec) { s.Learning = "perhaps" })},
			invalidSpec{"ageing", on(func(s *link.VXLANSpec) { s.Ageing = time.Millisecond })},
			invalidSpec{"gpe", on(func(s *link.VXLANSpec) { s.GPE = true })},
			invalidSpec{"vnifilter", on(func(s *link.VXLANSpec) { s.VNIFilter = true })},
			invalidSpec{"remote", on(func(s *link.VXLANSpec) { s.External, s.VNI = true, 0 })},
		),
		scenarios: []scenario{{"other-vni", vxlanIsolated}, {"ipv6", vxlanOverIPv6}, {"conflict", vxlanConflict}},
	}
	for _, port := range []int{link.VXLANPort, link.VXLANPortLinux} {
		for _, mode := range []string{"point-to-point", "multicast", "fdb"} {
			name := mode + "-" + strconv.Itoa(port)
			s.scenarios = append(s.scenarios,
				scenario{name, func(t *testing.T) { vxlanAlone(t, mode, port) }},
				scenario{name + "-bridge", func(t *testing.T) { vxlanUnderBridge(t, mode, port) }})
		}
	}
	return s
}

// vxlanSpecs returns the specs of the two ends of a VXLAN.
func vxlanSpecs(u *hostPair, mode string, port int) (a, b link.VXLANSpec) {
	a = link.VXLANSpec{Attrs: link.Attrs{Name: "vx0", MAC: link.MAC{2, 1}}, VNI: 7, Parent: "eth0", Local: u.addrA, Port: port}
	b = link.VXLANSpec{Attrs: link.Attrs{Name: "vx0", MAC: link.MAC{2, 2}}, VNI: 7, Parent: "eth0", Local: u.addrB, Port: port}
	switch mode {
	case "point-to-point":
		a.Remote, b.Remote = u.addrB, u.addrA
	case "multicast":
		a.Group, b.Group = mustAddr("239.1.1.1"), mustAddr("239.1.1.1")
	case "fdb":
		a.Learning, b.Learning = link.Off, link.Off
	}
	return a, b
}

func vxlanAlone(t *testing.T, mode string, port int) {
	u := newHostPair(t)
	specA, specB := vxlanSpecs(u, mode, port)
	a, b := u.createPair(t, specA, specB)
	if mode == "fdb" { // nothing floods ARP, so the neighbours must be added too
		must(t, a.link.AddFDB(specB.MAC, u.addrB))
		must(t, b.link.AddFDB(specA.MAC, u.addrA))
		must(t, a.link.AddNeighbor(b.addr, specB.MAC))
		must(t, b.link.AddNeighbor(a.addr, specA.MAC))
		entries, err := a.link.FDB()
		must(t, err)
		if want := (link.FDBEntry{MAC: specB.MAC, Dst: u.addrB}); len(entries) != 1 || entries[0] != want {
			t.Errorf("forwarding entries are %v, want %v", entries, want)
		}
		if got, ok, err := a.link.Neighbor(b.addr); got != specB.MAC || !ok || err != nil {
			t.Errorf("neighbour is %s, %v, %v", got, ok, err)
		}
	}
	checkReachable(t, a, b)
	if mode == "fdb" {
		elsewhere := mustAddr("198.51.100.9") // an address has one destination: the entry is replaced
		must(t, a.link.AddFDB(specB.MAC, elsewhere))
		if entries, err := a.link.FDB(); len(entries) != 1 || entries[0].Dst != elsewhere {
			t.Errorf("after a second destination the entries are %v, %v", entries, err)
		}
		must(t, a.link.DeleteFDB(specB.MAC, elsewhere))
		for _, dst := range []netip.Addr{u.addrB, elsewhere} { // the zero address may have several
			must(t, a.link.AddFDB(link.MAC{}, dst))
		}
		if entries, err := a.link.FDB(); len(entries) != 2 || err != nil {
			t.Errorf("the entries for the zero address are %v, %v, want two", entries, err)
		}
		for _, dst := range []netip.Addr{u.addrB, elsewhere} {
			must(t, a.link.DeleteFDB(link.MAC{}, dst))
		}
		must(t, a.link.DeleteNeighbor(b.addr))
		if entries, err := a.link.FDB(); len(entries) != 0 || err != nil {
			t.Errorf("forwarding entries are %v, %v after all were removed", entries, err)
		}
	}
}

// vxlanUnderBridge has a bridge on each host, with the VXLAN device and a container's
// veth as ports.
func vxlanUnderBridge(t *testing.T, mode string, port int) {
	u := newHostPair(t)
	specA, specB := vxlanSpecs(u, mode, port)
	if mode == "fdb" { // the bridge learns, and the entry for the zero address floods
		specA.Learning, specB.Learning = link.Default, link.Default
	}
	host := func(ns *netns.NS, spec link.VXLANSpec, remote netip.Addr, inside *netns.NS, address string) *endpoint {
		create(t, ns, link.BridgeSpec{Attrs: attrs("br0")}, nil)
		vx := create(t, ns, spec, nil)
		must(t, vx.SetMaster("br0"))
		if mode == "fdb" {
			must(t, vx.AddFDB(link.MAC{}, remote))
		}
		l, p := cable(t, inside, "eth0", ns, "port0")
		must(t, l.SetMTU(1450))
		must(t, p.SetMTU(1450))
		must(t, p.SetMaster("br0"))
		return newEndpoint(t, l, address)
	}
	checkReachable(t, host(u.a, specA, u.addrB, u.c1, "192.0.2.1/24"), host(u.b, specB, u.addrA, u.c2, "192.0.2.2/24"))
}

// vxlanIsolated has two VNIs between the same hosts.
func vxlanIsolated(t *testing.T) {
	u := newHostPair(t)
	specA, specB := vxlanSpecs(u, "point-to-point", link.VXLANPort)
	control, to := u.createPair(t, specA, specB)
	specA.VNI, specA.MAC = 8, link.MAC{2, 3}
	other := newEndpoint(t, create(t, u.a, specA, newNS(t, "c3")), "192.0.2.3/24")
	must(t, other.link.AddNeighbor(to.addr, specB.MAC)) // so that it sends without ARP
	checkIsolated(t, other, to, control)
}

func vxlanOverIPv6(t *testing.T) {
	u := newHostPair(t)
	for ns, a := range map[*netns.NS]string{u.a: "2001:db8::1/64", u.b: "2001:db8::2/64"} {
		sysctl(t, ns, "net/ipv6/conf/all/disable_ipv6", "0")
		addr(t, find(t, ns, "eth0"), a)
	}
	u.addrA, u.addrB = mustAddr("2001:db8::1"), mustAddr("2001:db8::2")
	a, b := vxlanSpecs(u, "point-to-point", link.VXLANPort)
	checkReachableEnds(t)(u.createPair(t, a, b))
}

// vxlanConflict creates the same VNI with the same port under another name.
func vxlanConflict(t *testing.T) {
	u := newHostPair(t)
	spec, _ := vxlanSpecs(u, "point-to-point", link.VXLANPort)
	create(t, u.a, spec, nil)
	spec.Name = "other"
	if _, err := link.Create(u.a, spec, link.Target{}); !errors.Is(err, link.ErrConflict) || errors.Is(err, link.ErrExists) {
		t.Errorf("create the same VNI again: %v, want ErrConflict", err)
	}
}

func geneveSuite() suite {
	on := func(change func(*link.GeneveSpec)) link.Spec {
		s := link.GeneveSpec{Attrs: attrs("probe"), VNI: 7, Remote: mustAddr("198.51.100.9")}
		change(&s)
		return s
	}
	return suite{
		kind: "geneve",
		valid: []link.Spec{
			link.GeneveSpec{Attrs: probe, VNI: 1<<24 - 1, Remote: mustAddr("198.51.100.9"), Port: 777, SourcePortLow: 2000, SourcePortHigh: 3000,
				TTL: 9, TOS: 8, DF: link.DFSet, UDPChecksum: link.On},
			link.GeneveSpec{Attrs: probe, VNI: 7, Remote: mustAddr("2001:db8::9"), Port: 778, TTLInherit: true, TOS: 1, DF: link.DFInherit,
				FlowLabel: 1<<20 - 1, ZeroCsum6Tx: link.On, ZeroCsum6Rx: link.On},
			link.GeneveSpec{Attrs: withoutMAC(probe), Port: 779, DF: link.DFUnset, External: true, InnerProtoInherit: true},
		},
		adapt: func(t *testing.T, _ *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			s := spec.(link.GeneveSpec)
			if !labtest.KernelAtLeast(t, 6, 15) {
				s.SourcePortLow, s.SourcePortHigh = 0, 0
			}
			return s, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec {
			return link.GeneveSpec{Attrs: a, VNI: 7, Remote: mustAddr("198.51.100.9")}
		}),
			invalidSpec{"vni", on(func(s *link.GeneveSpec) { s.VNI = 1 << 24 })},
			invalidSpec{"remote", on(func(s *link.GeneveSpec) { s.Remote = mustAddr("239.1.1.1") })},
			invalidSpec{"remote", on(func(s *link.GeneveSpec) { s.Remote = netip.Addr{} })},
			invalidSpec{"port", on(func(s *link.GeneveSpec) { s.Port = -1 })},
			invalidSpec{"ttl", on(func(s *link.GeneveSpec) { s.TTL = 256 })},
			invalidSpec{"ttl", on(func(s *link.GeneveSpec) { s.TTL, s.TTLInherit = 9, true })},
			invalidSpec{"flowlabel", on(func(s *link.GeneveSpec) { s.FlowLabel = 1 })},
			invalidSpec{"df", on(func(s *link.GeneveSpec) { s.DF = "maybe" })},
			invalidSpec{"udp_csum", on(func(s *link.GeneveSpec) { s.UDPChecksum = "perhaps" })},
			invalidSpec{"vni", on(func(s *link.GeneveSpec) { s.External, s.Remote = true, netip.Addr{} })},
			invalidSpec{"mac", on(func(s *link.GeneveSpec) { s.InnerProtoInherit, s.MAC = true, probe.MAC })},
		),
		scenarios: []scenario{
			{"point-to-point", func(t *testing.T) { genevePasses(t, 0) }},
			{"port", func(t *testing.T) { genevePasses(t, 777) }},
			{"other-vni", geneveIsolated},
			{"conflict", func(t *testing.T) {
				u := newHostPair(t)
				tunnelConflict(t, u, func(name string) link.Spec {
					return link.GeneveSpec{Attrs: attrs(name), VNI: 7, Remote: u.addrB}
				})
			}},
		},
	}
}

func genevePasses(t *testing.T, port int) {
	u := newHostPair(t)
	checkReachableEnds(t)(u.createPair(t,
		link.GeneveSpec{Attrs: attrs("gnv0"), VNI: 7, Remote: u.addrB, Port: port},
		link.GeneveSpec{Attrs: attrs("gnv0"), VNI: 7, Remote: u.addrA, Port: port}))
}

func geneveIsolated(t *testing.T) {
	u := newHostPair(t)
	specA := link.GeneveSpec{Attrs: attrs("gnv0"), VNI: 7, Remote: u.addrB}
	control, to := u.createPair(t, specA, link.GeneveSpec{Attrs: attrs("gnv0"), VNI: 7, Remote: u.addrA})
	specA.VNI = 8
	other := newEndpoint(t, create(t, u.a, specA, newNS(t, "c3")), "192.0.2.3/24")
	must(t, other.link.AddNeighbor(to.addr, mac(t, to.link)))
	checkIsolated(t, other, to, control)
}

func wireGuardSuite() suite {
	key := func(n byte) link.WireGuardKey { return link.WireGuardKey{n, 31: 0x40} }
	net := netip.MustParsePrefix
	peers := link.ListOf(
		link.WireGuardPeer{PublicKey: key(16).Public(), PresharedKey: key(24), Endpoint: netip.MustParseAddrPort("198.51.100.9:777"),
			AllowedIPs: link.ListOf(net("192.0.2.0/24"), net("203.0.113.0/24"), net("2001:db8::/32")), Keepalive: 25 * time.Second},
		link.WireGuardPeer{PublicKey: key(8).Public(), AllowedIPs: link.ListOf(net("0.0.0.0/0"))},
	)
	on := func(peers ...link.WireGuardPeer) link.Spec {
		return link.WireGuardSpec{Attrs: attrs("probe"), Peers: link.ListOf(peers...)}
	}
	return suite{
		kind:  "wireguard",
		valid: []link.Spec{link.WireGuardSpec{Attrs: withoutMAC(probe), PrivateKey: key(0), ListenPort: 777, FirewallMark: 9, Peers: peers}},
		adapt: func(t *testing.T, _ *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			sysctl(t, to.NS, sendRedirects, "0") // see TestAssumeWireGuardStopsRedirects
			return spec, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.WireGuardSpec{Attrs: a} }),
			invalidSpec{"mac", link.WireGuardSpec{Attrs: link.Attrs{Name: "probe", MAC: probe.MAC}}},
			invalidSpec{"listen_port", link.WireGuardSpec{Attrs: attrs("probe"), ListenPort: 65536}},
			invalidSpec{"peers", on(link.WireGuardPeer{})},
			invalidSpec{"peers", on(peers.All()[0], peers.All()[0])},
			invalidSpec{"peers", on(link.WireGuardPeer{PublicKey: key(1).Public(), Keepalive: time.Millisecond})},
			invalidSpec{"peers", on(link.WireGuardPeer{PublicKey: key(1).Public(), AllowedIPs: link.ListOf(net("192.0.2.1/24"))})},
		),
		scenarios: []scenario{{"point-to-point", wireGuardPasses}, {"allowed-ips", wireGuardIsolated}},
	}
}

// newWireGuardPair creates two ends, each of which allows the other the given prefix.
func newWireGuardPair(t *testing.T, allowA, allowB string) (*endpoint, *endpoint) {
	t.Helper()
	u := newHostPair(t)
	keyA, err := link.NewWireGuardKey()
	must(t, err)
	keyB, err := link.NewWireGuardKey()
	must(t, err)
	spec := func(own, other link.WireGuardKey, remote netip.Addr, allowed string) link.WireGuardSpec {
		return link.WireGuardSpec{Attrs: attrs("wg0"), PrivateKey: own, ListenPort: 51820, Peers: link.ListOf(link.WireGuardPeer{
			PublicKey: other.Public(), PresharedKey: link.WireGuardKey{7}, Endpoint: netip.AddrPortFrom(remote, 51820),
			AllowedIPs: link.ListOf(netip.MustParsePrefix(allowed)),
		})}
	}
	return u.createPair(t, spec(keyA, keyB, u.addrB, allowB), spec(keyB, keyA, u.addrA, allowA))
}

func wireGuardPasses(t *testing.T) {
	checkReachableEnds(t)(newWireGuardPair(t, "192.0.2.1/32", "192.0.2.2/32"))
}

// wireGuardIsolated sends from an address that the other end does not allow.
func wireGuardIsolated(t *testing.T) {
	control, to := newWireGuardPair(t, "192.0.2.1/32", "192.0.2.2/32")
	addr(t, control.link, "192.0.2.3/24")
	checkIsolated(t, listen(t, control.link, mustAddr("192.0.2.3")), to, control)
}

func ipipSuite() suite {
	on := func(change func(*link.IPIPSpec)) link.Spec {
		s := link.IPIPSpec{Attrs: attrs("probe"), Remote: mustAddr("198.51.100.9")}
		change(&s)
		return s
	}
	return suite{
		kind:  "ipip",
		valid: []link.Spec{link.IPIPSpec{Attrs: withoutMAC(probe), Local: mustAddr("198.51.100.1"), Remote: mustAddr("198.51.100.9")}},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.IPIPSpec{Attrs: a, Remote: mustAddr("198.51.100.9")} }),
			invalidSpec{"mac", on(func(s *link.IPIPSpec) { s.MAC = probe.MAC })},
			invalidSpec{"local", on(func(s *link.IPIPSpec) { s.Local = mustAddr("2001:db8::1") })},
			invalidSpec{"remote", on(func(s *link.IPIPSpec) { s.Remote = mustAddr("239.1.1.1") })},
		),
		scenarios: []scenario{{"point-to-point", func(t *testing.T) {
			u := newHostPair(t)
			checkReachableEnds(t)(u.createPair(t,
				link.IPIPSpec{Attrs: attrs("eth0"), Local: u.addrA, Remote: u.addrB},
				link.IPIPSpec{Attrs: attrs("eth0"), Local: u.addrB, Remote: u.addrA}))
		}}, {"conflict", func(t *testing.T) {
			u := newHostPair(t)
			tunnelConflict(t, u, func(name string) link.Spec {
				return link.IPIPSpec{Attrs: attrs(name), Local: u.addrA, Remote: u.addrB}
			})
		}}},
	}
}

// tunnelConflict creates two tunnels with the same endpoints.
func tunnelConflict(t *testing.T, u *hostPair, spec func(name string) link.Spec) {
	t.Helper()
	create(t, u.a, spec("t1"), nil)
	if _, err := link.Create(u.a, spec("t2"), link.Target{}); !errors.Is(err, link.ErrConflict) || errors.Is(err, link.ErrExists) {
		t.Errorf("create the same endpoints again: %v, want ErrConflict", err)
	}
}

func greSuite() suite {
	on := func(change func(*link.GRESpec)) link.Spec {
		s := link.GRESpec{Attrs: attrs("probe"), Remote: mustAddr("198.51.100.9")}
		change(&s)
		return s
	}
	return suite{
		kind:  "gre",
		valid: []link.Spec{link.GRESpec{Attrs: withoutMAC(probe), Local: mustAddr("198.51.100.1"), Remote: mustAddr("198.51.100.9")}},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.GRESpec{Attrs: a, Remote: mustAddr("198.51.100.9")} }),
			invalidSpec{"mac", on(func(s *link.GRESpec) { s.MAC = probe.MAC })},
			invalidSpec{"local", on(func(s *link.GRESpec) { s.Local = mustAddr("2001:db8::1") })},
			invalidSpec{"local", on(func(s *link.GRESpec) { s.Remote = mustAddr("239.1.1.1") })},
			invalidSpec{"remote", on(func(s *link.GRESpec) { s.Remote = mustAddr("0.0.0.0") })},
		),
		scenarios: []scenario{{"plain", func(t *testing.T) {
			u := newHostPair(t)
			checkReachableEnds(t)(u.createPair(t,
				link.GRESpec{Attrs: attrs("eth0"), Local: u.addrA, Remote: u.addrB},
				link.GRESpec{Attrs: attrs("eth0"), Local: u.addrB, Remote: u.addrA}))
		}}, {"conflict", func(t *testing.T) {
			u := newHostPair(t)
			tunnelConflict(t, u, func(name string) link.Spec {
				return link.GRESpec{Attrs: attrs(name), Local: u.addrA, Remote: u.addrB}
			})
		}}},
	}
}
