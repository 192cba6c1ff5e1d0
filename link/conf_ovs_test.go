package link_test

import (
	"context"
	"path/filepath"
	"testing"

	"cleat/link"
	"cleat/netns"
)

// startOVS starts a switch and stops it when the test ends.
func startOVS(t *testing.T, ns *netns.NS) *link.OVS {
	t.Helper()
	// Not the test's context, which ends before the cleanups that close the links.
	o, err := link.StartOVS(context.Background(), ns, filepath.Join(t.TempDir(), "ovs"))
	must(t, err)
	t.Cleanup(func() { must(t, o.Close()) })
	return o
}

func ovsSuite() suite { return ovsSuiteOn(link.OVSSystem) }

func ovsSuiteOn(datapath link.OVSDatapath) suite {
	on := func(change func(*link.OVSBridgeSpec)) link.Spec {
		s := link.OVSBridgeSpec{Attrs: attrs("br0")}
		change(&s)
		return s
	}
	full := link.Attrs{Name: "br0", MTU: 1300, MAC: probe.MAC, TxQueueLen: 77}
	return suite{
		kind: "openvswitch",
		valid: []link.Spec{
			link.OVSBridgeSpec{Attrs: full, DatapathType: datapath},
		},
		adapt: func(t *testing.T, here *netns.NS, spec link.Spec, _ link.Target) (link.Spec, link.Target) {
			s := spec.(link.OVSBridgeSpec)
			if s.DB == "" && s.Validate() == nil { // an invalid spec needs no switch
				s.DB = startOVS(t, here).DB()
			}
			return s, link.Target{}
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.OVSBridgeSpec{Attrs: a} }),
			invalidSpec{"db", on(func(s *link.OVSBridgeSpec) { s.DB = "/run/db.sock" })},
			invalidSpec{"datapath_type", on(func(s *link.OVSBridgeSpec) { s.DatapathType = "dpdk" })},
		),
		scenarios: []scenario{{"veth", ovsVeth}, {"internal", ovsInternal}},
	}
}

func ovsPortSuite() suite { return ovsPortSuiteOn(link.OVSSystem) }

func ovsPortSuiteOn(datapath link.OVSDatapath) suite {
	on := func(change func(*link.OVSPortSpec)) link.Spec {
		s := link.OVSPortSpec{Attrs: attrs("probe"), Bridge: "br0", Type: link.OVSInternalPort}
		change(&s)
		return s
	}
	return suite{
		kind: "openvswitch-port",
		valid: []link.Spec{
			link.OVSPortSpec{Attrs: probe, Bridge: "br0", Type: link.OVSInternalPort, Tag: 7},
		},
		adapt: func(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			s := spec.(link.OVSPortSpec)
			if s.DB == "" && s.Validate() == nil {
				s.DB = startOVS(t, here).DB()
				// An internal port is created in this namespace, where newTargets uses the name.
				must(t, find(t, here, "probe").Close())
				create(t, here, link.OVSBridgeSpec{Attrs: attrs("br0"), DB: s.DB, DatapathType: datapath}, nil)
			}
			return s, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec {
			return link.OVSPortSpec{Attrs: a, Bridge: "br0", Type: link.OVSInternalPort}
		}),
			invalidSpec{"bridge", on(func(s *link.OVSPortSpec) { s.Bridge = "" })},
			invalidSpec{"type", on(func(s *link.OVSPortSpec) { s.Type = "patch" })},
			invalidSpec{"tag", on(func(s *link.OVSPortSpec) { s.Tag = 4096 })},
			invalidSpec{"mac", on(func(s *link.OVSPortSpec) { s.Type, s.MAC = link.OVSSystemPort, probe.MAC })},
		),
		scenarios: []scenario{{"tag", ovsTags}},
	}
}

// ovsMachine connects a machine to an OVS bridge by a veth pair.
func ovsMachine(t *testing.T, o *link.OVS, br *netns.NS, name, address string, tag int) *endpoint {
	t.Helper()
	l, _ := cable(t, newNS(t, name), "eth0", br, name)
	create(t, br, link.OVSPortSpec{Attrs: attrs(name), Bridge: "br0", Tag: tag, DB: o.DB()}, nil)
	return newEndpoint(t, l, address)
}

func ovsVeth(t *testing.T) {
	br := newNS(t, "bridge")
	o := startOVS(t, br)
	create(t, br, link.OVSBridgeSpec{Attrs: attrs("br0"), DB: o.DB()}, nil)
	checkReachable(t, ovsMachine(t, o, br, "m1", "192.0.2.1/24", 0), ovsMachine(t, o, br, "m2", "192.0.2.2/24", 0))
}

func ovsInternal(t *testing.T) {
	br := newNS(t, "bridge")
	o := startOVS(t, br)
	create(t, br, link.OVSBridgeSpec{Attrs: attrs("br0"), DB: o.DB()}, nil)
	internal := func(name, address string) *endpoint {
		spec := link.OVSPortSpec{Attrs: attrs(name), Bridge: "br0", Type: link.OVSInternalPort, DB: o.DB()}
		return newEndpoint(t, create(t, br, spec, newNS(t, name)), address)
	}
	a, b := internal("m1", "192.0.2.1/24"), internal("m2", "192.0.2.2/24")
	checkReachable(t, a, b)
	checkReachable(t, a, ovsMachine(t, o, br, "m3", "192.0.2.3/24", 0))
}

// ovsTags has two access ports in one VLAN and one in another.
func ovsTags(t *testing.T) {
	br := newNS(t, "bridge")
	o := startOVS(t, br)
	create(t, br, link.OVSBridgeSpec{Attrs: attrs("br0"), DB: o.DB()}, nil)
	a := ovsMachine(t, o, br, "m1", "192.0.2.1/24", 7)
	b := ovsMachine(t, o, br, "m2", "192.0.2.2/24", 7)
	other := ovsMachine(t, o, br, "m3", "192.0.2.3/24", 8)
	checkReachable(t, a, b)
	checkIsolated(t, other, a, b)
}
