package link_test

import (
	"testing"

	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
)

// Shared parameters with values that no kind has by default.
var (
	probe     = link.Attrs{Name: "probe", MTU: 1300, MAC: link.MAC{0x02, 0, 0x5e, 0x10, 0, 1}, TxQueueLen: 77}
	probePeer = link.Attrs{Name: "peer", MTU: 1350, MAC: link.MAC{0x02, 0, 0x5e, 0x10, 0, 2}, TxQueueLen: 66}
)

// withoutMAC returns a without an Ethernet address, for kinds that have none of their
// own.
func withoutMAC(a link.Attrs) link.Attrs {
	a.MAC = link.MAC{}
	return a
}

func attrs(name string) link.Attrs { return link.Attrs{Name: name} }

// invalidAttrs returns specs with invalid shared parameters, which every kind refuses.
func invalidAttrs(with func(link.Attrs) link.Spec) []invalidSpec {
	return []invalidSpec{
		{"name", with(link.Attrs{})},
		{"name", with(link.Attrs{Name: "a/b"})},
		{"name", with(link.Attrs{Name: "sixteen-bytes-xx"})},
		{"mtu", with(link.Attrs{Name: "probe", MTU: 67})},
		{"mtu", with(link.Attrs{Name: "probe", MTU: 65536})},
		{"mac", with(link.Attrs{Name: "probe", MAC: link.MAC{1, 2, 3, 4, 5, 6}})},
		{"txqueuelen", with(link.Attrs{Name: "probe", TxQueueLen: -1})},
	}
}

func vethSuite() suite {
	return suite{
		kind:  "veth",
		valid: []link.Spec{link.VethSpec{Attrs: probe, Peer: probePeer, TxQueues: 2, RxQueues: 3, GSOMaxSize: link.MaxGSOSize, PeerGSOMaxSize: 32768}},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.VethSpec{Attrs: a, Peer: attrs("peer")} }),
			invalidSpec{"peer", link.VethSpec{Attrs: attrs("probe")}},
			invalidSpec{"peer_mtu", link.VethSpec{Attrs: attrs("probe"), Peer: link.Attrs{Name: "peer", MTU: 1}}},
			invalidSpec{"tx_queues", link.VethSpec{Attrs: attrs("probe"), Peer: attrs("peer"), TxQueues: 4097}},
			invalidSpec{"gso_max_size", link.VethSpec{Attrs: attrs("probe"), Peer: attrs("peer"), GSOMaxSize: 1}},
			invalidSpec{"peer_gso_max_size", link.VethSpec{Attrs: attrs("probe"), Peer: attrs("peer"), PeerGSOMaxSize: link.MaxGSOSize + 1}},
			invalidSpec{"rx_queues", link.VethSpec{Attrs: attrs("probe"), Peer: attrs("peer"), RxQueues: -1}},
		),
		scenarios: []scenario{{"pair", vethPasses}, {"offloads", vethOffloads}},
	}
}

func vethPasses(t *testing.T) {
	a, b := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
	checkReachable(t, newEndpoint(t, a, "192.0.2.1/24"), newEndpoint(t, b, "192.0.2.2/24"))
}

// vethOffloads turns each offload on and off, and sends through the link with all of
// them off.
func vethOffloads(t *testing.T) {
	a, b := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
	before := takeSnapshot(t, a.NS(), b.NS())
	for _, name := range []string{"tso", "gso", "gro", "tx"} {
		for _, on := range []bool{true, false} {
			must(t, a.SetOffload(name, on))
			all, err := a.Offloads()
			must(t, err)
			if all[name] != on {
				t.Errorf("offload %s is %v after SetOffload(%v)", name, all[name], on)
			}
		}
	}
	checkSnapshot(t, before, a.NS(), b.NS())
	checkReachable(t, newEndpoint(t, a, "192.0.2.1/24"), newEndpoint(t, b, "192.0.2.2/24"))
	if err := a.SetOffload("gsso", true); err == nil {
		t.Error("set an offload that does not exist")
	}
	if err := a.SetOffload("tso", true); err == nil {
		t.Error("set tso without tx checksums, which it depends on")
	}
}

func netkitSuite() suite {
	return suite{
		kind: "netkit",
		valid: []link.Spec{
			link.NetkitSpec{Attrs: probe, Peer: probePeer, Mode: link.NetkitL2, Policy: link.NetkitDrop, PeerPolicy: link.NetkitDrop,
				Scrub: link.NetkitScrubNone, PeerScrub: link.NetkitScrubNone},
			link.NetkitSpec{Attrs: withoutMAC(probe), Peer: withoutMAC(probePeer), Mode: link.NetkitL3, Policy: link.NetkitPass, PeerPolicy: link.NetkitDrop,
				Scrub: link.NetkitScrubDefault, PeerScrub: link.NetkitScrubNone},
		},
		adapt: func(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			if s := spec.(link.NetkitSpec); !labtest.KernelAtLeast(t, 6, 12) {
				s.Scrub, s.PeerScrub = "", ""
				return s, to
			}
			return spec, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec {
			return link.NetkitSpec{Attrs: a, Peer: attrs("peer"), Mode: link.NetkitL2}
		}),
			invalidSpec{"peer", link.NetkitSpec{Attrs: attrs("probe")}},
			invalidSpec{"mode", link.NetkitSpec{Attrs: attrs("probe"), Peer: attrs("peer"), Mode: "l4"}},
			invalidSpec{"policy", link.NetkitSpec{Attrs: attrs("probe"), Peer: attrs("peer"), Policy: "maybe"}},
			invalidSpec{"peer_policy", link.NetkitSpec{Attrs: attrs("probe"), Peer: attrs("peer"), PeerPolicy: "maybe"}},
			invalidSpec{"scrub", link.NetkitSpec{Attrs: attrs("probe"), Peer: attrs("peer"), Scrub: "maybe"}},
			invalidSpec{"mac", link.NetkitSpec{Attrs: link.Attrs{Name: "probe", MAC: probe.MAC}, Peer: attrs("peer"), Mode: link.NetkitL3}},
		),
		scenarios: []scenario{
			{"l2", func(t *testing.T) { netkitPasses(t, link.NetkitL2) }},
			{"l3", func(t *testing.T) { netkitPasses(t, link.NetkitL3) }},
			{"drop", netkitDrops},
		},
	}
}

func newNetkitPair(t *testing.T, spec link.NetkitSpec) (*endpoint, *endpoint) {
	t.Helper()
	a, b := newNS(t, "a"), newNS(t, "b")
	spec.Attrs, spec.Peer = attrs("eth0"), attrs("eth0")
	l, err := link.Create(a, spec, link.Target{PeerNS: b})
	must(t, err)
	return newEndpoint(t, up(t, l), "192.0.2.1/24"), newEndpoint(t, up(t, find(t, b, "eth0")), "192.0.2.2/24")
}

func netkitPasses(t *testing.T, mode link.NetkitMode) {
	a, b := newNetkitPair(t, link.NetkitSpec{Mode: mode})
	checkReachable(t, a, b)
}

// netkitDrops shows that policy drop stops what this end sends. A veth pair to the same
// namespace is the control.
func netkitDrops(t *testing.T) {
	a, b := newNetkitPair(t, link.NetkitSpec{Mode: link.NetkitL3, Policy: link.NetkitDrop})
	wire, there := cable(t, newNS(t, "c"), "eth0", b.ns, "eth1")
	addr(t, there, "192.0.2.130/25")
	control := newEndpoint(t, wire, "192.0.2.129/25")
	route(t, wire, "192.0.2.2/32", "")
	checkIsolated(t, a, b, control)
}
